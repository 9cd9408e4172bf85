"""Generated jobs are read back as they were simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tracegen import LINKS, NOISE, RANKS_PER_HOST, Truth, write_big, write_job

from loopopt.parse import parse_trace
from loopopt.traces import NO_ID, Category, RankTrace


def sums(trace: RankTrace) -> tuple[int, int, int]:
    """(compute, communication, exposed) in ns, instant by instant over the sorted edges."""
    kernels = trace.category == Category.KERNEL
    talks = np.array(["nccl" in name for name in trace.names])[trace.name]
    edges = np.unique(np.concatenate((trace.start_ns[kernels], trace.end_ns[kernels])))
    cover = np.zeros((2, len(edges)), np.int64)
    for row, chosen in enumerate((kernels & ~talks, kernels & talks)):
        np.add.at(cover[row], np.searchsorted(edges, trace.start_ns[chosen]), 1)
        np.add.at(cover[row], np.searchsorted(edges, trace.end_ns[chosen]), -1)
    computing, talking = (np.cumsum(cover, axis=1) > 0)[:, :-1]
    length = np.diff(edges)
    return int(length[computing].sum()), int(length[talking].sum()), int(length[talking & ~computing].sum())


def read(truth: Truth) -> dict[int, RankTrace]:
    traces = [parse_trace(path) for path in truth.files]
    return {trace.rank: trace for trace in traces if trace.rank is not None}


@pytest.mark.parametrize("mesh", [None, (4, 3)])
@pytest.mark.parametrize("python", [False, True])
def test_parsed_sums_are_those_of_the_simulation(mesh: tuple[int, int] | None, python: bool, tmp_path: Path) -> None:
    """Compute, communication and exposed time of every rank come back to the nanosecond."""
    truth = write_job(tmp_path, ranks=12, steps=2, layers=3, mesh=mesh, seed=5, python=python, late_rank=4)
    traces = read(truth)
    assert sorted(traces) == list(range(12))
    for rank, trace in traces.items():
        expected = truth.ranks[rank]
        assert sums(trace) == (expected.compute_ns, expected.communication_ns, expected.exposed_ns)
        assert int((trace.category == Category.KERNEL).sum()) == expected.kernels
        assert trace.host == truth.host_of[rank] == f"host{rank // RANKS_PER_HOST:04d}"
        assert trace.world_size == 12
        assert trace.device == "NVIDIA H100 80GB HBM3"
        assert trace.dropped == 0
        assert len(trace.groups) == (1 if mesh is None else 3)
        steps = [trace.names[n] for n in trace.name if trace.names[n].startswith("ProfilerStep")]
        assert steps == [f"ProfilerStep#{n}" for n in truth.steps]


def test_collectives_end_together_after_the_last_arrival(tmp_path: Path) -> None:
    """With clock offsets taken off, each collective is `transfer` long on the rank that came last."""
    truth = write_job(tmp_path, ranks=16, steps=2, layers=2, mesh=(4, 4), seed=3, late_rank=6)
    assert any(truth.clock_offsets_ns.values())
    starts: dict[tuple[str, int], dict[int, int]] = {}
    ends: dict[tuple[str, int], set[int]] = {}
    for rank, trace in read(truth).items():
        offset = truth.clock_offsets_ns[trace.host]
        for row in np.flatnonzero((trace.category == Category.KERNEL) & (trace.collective != NO_ID)):
            args = trace.collectives[trace.collective[row]]
            starts.setdefault((args.group, args.seq), {})[rank] = int(trace.start_ns[row]) - offset
            ends.setdefault((args.group, args.seq), set()).add(int(trace.end_ns[row]) - offset)
    assert len(starts) == len(truth.transfers)
    for transfer in truth.transfers:
        arrived = starts[transfer.group, transfer.seq]
        assert tuple(sorted(arrived)) == transfer.ranks
        (end,) = ends[transfer.group, transfer.seq]
        assert end - max(arrived.values()) == transfer.transfer_ns
        assert arrived[transfer.late_rank] == max(arrived.values())
        latency, bandwidth = LINKS[transfer.kind]
        ideal = latency + transfer.message_bytes / bandwidth
        assert abs(transfer.transfer_ns - ideal) <= NOISE * ideal + 1
    backward = [t for t in truth.transfers if t.kind == "reduce_scatter" and 6 in t.ranks]
    assert {t.late_rank for t in backward} == {6}


def test_same_seed_same_files(tmp_path: Path) -> None:
    """Files depend on nothing but the arguments."""
    one, two, other = (
        write_job(tmp_path / name, ranks=2, steps=1, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert [p.read_bytes() for p in one.files] == [p.read_bytes() for p in two.files]
    assert one.files[0].read_bytes() != other.files[0].read_bytes()


def test_a_big_file_is_of_the_size_asked_for(tmp_path: Path) -> None:
    """The streaming writer ends with the first step past the target, and its sums are right as well."""
    truth = write_big(tmp_path / "big.json", 3_000_000, layers=3)
    assert 3_000_000 <= truth.files[0].stat().st_size < 4_000_000
    expected = truth.ranks[0]
    assert sums(parse_trace(truth.files[0])) == (expected.compute_ns, expected.communication_ns, expected.exposed_ns)


def test_compressed_files_read_the_same(tmp_path: Path) -> None:
    """Compression changes the name and nothing else."""
    plain = write_job(tmp_path / "plain", ranks=2, steps=1)
    small = write_job(tmp_path / "small", ranks=2, steps=1, compress=True)
    assert small.files[0].name == "rank0.pt.trace.json.gz"
    for a, b in zip(read(plain).values(), read(small).values(), strict=True):
        assert (a.start_ns == b.start_ns).all()
        assert a.names == b.names
