"""However small the pieces, the result is that of the whole; whatever the layout of the file, it is read."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_parse_kineto import event
from test_parse_public import catalogue

from loopopt.errors import TraceError
from loopopt.parse import parse_trace
from loopopt.parse.columns import COLUMNS
from loopopt.parse.kineto import parse_in_pieces
from loopopt.parse.pieces import Pieces, element_offset
from loopopt.traces import RankTrace

TINY = (1, 7, 64, 300, 4096)


def pieces(path: Path, chunk: int) -> RankTrace:
    return parse_in_pieces(str(path), max_bytes=1 << 32, chunk=chunk)


def assert_same(a: RankTrace, b: RankTrace) -> None:
    for field in dataclasses.fields(RankTrace):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if field.name in COLUMNS:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right, field.name)
        else:
            assert left == right, field.name


def outcome(path: Path, chunk: int) -> RankTrace | TraceError:
    try:
        return pieces(path, chunk)
    except TraceError as err:
        return err


@pytest.mark.traces
def test_public_files_in_small_pieces() -> None:
    """Every file of the collection reads the same in pieces of 50 kB."""
    for path, _ in catalogue():
        whole, cut = outcome(path, 1 << 28), outcome(path, 50_000)
        if isinstance(whole, TraceError):
            assert isinstance(cut, TraceError), path
            assert cut.offset == whole.offset, path
        else:
            assert isinstance(cut, RankTrace), (path, cut)
            assert_same(whole, cut)


# ---------------------------------------------------------------- made-up documents

WORDS = st.text(st.sampled_from('ab "\\{}[],:\u00e9\n'), max_size=8)
# Text that looks like a boundary, like the events, like their end.
TRAPS = st.sampled_from(
    ['}, {"ph": "X"', '},{"a":', '"traceEvents": [', "]", "]}", '\\"}, {"x":', "} , {", '[{"ph":"X"},{"ph":"X"}]', "\\"]
)
TEXTS = WORDS | TRAPS
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.just("traceEvents"), inner, max_size=3),
    max_leaves=8,
)
EVENT = st.builds(
    lambda name, ph, cat, ts, dur, args, extra: {
        **extra, "ph": ph, "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args,
    },
    name=TEXTS,
    ph=st.sampled_from(["X", "X", "X", "M", "s", "B", "E"]),
    cat=st.sampled_from(["kernel", "cpu_op", "python_function", "ac2g"]),
    ts=st.integers(0, 10**6).map(lambda n: n / 1000) | st.integers(0, 1000),
    dur=st.integers(0, 50) | st.none(),
    args=st.fixed_dictionaries({}, optional={
        "correlation": st.integers(0, 5), "External id": st.integers(0, 3), "x": JSON,
        "list": st.lists(st.fixed_dictionaries({"a": TEXTS, "b": JSON}), max_size=3),
    }),
    extra=st.dictionaries(st.sampled_from(["id", "bp", "q"]), JSON, max_size=2),
)  # fmt: skip
OTHERS = st.dictionaries(TEXTS.filter(lambda k: k != "traceEvents"), JSON, max_size=3)


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    events = draw(st.lists(EVENT, max_size=8))
    layout: dict[str, Any] = {
        "indent": draw(st.sampled_from([None, 1, "\t"])),
        "separators": draw(st.sampled_from([(",", ":"), (" , ", " : ")])),
        "ensure_ascii": draw(st.booleans()),
    }
    content: Any = events
    if draw(st.booleans()):
        info = {"distributedInfo": {"rank": 1, "world_size": 2, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]}}
        before, after = draw(OTHERS), draw(OTHERS)
        content = {**before, "traceEvents": events, **{k: v for k, v in after.items() if k not in before}, **info}
    mark = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    blank = draw(st.sampled_from([b"", b"\n", b" \r\n\t"]))
    return mark + blank + json.dumps(content, **layout).encode() + blank


def whole(data: bytes) -> list[Any]:
    """The events by one call of the decoder."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    value = msgspec.json.decode(text)
    return list(value if isinstance(value, list) else value["traceEvents"])


