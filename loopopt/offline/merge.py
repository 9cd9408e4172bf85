"""All ranks of one run in one trace file, on one clock, for Perfetto or chrome://tracing.

Every rank's events are passed through piece by piece; only what would collide or lie on another clock is
changed:

    pid                        a number of its own per rank and process; what it was is in the process's labels
    ts                         the rank's clock correction and time base taken into account, exact to the digit
    id, bind_id, correlation,  n becomes n * ranks + index of the rank, so that arrows and links of different
    External id                ranks do not meet
    process names              "rank 3: GPU 0", sorted by rank

and one track per rank is added: its exposed communication, dealt out to collectives by the rule of
`loopopt.measure.breakdown.exposed_shares`.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import IO, Any

import msgspec
import numpy as np

from loopopt.analysis import RunAnalysis, TraceFile
from loopopt.errors import TraceError, UsageError
from loopopt.measure.activity import find_activity
from loopopt.measure.instances import find_instances
from loopopt.measure.intervals import owned
from loopopt.offline.events import Event, envelope, pieces
from loopopt.parse import parse_trace
from loopopt.traces import RankTrace

PIDS_PER_RANK = 10_000
"""Process numbers set aside for each rank; the first is the exposed track's."""

_MAX_ID = 2**63
_SECOND_NS = 10**9
_NAMES = ("process_name", "process_labels", "process_sort_index")
_LINKS = ("correlation", "External id", "external id")
_ENCODER = msgspec.json.Encoder()
_DICT = msgspec.json.Decoder(Event)

Progress = Callable[[int, int, str], None]
"""(ranks done, ranks in all, the file done last)."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What was written.

    Attributes:
        path: the file.
        ranks: ranks in it.
        events: events taken over from the traces.
        exposed_ns: length of each rank's exposed track, nanoseconds; empty without those tracks.
    """

    path: str
    ranks: tuple[int, ...]
    events: int
    exposed_ns: dict[int, int]


@dataclass(frozen=True, slots=True)
class ExposedSlice:
    """A stretch in which only this collective was in flight or it was the first of those, and nothing computed.

    Attributes:
        start_ns, end_ns: since the epoch, on the rank's own clock.
        kind, group, message_bytes: as in `loopopt.measure.instances`.
    """

    start_ns: int
    end_ns: int
    kind: str
    group: str
    message_bytes: int


