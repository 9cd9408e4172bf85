"""Traces laid out for HolisticTraceAnalysis and TensorBoard; HTA itself where an environment has it.

HTA brings many packages and wants an old pandas, so it has an environment of its own: LOOPOPT_TEST_HTA_PYTHON names its
interpreter, else the one that `make bench-parse` sets up is taken (.venv-hta). LOOPOPT_TEST_TENSORBOARD_PYTHON does
the same for torch-tb-profiler, else loopopt's own is asked.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loopopt.analysis import RunAnalysis
from loopopt.cli.main import main
from loopopt.errors import UsageError
from loopopt.offline import analyze
from loopopt.offline.external import device_time, for_hta, for_tensorboard, reasons_of
from loopopt.parse import parse_trace

REPOSITORY = Path(__file__).parents[3]
TWO = REPOSITORY / "tests" / "data" / "traces" / "gloo_2ranks"
Event = dict[str, Any]


def run_of(*paths: Path) -> RunAnalysis:
    (run,) = analyze([str(p) for p in paths], executor="serial").runs
    return run


def step(number: int, start: float, length: float) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 9, "tid": 9, "ts": start,
            "dur": length, "args": {}}  # fmt: skip


def launched(name: str, launch: float | None, start: float, length: float, number: int) -> list[Event]:
    """A kernel, and its launch on the host if there is one."""
    stream = 20 if "ccl" in name else 7
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length,
              "args": {"correlation": number, "stream": stream, "device": 0}}  # fmt: skip
    if launch is None:
        return [kernel]
    call = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": launch, "dur": 5,
            "args": {"correlation": number}}  # fmt: skip
    return [call, kernel]


def write(path: Path, events: list[Event], rank: int | None = 0, world: int = 1) -> Path:
    """As PyTorch writes it: HTA looks for the rank in the text."""
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **info, "traceEvents": events}, indent=1))
    return path


# One step: compute 1100-1200 and 1300-1370, communication 1250-1350.
PLAIN = [step(1, 1000, 900), *launched("gemm", 1000, 1100, 100, 1), *launched("gemm", 1010, 1300, 70, 2),
         *launched("ncclDevKernel_AllReduce_Sum(args)", 1020, 1250, 100, 3)]  # fmt: skip
# The same work again in a second step.
TWICE = [*PLAIN, step(2, 2000, 900), *launched("gemm", 2000, 2100, 100, 4)]

# ---------------------------------------------------------------- layout


def test_hta_gets_a_link_to_each_file_it_can_read(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / "traces" / f"r{rank}.json", PLAIN, rank, world=2)
    handed = for_hta(run_of(tmp_path / "traces"), str(tmp_path / "out"))
    assert [(h.rank, h.why) for h in handed] == [(0, ""), (1, "")]
    assert sorted(os.listdir(tmp_path / "out")) == ["rank0.json", "rank1.json"]
    assert (tmp_path / "out" / "rank1.json").resolve() == (tmp_path / "traces" / "r1.json").resolve()


@pytest.mark.parametrize("case", ["zstd", "an array", "its rank"])
def test_hta_gets_a_copy_of_what_it_would_not_read(case: str, tmp_path: Path) -> None:
    """The copy has its rank where HTA looks for it, and reads the same here; the trace itself stays as it is."""
    source = write(tmp_path / "traces" / "rank3.json", PLAIN, None if case == "its rank" else 3, world=4)
    if case == "an array":
        source.write_text(json.dumps(PLAIN))
    elif case == "zstd":
        zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
        packed = source.with_suffix(".json.zst")
        packed.write_bytes(zstd.compress(source.read_bytes()))
        source.unlink()
        source = packed
    before = source.read_bytes()
    (handed,) = for_hta(run_of(source), str(tmp_path / "out"))
    assert case in handed.why
    text = gzip.decompress(Path(handed.path).read_bytes()).decode()
    assert re.search(r'"rank":\s+(\d+)', text)[1] == str(handed.rank)  # type: ignore[index]
    copy, own = parse_trace(handed.path), parse_trace(source)
    assert copy.rank == handed.rank
    assert device_time(copy) == device_time(own)
    assert (copy.start_ns == own.start_ns).all()
    assert source.read_bytes() == before
    assert not os.path.islink(handed.path)


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """HTA would read that too."""
    run = run_of(write(tmp_path / "traces" / "r0.json", PLAIN))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.json").write_text("{}")
    with pytest.raises(UsageError, match="not empty"):
        for_hta(run, str(tmp_path / "out"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        for_hta(run, str(tmp_path / "file"))


def test_tensorboard_gets_a_folder_per_run_and_a_worker_per_rank(tmp_path: Path) -> None:
    run = run_of(TWO)
    handed = for_tensorboard(run, str(tmp_path))
    (folder,) = tmp_path.iterdir()
    # What its profiler takes for traces, and for the worker's name.
    pattern = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")
    workers = sorted(pattern.match(n)[1] for n in os.listdir(folder))  # type: ignore[index]
    assert [w.rpartition("_")[2] for w in workers] == ["0", "1"]
    assert all(w.rpartition("_")[0] for w in workers)
    for h, file in zip(handed, run.files, strict=True):
        assert device_time(parse_trace(h.path)) == device_time(parse_trace(file.path))


# ---------------------------------------------------------------- the commands


def test_hta_only_makes_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "traces" / "r0.json", PLAIN)
    assert main(["hta", str(source), "--out", str(tmp_path / "out"), "--no-run"]) == 0
    out, err = capsys.readouterr()
    assert (out, "1 links and 0 copies" in err) == ("", True)
    assert main(["hta", str(source), "--no-run"]) == 2
    assert "--out" in capsys.readouterr().err


def test_hta_that_is_not_there_is_said_before_anything_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hta", "nowhere", "--run-python", "/no/such/python"]) == 8
    assert "/no/such/python" in capsys.readouterr().err


def test_tensorboard_s_command_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "traces" / "r0.json", PLAIN)
    assert main(["tensorboard", str(source), "--out", str(tmp_path / "logs"), "--no-start", "--port", "7007"]) == 0
    assert capsys.readouterr().out == f"tensorboard --logdir {tmp_path / 'logs'} --port 7007\n"


# ---------------------------------------------------------------- our numbers, and why HTA's are others


def test_our_times_in_the_terms_of_hta(tmp_path: Path) -> None:
    """Worked by hand."""
    found = device_time(parse_trace(write(tmp_path / "r.json", PLAIN)))
    assert (found.span_us, found.compute_us, found.other_us, found.idle_us) == (270, 170, 50, 50)
    assert found.overlap_percent == 50


CASES: dict[str, tuple[list[Event], str, dict[str, float]]] = {
    "nothing": (PLAIN, "", {"span_us": 270, "compute_us": 170, "other_us": 50, "idle_us": 50, "overlap_percent": 50}),
    "fractions": (
        [*PLAIN[:3], *launched("gemm", 1010, 1300.25, 69.5, 2), *PLAIN[5:]],
        "whole microseconds",
        {"compute_us": 100 + 68, "other_us": 51, "overlap_percent": 49},
    ),
    "last step": (TWICE, "last profiler step out: 1 ", {"span_us": 270, "compute_us": 170, "overlap_percent": 50}),
    "no launch": (
        [*TWICE, *launched("gemm", None, 1400, 40, 9)],
        "no launch in the trace: 1 ",
        {"span_us": 270, "compute_us": 170, "overlap_percent": 50},
    ),
    "rccl": (
        [*PLAIN[:5], *launched("rcclAllReduce(args)", 1020, 1250, 100, 3)],
        "not rcclAllReduce",
        {"compute_us": 220, "other_us": 0},
    ),
    "Sync": (
        [*PLAIN[:3], *launched("SyncBatchNorm_kernel<float>", 1010, 1300, 70, 2), *PLAIN[5:]],
        "no compute: SyncBatchNorm_kernel",
        {"compute_us": 100, "other_us": 120, "overlap_percent": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_reason_is_given_where_it_holds_and_nowhere_else(case: str, tmp_path: Path) -> None:
    events, reason, _ = CASES[case]
    found = reasons_of(parse_trace(write(tmp_path / "r.json", events)))
    if case == "no launch":
        assert len(found) == 2, "there HTA also leaves the last step out"
    else:
        assert len(found) == (case != "nothing")
    assert reason in " ".join(found)


# ---------------------------------------------------------------- HTA itself


def interpreter(variable: str, fallback: Path, module: str) -> str:
    python = os.environ.get(variable) or str(fallback)
    asked = [python, "-c", f"import {module}"]
    if not Path(python).exists() or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip(f"{module} is not installed for {python}; name an interpreter that has it with {variable}")
    return python


@pytest.fixture(scope="module")
def hta_python() -> str:
    fallback = REPOSITORY / ".venv-hta" / "bin" / "python"
    return interpreter("LOOPOPT_TEST_HTA_PYTHON", fallback, "hta.trace_analysis")


def beside(python: str, capsys: pytest.CaptureFixture[str], *paths: Path) -> list[dict[str, Any]]:
    """What `loopopt hta --json` prints."""
    assert main(["hta", *map(str, paths), "--run-python", python, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("case", CASES)
def test_hta_s_numbers_are_ours_but_for_the_reasons_given(
    case: str, hta_python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each reason in docs/hta.md shifts HTA's numbers by what it says; without one they are equal to ours."""
    events, _, expected = CASES[case]
    (one,) = beside(hta_python, capsys, write(tmp_path / "r.json", events))
    assert {name: one["theirs"][name] for name in expected} == pytest.approx(expected)
    differ = [n for n, ours in one["ours"].items() if one["theirs"][n] != pytest.approx(ours, abs=0.005)]
    assert bool(differ) == bool(one["reasons"]) == (case != "nothing")