@settings(deadline=None)
@given(documents(), st.sampled_from(TINY))
def test_pieces_are_together_the_whole(data: bytes, chunk: int) -> None:
    """Any valid document reads the same in pieces of any size, and no event is lost."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.json")
        path.write_bytes(data)
        at_once, cut = outcome(path, 1 << 20), outcome(path, chunk)
    if isinstance(at_once, TraceError):
        assert "ends before it begins" in str(at_once)  # all else about these documents is sound
        assert str(cut) == str(at_once)
        return
    assert isinstance(cut, RankTrace), cut
    assert_same(at_once, cut)
    expected = [e for e in whole(data) if e["ph"] == "X" and e["cat"] in ("kernel", "cpu_op")]
    used = [e for e in expected if e["dur"] is not None]
    begun = [e for e in whole(data) if e["ph"] == "B"]
    assert len(used) >= len(at_once) - len(begun)
    if not begun:
        assert at_once.dropped >= len(expected) - len(used)
        ids = {json.dumps(e, sort_keys=True) for e in used}
        assert len(at_once) >= len({(e["name"], e["ts"], e["dur"], e["cat"]) for e in used})
        assert len(at_once) >= min(1, len(ids))


@settings(deadline=None)
@given(documents(), st.data())
def test_torn_and_damaged_documents_are_refused_alike(data: bytes, more: st.DataObject) -> None:
    """Cut anywhere, or with one byte changed, small pieces are refused exactly when the whole is."""
    place = more.draw(st.integers(0, max(len(data) - 1, 0)))
    byte = more.draw(st.none() | st.sampled_from(list(b'{}[],:"\\x0 ')))
    damaged = data[:place] if byte is None else data[:place] + bytes([byte]) + data[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.json")
        path.write_bytes(damaged)
        at_once, cut = outcome(path, 1 << 20), outcome(path, more.draw(st.sampled_from(TINY)))
    if isinstance(at_once, RankTrace):
        assert isinstance(cut, RankTrace), cut
        assert_same(at_once, cut)
    else:
        assert isinstance(cut, TraceError)
    # And both are refused exactly when one call of the decoder refuses the text as JSON.
    try:
        msgspec.json.decode(damaged.removeprefix(b"\xef\xbb\xbf"), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        assert isinstance(at_once, TraceError)


@settings(deadline=None)
@given(st.lists(JSON, min_size=1, max_size=5), st.data())
def test_elements_are_found_in_their_text(values: list[Any], data: st.DataObject) -> None:
    """The place of an element is where its own text begins, also when the array does not end."""
    index = data.draw(st.integers(0, len(values) - 1))
    text = json.dumps(values).encode()
    for shown in (text, text[:-1]):
        assert shown[element_offset(shown, index) :].startswith(json.dumps(values[index]).encode())


LAYOUTS = {
    "events last": '{"a": 1, "traceEvents": [EVENTS]}',
    "events first": '{"traceEvents": [EVENTS], "distributedInfo": {"rank": 3}}',
    "name in a string": '{"a": "\\"traceEvents\\": [", "traceEvents": [EVENTS]}',
    "name in an object": '{"a": {"traceEvents": [{"ph": "X"}]}, "traceEvents": [EVENTS]}',
    "escaped name": '{"a": 0, "trace\\u0045vents": [EVENTS]}',
    "twice": '{"traceEvents": [{"ph":"X","cat":"kernel","name":"z","ts":1,"dur":1}], "traceEvents": [EVENTS]}',
    "bare": "[EVENTS]",
    "objects after": '{"traceEvents": [EVENTS], "l": [{"a": 1}, {"b": [2]}, {"c": 3}], "m": [1, [2]]}',
    "a list at the end": '{"traceEvents": [EVENTS], "l": [1, 2]}',
}


@pytest.mark.parametrize("chunk", TINY)
@pytest.mark.parametrize("case", sorted(LAYOUTS))
def test_layouts(case: str, chunk: int, tmp_path: Path) -> None:
    """The events are found wherever they are, and only they."""
    events = [event(f"k{i}", ts=i, l=[{"a": "}, {"}, {"b": "]"}]) for i in range(20)]
    path = tmp_path / "rank3.json"
    path.write_text(LAYOUTS[case].replace("EVENTS", json.dumps(events)[1:-1]))
    trace = pieces(path, chunk)
    assert [trace.names[n] for n in trace.name] == [f"k{i}" for i in range(20)]
    assert trace.rank == 3


@pytest.mark.parametrize("text", ["[]", " [ ] ", '{"traceEvents": []}', '{"a":[{}],"traceEvents":[ ],"b":[{},{}]}'])
@pytest.mark.parametrize("chunk", TINY)
def test_no_events(text: str, chunk: int, tmp_path: Path) -> None:
    """A trace without events is one with no rows."""
    path = tmp_path / "x.json"
    path.write_text(text)
    assert len(pieces(path, chunk)) == 0


@pytest.mark.parametrize("chunk", TINY)
def test_an_event_longer_than_a_piece(chunk: int, tmp_path: Path) -> None:
    """The buffer grows for it."""
    long = event("k" * 50_000, x=[{"a": i} for i in range(2000)])
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": [event("a"), long, event("b", ts=99)], "x": [{"a": 1}, {"b": 2}]}))
    assert len(pieces(path, chunk)) == 3


@pytest.mark.parametrize("chunk", TINY)
def test_offsets_are_those_in_the_file(chunk: int, tmp_path: Path) -> None:
    """Errors in the first and last event, before and after the events point at the fault, in any piece size."""
    good = json.dumps({"a": [1], "traceEvents": [event(f"k{i}", ts=i) for i in range(30)], "b": [2]})
    beginning = '{"ph": "X", "cat": "kernel", "name": '
    faults = {
        '"ts": 17': ('"ts": []', good.index(beginning + '"k17"')),
        '"ts": 21': ('"ts": 1e300', good.index(beginning + '"k21"')),
        '"name": "k25"': ('"name": xk25', good.index('"k25"')),
        '"a": [1]': ('"a": [x]', good.index("1]")),
        '"b": [2]': ('"b": [x]', good.index("2]")),
    }  # fmt: skip
    mark = b"\xef\xbb\xbf \n"
    for old, (new, place) in faults.items():
        for front in (b"", mark):
            path = tmp_path / "x.json"
            path.write_bytes(front + good.replace(old, new, 1).encode())
            with pytest.raises(TraceError) as caught:
                pieces(path, chunk)
            assert caught.value.offset == len(front) + place, (old, front)
    torn = tmp_path / "torn.json"
    for length in (5, 300, len(good) - 1):
        torn.write_bytes(mark + good[:length].encode())
        with pytest.raises(TraceError, match="torn") as caught:
            pieces(torn, chunk)
        assert caught.value.offset == len(mark) + length


def test_messages_number_events_in_the_file(tmp_path: Path) -> None:
    """The index of a wrong event is the one in the file, not in its piece."""
    events = [event(f"k{i}", ts=i) for i in range(40)]
    events[33]["ph"] = 5
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(TraceError, match=r"\$\.traceEvents\[33\]\.ph"):
        pieces(path, 300)


@settings(deadline=None)
@given(documents(), st.sampled_from(TINY))
def test_decoded_pieces_hold_every_event_once(data: bytes, chunk: int) -> None:
    """The pieces' own events, undone of any columns, are those of one call of the decoder."""

    class Source:
        def __init__(self) -> None:
            self._parts: Iterator[bytes] = iter([data[i : i + chunk] for i in range(0, len(data), chunk)])

        def read(self, size: int) -> bytes:
            return next(self._parts, b"")

    found: list[Any] = []
    for part in Pieces("x", Source(), lambda text: msgspec.json.decode(text), found.clear, chunk):  # type: ignore[arg-type]
        found += part
    assert found == whole(data)