def merge(run: RunAnalysis, out: str, *, exposed: bool = True, progress: Progress | None = None) -> Merged:
    """Write all ranks of a run into one file, which appears when it is complete.

    Holds a piece of one rank's events at a time, and with `exposed` one parsed rank.

    Args:
        run: an analysis of the traces; they are read again.
        out: `.json` or `.json.gz`.
        exposed: add the tracks of exposed communication.
        progress: called after every rank.

    Raises:
        UsageError: `out` has another ending, or cannot be written.
        TraceError: a trace cannot be read (any more).
    """
    if not out.endswith((".json", ".json.gz")):
        raise UsageError(f"{out}: the merged trace must end in .json or .json.gz")
    if os.path.abspath(out) in {os.path.abspath(f.path) for f in run.files}:
        raise UsageError(f"{out}: is one of the traces to be merged; choose another name")
    files = sorted(run.files, key=lambda f: f.rank)
    clocks = {f.rank: round(run.clock_us.get(f.rank, 0.0) * 1000) for f in files}
    # Times count from here, so that they stay small enough for viewers that read them as float64.
    first = min(round(f.start_us * 1000) - clocks[f.rank] for f in files)
    base = (first // _SECOND_NS - 1) * _SECOND_NS
    ranks: list[_Rank] = []
    exposed_ns: dict[int, int] = {}
    with _written(out) as stream:
        stream.write(_head(run, base, clocks))
        separator = b""
        for index, file in enumerate(files):
            rank = _Rank(file, index, len(files), clocks[file.rank], base)
            ranks.append(rank)
            for text in rank.pieces():
                stream.write(separator + text)
                separator = b",\n"
            if exposed:
                slices = exposed_slices(parse_trace(file.path), file.rank)
                exposed_ns[file.rank] = sum(s.end_ns - s.start_ns for s in slices)
                stream.write(separator + _events(rank.exposed_track(slices)))
            if progress is not None:
                progress(index + 1, len(files), file.path)
        stream.write(b"\n]}\n")
    return Merged(out, tuple(r.rank for r in ranks), sum(r.events for r in ranks), exposed_ns)


def exposed_slices(trace: RankTrace, rank: int) -> list[ExposedSlice]:
    """A rank's exposed time, by start; the lengths add up to it exactly."""
    activity = find_activity(trace)
    rows = activity.collective_rows
    starts = trace.start_ns[rows]
    own_start, own_end = owned(starts, starts + trace.duration_ns[rows])
    bare = activity.exposed
    # Stretches of exposed time that each collective's own part meets.
    first = np.searchsorted(bare.ends, own_start, side="right")
    last = np.searchsorted(bare.starts, own_end, side="left")
    instances = find_instances(trace, activity, rank)
    found = []
    for index in np.flatnonzero((own_end > own_start) & (last > first)).tolist():
        it = instances[index]
        for place in range(int(first[index]), int(last[index])):
            start = max(int(own_start[index]), int(bare.starts[place]))
            end = min(int(own_end[index]), int(bare.ends[place]))
            if end > start:
                found.append(ExposedSlice(start, end, it.kind, it.group, it.message_bytes))
    return sorted(found, key=lambda s: s.start_ns)


class _Rank:
    """One rank's events on their way into the merged file."""

    def __init__(self, file: TraceFile, index: int, ranks: int, clock_ns: int, base_ns: int) -> None:
        self.rank = file.rank
        self.events = 0
        self._path = file.path
        self._index = index
        self._ranks = ranks
        self._base_ns = base_ns
        self._clock_ns = clock_ns
        # What is added to a time in the file, nanoseconds.
        self._shift_ns = (envelope(file.path).base_ns or 0) - clock_ns - base_ns
        self._processes: dict[bytes, int] = {}
        self._texts: dict[bytes, dict[str, str]] = {}
        self._notes: list[Event] = []

    def pieces(self) -> Iterator[bytes]:
        """Text of the events, then of what names the processes; never empty."""
        for events in pieces(self._path):
            kept = [e for e in events if not self._is_note(e)]
            for event in kept:
                self._change(event)
            if kept:
                self.events += len(kept)
                yield _ENCODER.encode(kept)[1:-1]
        # Names come last: only processes that turned out to have events get one.
        notes = [n for n in self._notes if _pid(n) in self._processes]
        self.events += len(notes)
        for note in notes:
            note.pop("ts", None)
            note["pid"] = self._new_pid(_pid(note))
        if notes:
            yield _ENCODER.encode(notes)[1:-1]
        yield _events(self._names())

    def exposed_track(self, slices: Sequence[ExposedSlice]) -> list[dict[str, Any]]:
        """The added track's events."""
        pid = self.rank * PIDS_PER_RANK
        title = f"rank {self.rank}: exposed communication"
        track: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": title}},
            {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "args": {"labels": "loopopt"}},
            {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}},
            {"ph": "M", "name": "thread_name", "pid": pid, "tid": 0, "args": {"name": "exposed communication"}},
        ]
        shift = -self._clock_ns - self._base_ns
        for piece in slices:
            track.append(
                {
                    "ph": "X",
                    "cat": "exposed_communication",
                    "name": piece.kind,
                    "pid": pid,
                    "tid": 0,
                    "ts": msgspec.Raw(_us(piece.start_ns + shift)),
                    "dur": msgspec.Raw(_us(piece.end_ns - piece.start_ns)),
                    "args": {"rank": self.rank, "group": piece.group, "message bytes": piece.message_bytes},
                }
            )
        return track

    def _is_note(self, event: Event) -> bool:
        """Whether it names a process or thread; those are put aside."""
        if bytes(event.get("ph", b"")) != b'"M"':
            return False
        name = _text(event.get("name"))
        if name in _NAMES:
            args = event.get("args")
            values = json.loads(bytes(args)) if args is not None else {}
            value = next(iter(values.values()), "") if isinstance(values, dict) else ""
            self._texts.setdefault(_pid(event), {})[name] = str(value)
        else:
            self._notes.append(event)
        return True

    def _change(self, event: Event) -> None:
        event["pid"] = self._new_pid(_pid(event))
        if (ts := event.get("ts")) is not None:
            event["ts"] = msgspec.Raw(self._moved(bytes(ts)))
        for key in ("id", "bind_id"):
            if (own := event.get(key)) is not None:
                event[key] = msgspec.Raw(self._new_id(bytes(own), always=True))
        if (args := event.get("args")) is not None:
            text = bytes(args)
            if b"orrelation" in text or b"xternal id" in text:
                fields = _DICT.decode(text)
                for key in _LINKS:
                    if key in fields:
                        fields[key] = msgspec.Raw(self._new_id(bytes(fields[key]), always=False))
                event["args"] = msgspec.Raw(_ENCODER.encode(fields))

    def _new_pid(self, pid: bytes) -> msgspec.Raw:
        number = self._processes.get(pid)
        if number is None:
            if len(self._processes) + 1 >= PIDS_PER_RANK:
                raise TraceError(self._path, f"events of more than {PIDS_PER_RANK - 2} processes in one rank")
            number = self._processes[pid] = self.rank * PIDS_PER_RANK + 1 + len(self._processes)
        return msgspec.Raw(b"%d" % number)

    def _new_id(self, text: bytes, *, always: bool) -> bytes:
        """An id that no other rank has. Without `always`, numbers below 1 stand for "none" and stay."""
        bare = text.strip(b'"')
        try:
            number = int(bare, 16) if bare[:2].lower() == b"0x" else int(bare)
        except ValueError:
            return text if not always else json.dumps(f"{self.rank}:{_text(msgspec.Raw(text))}").encode()
        if number < (0 if always else 1):
            return text
        moved = number * self._ranks + self._index
        return b"%d" % moved if moved < _MAX_ID else json.dumps(f"{self.rank}:{number}").encode()

    def _moved(self, text: bytes) -> bytes:
        """A time on the common clock."""
        whole, _, part = text.partition(b".")
        if whole.isdigit() and len(part) <= 3 and (part.isdigit() or not part):
            return _us(int(whole) * 1000 + int(part.ljust(3, b"0")) + self._shift_ns)
        try:
            exact = Decimal(text.strip(b'"').decode()) + Decimal(self._shift_ns) / 1000
        except (InvalidOperation, UnicodeDecodeError) as err:
            raise TraceError(self._path, f"'ts' is {text[:40]!r}; expected microseconds") from err
        return format(exact, "f").encode() if exact.is_finite() else text

    def _names(self) -> list[dict[str, Any]]:
        """Names of the processes that had events: of the host first, then devices, then the rest."""
        found = []
        for order, pid in enumerate(sorted(self._processes, key=self._place)):
            number = self._processes[pid]
            texts = self._texts.get(pid, {})
            raw = _text(msgspec.Raw(pid))
            label, name = texts.get("process_labels", ""), texts.get("process_name", "")
            title = label if label.startswith("GPU") or not name else f"{label} ({name})" if label else name
            sort_index = self.rank * PIDS_PER_RANK + 1 + order
            for kind, args in (
                ("process_name", {"name": f"rank {self.rank}: {title or raw or 'marks'}"}),
                ("process_labels", {"labels": f"was {raw}" if raw else ""}),
                ("process_sort_index", {"sort_index": sort_index}),
            ):
                found.append({"ph": "M", "name": kind, "pid": number, "tid": 0, "args": args})
        return found

    def _place(self, pid: bytes) -> tuple[int, int]:
        try:
            return 0, int(float(self._texts.get(pid, {}).get("process_sort_index", "")))
        except (ValueError, OverflowError):
            return 1, self._processes[pid]


