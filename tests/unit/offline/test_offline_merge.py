"""One file of all ranks: events, clocks, ids, and the added tracks."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from loopopt.analysis import RunAnalysis
from loopopt.errors import TraceError, UsageError
from loopopt.measure.merge import merge_ranks
from loopopt.measure.summary import summarize
from loopopt.offline.merge import PIDS_PER_RANK, merge
from loopopt.parse import parse_trace

REPOSITORY = Path(__file__).parents[3]
GLOO = REPOSITORY / "tests" / "data" / "traces"
ADDED = "exposed_communication"


def analysed(paths: Sequence[Path]) -> RunAnalysis:
    return merge_ranks([summarize(parse_trace(p)) for p in paths], name="run")


def collection() -> Path:
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "EXPECTED.json").is_file():
        pytest.skip("the public trace collection is not here; set LOOPOPT_TEST_TRACES to its folder")
    return folder


def plain(path: Path | str) -> Any:
    """Times as exact decimals."""
    data = Path(path).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=Decimal)


def events_of(path: Path | str) -> list[dict[str, Any]]:
    top = plain(path)
    found: list[dict[str, Any]] = top if isinstance(top, list) else top["traceEvents"]
    return found


def two_files(folder: Path, events: Sequence[Sequence[dict[str, Any]]], **top: Any) -> list[Path]:
    paths = []
    for rank, of_rank in enumerate(events):
        paths.append(folder / f"rank{rank}.json")
        info = {"rank": rank, "world_size": len(events), "backend": "nccl"}
        paths[-1].write_text(json.dumps({"distributedInfo": info, **top, "traceEvents": list(of_rank)}))
    return paths


def nccl(start: float, length: float, pid: Any = 0, **more: Any) -> dict[str, Any]:
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Group size": 2, "correlation": 7, **more}
    args |= {"In msg nelems": 256, "Out msg nelems": 256, "dtype": "Float", "Process Group Ranks": "[0, 1]"}
    name = "ncclDevKernel_AllReduce(x)"
    return {
        "ph": "X", "cat": "kernel", "name": name, "pid": pid, "tid": 7, "ts": start, "dur": length, "args": args,
    }  # fmt: skip


SETS = ["gloo_2ranks", "gloo_4ranks_2x2"]


@pytest.mark.parametrize("name", SETS)
def test_every_event_is_in_the_merged_file_once(name: str, tmp_path: Path) -> None:
    """Same phases, names and lengths as in the files; only processes without events lose their names."""
    paths = sorted((GLOO / name).glob("*.json.gz"))
    out = tmp_path / "merged.json.gz"
    merged = merge(analysed(paths), str(out))
    found = [e for e in events_of(out) if e["pid"] % PIDS_PER_RANK]

    def counted(events: Sequence[dict[str, Any]]) -> Counter[Any]:
        return Counter((e["ph"], e.get("cat"), e["name"], e.get("dur")) for e in events if e["ph"] != "M")

    assert counted(found) == counted([e for p in paths for e in events_of(p)])
    assert merged.events == sum(counted(found).values()) + sum(
        e["ph"] == "M" and not e["name"].startswith("process_") for e in found
    )


def check_exposed(run: RunAnalysis, out: Path) -> None:
    by_rank = {r.rank: r for r in run.measurement.ranks}
    found = {rank: Decimal(0) for rank in by_rank}
    last: dict[int, Decimal] = {}
    for event in events_of(out):
        if event.get("cat") == ADDED:
            rank = event["pid"] // PIDS_PER_RANK
            assert event["pid"] % PIDS_PER_RANK == 0
            assert event["ts"] >= last.get(rank, Decimal("-Infinity"))
            last[rank] = event["ts"] + event["dur"]
            found[rank] += event["dur"]
    for rank, total in found.items():
        assert float(total) == by_rank[rank].total.exposed_us


@pytest.mark.parametrize("name", SETS)
def test_the_exposed_track_is_the_measured_exposed_time(name: str, tmp_path: Path) -> None:
    """To the nanosecond, in stretches that do not overlap."""
    run = analysed(sorted((GLOO / name).glob("*.json.gz")))
    merge(run, str(tmp_path / "m.json"))
    check_exposed(run, tmp_path / "m.json")
    assert sum(r.total.exposed_us for r in run.measurement.ranks) > 0


@pytest.mark.traces
@pytest.mark.parametrize("name", ["param_dlrm_8r", "megatron_tp2"])
def test_public_gpu_traces_merge(name: str, tmp_path: Path) -> None:
    """Several GPUs, older forms of the trace; the collectives of all ranks end together on the merged clock."""
    sets = json.loads((collection() / "EXPECTED.json").read_text())["sets"]
    if name not in sets:
        pytest.skip(f"the collection has no set {name}: {', '.join(sets)}")
    paths = [collection() / path for path in sets[name]["files"].values()]
    run = analysed(paths)
    out = tmp_path / "merged.json.gz"
    merge(run, str(out))
    check_exposed(run, out)
    kept = sum(e["ph"] not in ("M",) for p in paths for e in events_of(p))
    assert sum(e["ph"] != "M" and e.get("cat") != ADDED for e in events_of(out)) == kept


def test_ranks_are_put_on_one_clock(tmp_path: Path) -> None:
    """A rank whose clock is 5 ms ahead; its collectives end with the other's in the merged file."""
    late = 5_000.125
    ends = [200.0 + 1_000.0 * i for i in range(12)]
    mine = [nccl(end - 100.0, 100.0, Seq=i) for i, end in enumerate(ends)]
    theirs = [nccl(end - 90.0 + late, 90.0, Seq=i) for i, end in enumerate(ends)]
    paths = two_files(tmp_path, [mine, theirs], baseTimeNanoseconds=1_790_000_000_000_000_000)
    for path, host in zip(paths, "ab", strict=True):
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host_name": host}))
    run = analysed(paths)
    assert any(run.clock_us.values())
    merge(run, str(tmp_path / "m.json"), exposed=False)
    found: dict[int, list[Decimal]] = {0: [], 1: []}
    for event in events_of(tmp_path / "m.json"):
        if event["ph"] == "X":
            found[event["pid"] // PIDS_PER_RANK].append(event["ts"] + event["dur"])
    assert len(found[0]) == 12
    assert [abs(a - b) <= Decimal("0.001") for a, b in zip(found[0], found[1], strict=True)] == [True] * 12


def test_processes_ids_and_links_of_ranks_do_not_meet(tmp_path: Path) -> None:
    """Both ranks have GPU 0, flow 1 and correlation 7; ids that stand for "none" stay."""
    flow = {"ph": "s", "id": 1, "pid": 9, "tid": 9, "ts": 1.5, "cat": "ac2g", "name": "ac2g"}
    call = {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": 9, "tid": 9, "ts": 1, "dur": 1}
    own = [
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "process_labels", "pid": 1, "tid": 0, "ts": 0, "args": {"labels": "GPU 1"}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 7, "ts": 0, "args": {"name": "stream 7"}},
        flow,
        {**call, "args": {"correlation": 7, "External id": -1, "x": {"kept": [1.50, "}], {"]}}},
        nccl(2.0, 5.0),
    ]
    paths = two_files(tmp_path, [own, own], baseTimeNanoseconds=1_790_000_000_000_000_000)
    merge(analysed(paths), str(tmp_path / "m.json"))
    found = events_of(tmp_path / "m.json")
    assert len({e["id"] for e in found if e["ph"] == "s"}) == 2
    calls = [e for e in found if e["name"] == "launch"]
    kernels = [e for e in found if e.get("cat") == "kernel"]
    assert {e["args"]["correlation"] for e in calls} == {e["args"]["correlation"] for e in kernels}
    assert len({e["args"]["correlation"] for e in calls}) == 2
    assert [e["args"]["External id"] for e in calls] == [-1, -1]
    assert calls[0]["args"]["x"] == {"kept": [Decimal("1.5"), "}], {"]}
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert len(names) == len(set(names.values()))
    assert {"rank 0: GPU 0", "rank 1: GPU 0", "rank 0: exposed communication"} <= set(names.values())
    assert not any("GPU 1" in name for name in names.values())
    order = {e["pid"]: e["args"]["sort_index"] for e in found if e["name"] == "process_sort_index"}
    assert [names[p].split(":")[0] for p in sorted(order, key=order.__getitem__)] == ["rank 0"] * 3 + ["rank 1"] * 3
    streams = {e["pid"] for e in found if e["name"] == "thread_name" and e["args"]["name"] == "stream 7"}
    assert {names[p] for p in streams} == {"rank 0: GPU 0", "rank 1: GPU 0"}


def test_times_keep_every_digit(tmp_path: Path) -> None:
    """Older traces count microseconds from 1970; the difference of two times is the written one."""
    text = json.dumps([nccl(0, 1), nccl(1, 1)])
    text = text.replace('"ts": 0,', '"ts": 1698955364380200.319,').replace('"ts": 1,', '"ts": 1698955364380201.3205,')
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": {text}, "distributedInfo": {{"rank": 0, "world_size": 1}}}}')
    merge(analysed([path]), str(tmp_path / "m.json"), exposed=False)
    top = plain(tmp_path / "m.json")
    first, second = (e["ts"] for e in top["traceEvents"] if e["ph"] == "X")
    assert second - first == Decimal("1.0015")
    assert first * 1000 + top["baseTimeNanoseconds"] == 1698955364380200319


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    """Four times as much text takes no more memory, but for what the last piece of it happens to be."""
    peaks = []
    for count in (10_000, 40_000):
        filler = [{**nccl(float(i), 0.5, Seq=i), "id": i} for i in range(count)]
        (path,) = two_files(tmp_path, [filler])
        run = analysed([path])
        tracemalloc.start()
        merge(run, str(tmp_path / "m.json.gz"), exposed=False)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert path.stat().st_size > 8 * (1 << 20)
    assert peaks[1] < 1.25 * peaks[0] < 20_000_000


def test_a_file_that_is_torn_meanwhile_leaves_no_half_result(tmp_path: Path) -> None:
    """The merged file appears whole or not at all."""
    paths = two_files(tmp_path, [[nccl(1, 1)], [nccl(1, 1)]])
    run = analysed(paths)
    paths[1].write_text(paths[1].read_text()[:-20])
    with pytest.raises(TraceError, match=r"rank1\.json"):
        merge(run, str(tmp_path / "m.json"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank0.json", "rank1.json"]


def test_it_does_not_write_over_a_trace(tmp_path: Path) -> None:
    """Nor to a name whose form nobody would know."""
    paths = two_files(tmp_path, [[nccl(1, 1)]])
    run = analysed(paths)
    with pytest.raises(UsageError, match="one of the traces"):
        merge(run, str(paths[0]))
    with pytest.raises(UsageError, match=r"\.json"):
        merge(run, str(tmp_path / "m.zip"))