# ---------------------------------------------------------------- compression and addresses

CONTENT = json.dumps({"traceEvents": [event(f"k{i}", ts=i) for i in range(50)]}).encode()


def test_gzip_of_several_members(tmp_path: Path) -> None:
    """Members one after the other are one text."""
    path = tmp_path / "x.json"
    path.write_bytes(b"".join(gzip.compress(CONTENT[i : i + 700]) for i in range(0, len(CONTENT), 700)))
    assert len(parse_trace(path)) == 50


def test_zstd(tmp_path: Path) -> None:
    """Frames, also several and ones to be skipped, are one text; a torn or damaged one is refused."""
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    path = tmp_path / "renamed.json"
    skipped = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
    frames = [zstd.compress(CONTENT[i : i + 700]) for i in range(0, len(CONTENT), 700)]
    for data in (zstd.compress(CONTENT), b"".join(frames), skipped + b"".join(frames)):
        path.write_bytes(data)
        assert len(parse_trace(path)) == 50
    path.write_bytes(zstd.compress(CONTENT)[:-20])
    with pytest.raises(TraceError, match="zstd stream is torn"):
        parse_trace(path)
    damaged = bytearray(zstd.compress(CONTENT))
    damaged[40] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(TraceError):
        parse_trace(path)
    path.write_bytes(zstd.compress(b"[" + b" " * 10_000_000 + b"]"))
    with pytest.raises(TraceError, match="allowed"):
        parse_trace(path, max_bytes=1_000_000)


def test_addresses_are_read_through_fsspec(tmp_path: Path) -> None:
    """Any address with a scheme is opened by fsspec, compressed or not."""
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://traces/rank7.json", "wb") as file:
        file.write(CONTENT)
    trace = parse_trace("memory://traces/rank7.json")
    assert (len(trace), trace.rank) == (50, 7)
    (tmp_path / "x.gz").write_bytes(gzip.compress(CONTENT))
    assert len(parse_trace(f"file://{tmp_path}/x.gz")) == 50
    for address in ("memory://traces/none.json", "nosuchscheme://x/y.json", f"file://{tmp_path}/none"):
        with pytest.raises(TraceError, match="cannot be read"):
            parse_trace(address)


def test_local_files_do_not_import_fsspec(tmp_path: Path) -> None:
    """Reading a plain file loads neither fsspec nor a zstd library."""
    path = tmp_path / "x.json"
    path.write_bytes(CONTENT)
    code = (
        f"import sys; from loopopt.parse import parse_trace; parse_trace({str(path)!r}); "
        "print([m for m in sys.modules if m.partition('.')[0] in ('fsspec', 'backports', 'compression')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