def _pid(event: Event) -> bytes:
    return bytes(event.get("pid", b""))


def _text(raw: msgspec.Raw | None) -> str:
    """A JSON value as text, strings without their quotes."""
    value = json.loads(bytes(raw)) if raw is not None and len(bytes(raw)) else ""
    return value if isinstance(value, str) else str(value)


def _us(time_ns: int) -> bytes:
    """Nanoseconds as microseconds, exactly."""
    sign = b"-" if time_ns < 0 else b""
    whole, part = divmod(abs(time_ns), 1000)
    return b"%s%d.%03d" % (sign, whole, part)


def _events(values: list[dict[str, Any]]) -> bytes:
    return b",\n".join(_ENCODER.encode(v) for v in values)


def _head(run: RunAnalysis, base_ns: int, clocks: dict[int, int]) -> bytes:
    about = {
        "run": run.name,
        "world_size": run.world_size,
        "ranks": [
            {"rank": f.rank, "file": f.path, "host": f.host, "device": f.device, "clock_us": clocks[f.rank] / 1000}
            for f in sorted(run.files, key=lambda f: f.rank)
        ],
    }
    top = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns, "loopopt_merged": about}
    return _ENCODER.encode(top)[:-1] + b',"traceEvents":[\n'


@contextmanager
def _written(out: str) -> Iterator[IO[bytes]]:
    """A stream into a file that gets its name when all of it is there."""
    partial = f"{out}.{os.getpid()}.tmp"
    try:
        with open(partial, "wb") as file:
            if out.endswith(".gz"):
                # Level 6 costs half of level 9's time for one per cent of size.
                with gzip.GzipFile("", "wb", 6, file, 0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield file
        os.replace(partial, out)
    except OSError as err:
        raise UsageError(f"{out}: cannot be written: {err.strerror or err}") from err
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
