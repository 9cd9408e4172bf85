"""Kineto files become columns; files that cannot be used become errors that say where and why."""

from __future__ import annotations

import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopopt.errors import TraceError
from loopopt.parse import parse_trace
from loopopt.parse.times import needs_decimals, to_ns
from loopopt.traces import NO_ID, Category


def event(name: str = "k", cat: str = "kernel", ts: float = 10, dur: float = 5, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def write(folder: Path, content: object, name: str = "rank3.json") -> Path:
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def test_columns_of_an_object_file(tmp_path: Path) -> None:
    """An object file gives sorted columns, interned names, groups and absolute nanoseconds."""
    pg = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [1, 0]}
    path = write(
        tmp_path,
        {
            "baseTimeNanoseconds": 1_790_857_026_000_000_000,
            "host_name": "a",
            "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2, "pg_config": [pg]},
            "traceEvents": [
                event("late", ts=5234992098909.621, dur=0.001, correlation=4),
                event(
                    "aten::mm",
                    "cpu_op",
                    ts=3,
                    dur=2,
                    **{"Input Dims": [[2, 3], [3, 4], []], "Input type": ["float", "float", "Scalar"]},
                ),
                event(
                    "aten::mm",
                    "cpu_op",
                    ts=9,
                    dur=2,
                    **{"Input Dims": [[2, 3], [3, 4], []], "Input type": ["float", "float", "Scalar"]},
                ),
                {"ph": "M", "name": "process_name", "pid": "Spans", "tid": 0, "args": {"name": "x"}},
                {"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 1},
            ],
        },
    )
    trace = parse_trace(path)
    assert (trace.rank, trace.world_size, trace.backend, trace.host) == (1, 2, "nccl", "a")
    assert trace.groups["0"].ranks == (0, 1)
    assert [trace.names[i] for i in trace.name] == ["aten::mm", "aten::mm", "late"]
    assert trace.category.tolist() == [Category.OPERATOR, Category.OPERATOR, Category.KERNEL]
    assert trace.start_ns.tolist()[2] == 1_790_857_026_000_000_000 + 5234992098909621
    assert trace.duration_ns.tolist() == [2000, 2000, 1]
    assert trace.correlation.tolist() == [NO_ID, NO_ID, 4]
    assert trace.signature.tolist() == [0, 0, NO_ID]
    assert trace.signatures[0].shapes == (((2, 3),), ((3, 4),), ())


def test_bare_array_old_categories_and_gzip(tmp_path: Path) -> None:
    """A bare array with the categories of old releases reads the same, compressed or not, whatever its name."""
    content = [event("k", "Kernel", dur=0), event("copy", "Memcpy"), event("op", "Operator"), event("rt", "Runtime")]
    for name in ("rank3.json", "rank3.json.gz"):
        trace = parse_trace(write(tmp_path, content, name))
        assert trace.rank == 3, "taken from the file name"
        assert sorted(trace.category.tolist()) == [
            Category.KERNEL, Category.MEMCPY, Category.OPERATOR, Category.RUNTIME,
        ]  # fmt: skip
    renamed = tmp_path / "renamed.json"
    renamed.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert len(parse_trace(renamed)) == 4


def test_duplicate_spans_count_once_but_repeated_calls_do_not(tmp_path: Path) -> None:
    """The same event written twice is one; two calls at one coarse clock tick are two."""
    twice = [event("k", correlation=5)] * 2 + [event("op", "cpu_op")] * 2
    trace = parse_trace(write(tmp_path, twice))
    assert np.bincount(trace.category).tolist() == [1, 0, 0, 2]


def test_collective_metadata(tmp_path: Path) -> None:
    """A kernel's collective metadata is kept; a rank list the trace shortened is none."""
    base = {"Collective name": "all_gather", "Process Group Name": "7", "Group size": 2, "In msg nelems": 4,
            "Out msg nelems": 8, "dtype": "BFloat16", "Seq": 12}  # fmt: skip
    trace = parse_trace(
        write(
            tmp_path,
            [
                event("nccl", ts=1, **base, **{"Process Group Ranks": "[0, 1]"}),
                event("nccl", ts=2, **base, **{"Process Group Ranks": "[0, 1, ...]"}),
                event("other", ts=3),
            ],
        )
    )
    first, second = (trace.collectives[i] for i in trace.collective.tolist()[:2])
    assert (first.name, first.group, first.group_size, first.seq, first.ranks) == ("all_gather", "7", 2, 12, (0, 1))
    assert second.ranks == ()
    assert trace.collective.tolist()[2] == NO_ID


@given(st.lists(st.integers(-(10**15), 1_800_000_000_000_000_000), min_size=1, max_size=20))
def test_times_are_exact_to_the_nanosecond(nanoseconds: list[int]) -> None:
    """Any time with three decimals comes back exactly, through floats where they suffice, else through decimals."""
    texts = [str(Decimal(n) / 1000) for n in nanoseconds]
    values: list[Any] = [json.loads(t) for t in texts]
    if needs_decimals(values):
        values = [Decimal(t) for t in texts]
    assert to_ns(values).tolist() == nanoseconds


def test_epoch_times_with_fractions_are_exact(tmp_path: Path) -> None:
    """Microseconds since 1970 with three decimals do not fit a float64 and are still read exactly."""
    text = b'[{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":1,"ts":1712195495505651.537,"dur":35.225}]'
    trace = parse_trace(write(tmp_path, text))
    assert trace.start_ns.tolist() == [1712195495505651537]
    assert trace.duration_ns.tolist() == [35225]


GOOD = json.dumps({"traceEvents": [event("a"), event("b")]}).encode()

BAD = {
    "empty": (b"", "empty"),
    "blank": (b" \n ", "empty"),
    "torn": (GOOD[:-20], "torn"),
    "not json": (b"{'traceEvents': []}", "not valid JSON"),
    "trailing": (GOOD + b"}", "not valid JSON"),
    "no events": (b'{"a": 1}', "traceEvents"),
    "a number": (b"7", "wrong field"),
    "time is text": (GOOD.replace(b'"ts": 10', b'"ts": "x"'), "ts"),
    "no time": (GOOD.replace(b'"ts": 10', b'"tz": 10'), "'ts'"),
    "huge time": (GOOD.replace(b'"ts": 10', b'"ts": 1e300'), "no time"),
    "huge integer": (GOOD.replace(b'"ts": 10', b'"ts": ' + b"9" * 40), "no time"),
    "beyond float": (GOOD.replace(b'"ts": 10', b'"ts": 1e999'), "out of range"),
    "negative duration": (GOOD.replace(b'"dur": 5', b'"dur": -5'), "negative"),
    "not a number": (GOOD.replace(b'"dur": 5', b'"dur": NaN'), "not valid JSON"),
    "huge name": (GOOD.replace(b'"name": "b"', b'"name": "' + b"b" * (1 << 21) + b'"'), "name of"),
    "deep": (b'{"x":' + b"[" * 200_000, "nested too deeply"),
    "shapes are text": (json.dumps([event(**{"Input Dims": ["a"], "Input type": ["float"]})]).encode(), "shapes"),
    "huge base": (b'{"baseTimeNanoseconds": 9223372036854775807, "traceEvents": []}', "baseTimeNanoseconds"),
    "strange rank": (b'{"distributedInfo": {"rank": "x"}, "traceEvents": []}', "distributedInfo"),
    "torn gzip": (gzip.compress(GOOD)[:-12], "torn"),
    "damaged gzip": (gzip.compress(GOOD)[:-8] + b"\0" * 8, "damaged"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_unusable_files_are_errors_that_say_why(case: str, tmp_path: Path) -> None:
    """Each kind of unusable file is a `TraceError` with the path and the reason."""
    content, reason = BAD[case]
    path = write(tmp_path, content, "bad.json")
    with pytest.raises(TraceError) as caught:
        parse_trace(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)


def test_offsets_point_at_the_fault(tmp_path: Path) -> None:
    """The offset is where the event with the wrong field begins, or where torn text ends."""
    with pytest.raises(TraceError) as caught:
        parse_trace(write(tmp_path, GOOD.replace(b'"b", "pid": 0, "tid": 7, "ts": 10', b'"b", "ts": null')))
    offset = caught.value.offset
    assert offset is not None
    assert GOOD[offset:].startswith(json.dumps(event("b")).encode()[:20])
    with pytest.raises(TraceError) as caught:
        parse_trace(write(tmp_path, GOOD[:50]))
    assert caught.value.offset == 50


@given(st.integers(0, len(GOOD) - 1))
def test_every_torn_prefix_is_refused(length: int) -> None:
    """No proper prefix of a trace is taken for a whole one."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, pytest.raises(TraceError):
        parse_trace(write(Path(folder), GOOD[:length]))


def test_size_is_bounded_also_for_small_files_that_unpack_to_large_ones(tmp_path: Path) -> None:
    """More text than allowed is refused, before and after unpacking."""
    blank = b"[" + b" " * 100_000 + b"]"
    for name in ("x.json", "x.json.gz"):
        with pytest.raises(TraceError, match="allowed"):
            parse_trace(write(tmp_path, blank, name), max_bytes=10_000)


def test_missing_files_folders_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    """What is not a readable regular file is an error, and never blocks."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "pipe"):
        with pytest.raises(TraceError):
            parse_trace(path)