def test_hta_keeps_one_of_two_files_of_a_rank_and_gets_only_one(
    hta_python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HTA names the loss in a warning only; here two files of one rank are two runs, and one has to be chosen."""
    write(tmp_path / "a.json", PLAIN)
    write(tmp_path / "b.json", [*PLAIN, *launched("gemm", 1030, 1600, 30, 5)])
    script = (
        "import sys; from hta.trace_analysis import TraceAnalysis;"
        "print('kept', len(TraceAnalysis(trace_dir=sys.argv[1]).t.traces))"
    )
    done = subprocess.run([hta_python, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "kept 1" in done.stdout
    assert main(["hta", str(tmp_path), "--run-python", hta_python]) == 2
    assert "--run 2" in capsys.readouterr().err


def test_ranks_without_kernels_are_refused(hta_python: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hta", str(TWO), "--run-python", hta_python]) == 8
    assert "CPU ranks" in capsys.readouterr().err


@pytest.mark.traces
def test_hta_s_numbers_of_public_traces(
    hta_python: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal where no reason is given; and where it rounds, equal as soon as it is told not to."""
    given = os.environ.get("LOOPOPT_TEST_TRACES")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "traces"
    if not (folder / "EXPECTED.json").is_file():
        pytest.skip("the public trace collection is not here; set LOOPOPT_TEST_TRACES to its folder")
    sets = json.loads((folder / "EXPECTED.json").read_text())["sets"]
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    for name in ("param_dlrm_8r", "megatron_tp2"):
        paths = [folder / path for path in sets[name]["files"].values()]
        for one in beside(hta_python, capsys, *paths):
            ours, theirs = one["ours"], one["theirs"]
            assert bool(one["reasons"]) == (name == "megatron_tp2")
            for part in ("span_us", "compute_us", "other_us", "idle_us"):
                assert theirs[part] == pytest.approx(ours[part], abs=0.01), (name, part)
            assert theirs["overlap_percent"] == pytest.approx(ours["overlap_percent"], abs=0.0051), name


def test_tensorboard_s_profiler_reads_the_ranks(tmp_path: Path) -> None:
    python = interpreter("LOOPOPT_TEST_TENSORBOARD_PYTHON", Path(sys.executable), "torch_tb_profiler")
    for rank in (0, 1):
        write(tmp_path / "traces" / f"r{rank}.json", PLAIN, rank, world=2)
    (tmp_path / "logs").mkdir()
    for_tensorboard(run_of(tmp_path / "traces"), str(tmp_path / "logs"))
    script = (
        "import sys; from torch_tb_profiler.profiler.loader import RunLoader; from torch_tb_profiler.io import Cache;"
        "run = RunLoader('run', sys.argv[1], Cache()).load(); print(sorted(p.worker for p in run.profiles.values()))"
    )
    (folder,) = (tmp_path / "logs").iterdir()
    done = subprocess.run([python, "-c", script, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"_0'.*_1'", done.stdout)
