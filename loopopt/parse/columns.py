"""Events, some thousand at a time, -> numpy columns; names, threads, shapes and metadata are shared over all of them.

What runs once per event runs in C where it can: `map` over attributes, dictionaries that number new keys themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import DTypeLike, NDArray

from loopopt.errors import TraceError
from loopopt.parse import schema
from loopopt.parse.signatures import MAX_ELEMENTS, read_ranks, read_signature
from loopopt.parse.times import MAX_NS, NotATimeError, read_times
from loopopt.traces import NO_ID, Category, CollectiveArgs, Signature

MAX_NAME = 1 << 20
"""Characters in a name beyond which a trace is taken for damaged (C++ kernel names reach some thousands)."""

_CATEGORIES = {
    "kernel": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "memset": Category.MEMSET,
    "cpu_op": Category.OPERATOR,
    "operator": Category.OPERATOR,
    "user_annotation": Category.ANNOTATION,
    "cuda_runtime": Category.RUNTIME,
    "cuda_driver": Category.RUNTIME,
    "runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
}
# Releases before 2022 wrote "Kernel", "Operator" ...
_KEPT = {spelt: int(c) for name, c in _CATEGORIES.items() for spelt in (name, name.capitalize(), name.upper())}

_PHASE, _CATEGORY, _NAME = attrgetter("ph"), attrgetter("cat"), attrgetter("name")
_PROCESS, _THREAD = attrgetter("pid"), attrgetter("tid")
_START, _DURATION = attrgetter("ts"), attrgetter("dur")
_NO_ARGS = schema.Args()

COLUMNS: dict[str, DTypeLike] = {
    "category": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "correlation": np.int64,
    "external": np.int64,
    "signature": np.int32,
    "collective": np.int32,
}
"""Columns of a `RankTrace` with their types."""

Key = TypeVar("Key", bound=Hashable)
Offset = Callable[[int], int]


class Numbers(dict[Key, int]):
    """The number of each distinct key, in order of appearance; a new key gets the next one when it is looked up."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class Columns:
    """The kept events of one trace.

    Attributes:
        names, threads, signatures, collectives: as in `RankTrace`, numbered.
        dropped: as in `RankTrace`; right after `finish`.
    """

    def __init__(self, path: str) -> None:
        self.names: Numbers[str | None] = Numbers()
        self.threads: Numbers[tuple[schema.Scalar, schema.Scalar]] = Numbers()
        self.signatures: Numbers[Signature] = Numbers()
        self.collectives: Numbers[CollectiveArgs] = Numbers()
        self.dropped = 0
        self._path = path
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in COLUMNS}
        self._by_text: dict[bytes, int] = {}
        self._ranks: dict[bytes, tuple[int, ...]] = {b"": ()}
        self._open: dict[Any, list[tuple[Any, int]]] = defaultdict(list)

    def add(self, events: Sequence[Any], offset: Offset) -> None:
        """Append the events that are kept.

        Args:
            events: `schema.Event`s.
            offset: index among `events` -> byte offset in the file, for errors.

        Raises:
            TraceError: an event that is kept has an impossible value.
            NeedsDecimalsError: nothing was added; the events have to be decoded with decimals.
        """
        kept = [e for e in events if e.ph == "X" and e.cat in _KEPT]
        durations = list(map(_DURATION, kept))
        without = durations.count(None) if None in durations else 0
        if without:
            kept = [e for e in kept if e.dur is not None]
            durations = list(map(_DURATION, kept))

        def at(row: int) -> int:
            # Only an error needs to know where in the text an event is.
            return offset(next(i for i, e in enumerate(events) if e is kept[row]))

        start = self._times("ts", list(map(_START, kept)), at)
        duration = self._times("dur", durations, at)
        if len(duration) and duration.min() < 0:
            worst = int(duration.argmin())
            raise TraceError(self._path, f"event {kept[worst].name!r} has a negative duration", at(worst))
        marks = []
        if not {"B", "E"}.isdisjoint(map(_PHASE, events)):
            marks = [(i, e) for i, e in enumerate(events) if e.ph in ("B", "E") and e.ts is not None]
        mark_times = self._times("ts", [e.ts for _, e in marks], lambda row: offset(marks[row][0]))
        # From here on nothing asks for decimals any more.
        self.dropped += without
        self._append(kept, start, duration, at)
        if marks:
            self._append_pairs([e for _, e in marks], mark_times.tolist())

    def _append(self, kept: list[Any], start: NDArray[np.int64], duration: NDArray[np.int64], at: Offset) -> None:
        size = len(kept)
        args = [e.args or _NO_ARGS for e in kept]
        external = _ids([a.external for a in args])
        for row in np.flatnonzero(external < 0).tolist():
            if args[row].old_external != NO_ID:
                external[row] = _id(args[row].old_external)
        known_names = len(self.names)
        columns: dict[str, NDArray[Any]] = {
            "category": np.fromiter(map(_KEPT.__getitem__, map(_CATEGORY, kept)), np.uint8, size),
            "name": np.fromiter(map(self.names.__getitem__, map(_NAME, kept)), np.int32, size),
            "thread": np.fromiter(
                map(self.threads.__getitem__, zip(map(_PROCESS, kept), map(_THREAD, kept), strict=True)), np.int32, size
            ),
            "start_ns": start,
            "duration_ns": duration,
            "correlation": _ids([a.correlation for a in args]),
            "external": external,
            "signature": np.full(size, NO_ID, np.int32),
            "collective": np.full(size, NO_ID, np.int32),
        }
        if len(self.names) > known_names:
            self._check_names(known_names, columns["name"], at)
        try:
            self._add_arguments(args, columns)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as err:
            raise TraceError(
                self._path, f"input shapes or collective metadata of an event cannot be read: {err}"
            ) from err
        for name, part in columns.items():
            self._parts[name].append(part)

    def _times(self, key: str, values: list[Any], at: Offset) -> NDArray[np.int64]:
        try:
            return read_times(values)
        except NotATimeError as err:
            if err.value is None:
                reason = f"an event has no {key!r}; expected microseconds"
            else:
                reason = f"{key!r} is {err.value!r} us, which is no time; expected microseconds"
            raise TraceError(self._path, reason, at(err.index)) from err

    def _check_names(self, known: int, column: NDArray[np.int32], at: Offset) -> None:
        for number, name in enumerate(list(self.names)[known:], known):
            if name is not None and len(name) > MAX_NAME:
                row = int(np.flatnonzero(column == number)[0])
                raise TraceError(self._path, f"an event name of {len(name)} characters; at most {MAX_NAME}", at(row))

    # ------------------------------------------------------------ shapes and metadata

    def _add_arguments(self, args: list[schema.Args], columns: dict[str, NDArray[Any]]) -> None:
        absent = schema.ABSENT
        rows = [row for row, a in enumerate(args) if a.shapes is not absent]
        if rows:
            columns["signature"][rows] = [self._signature(args[row]) for row in rows]
        rows = [row for row, a in enumerate(args) if a.collective is not None]
        if rows:
            columns["collective"][rows] = [self.collectives[self._collective(args[row])] for row in rows]

    def _signature(self, args: schema.Args) -> int:
        key = b"\0".join((args.shapes, args.types, args.values, args.strides))
        number = self._by_text.get(key)
        if number is None:
            found = read_signature(bytes(args.shapes), bytes(args.types), bytes(args.values), bytes(args.strides))
            number = self._by_text[key] = NO_ID if found is None else self.signatures[found]
        return number

    def _collective(self, args: schema.Args) -> CollectiveArgs:
        text = bytes(args.ranks)
        ranks = self._ranks.get(text)
        if ranks is None:
            ranks = self._ranks[text] = read_ranks(text)
        return CollectiveArgs(
            name=str(args.collective),
            group="" if args.group is None else str(args.group),
            group_size=count(args.group_size),
            ranks=ranks,
            in_elements=count(args.in_elements),
            out_elements=count(args.out_elements),
            dtype="" if args.dtype is None else str(args.dtype),
            seq=_id(args.seq),
        )

    # ------------------------------------------------------------ beginnings and ends apart

    def _append_pairs(self, marks: list[Any], times_ns: list[int]) -> None:
        """Join the "B" and "E" events of a thread, which nest."""
        begun: list[Any] = []
        spans: list[tuple[int, int]] = []
        for mark, time_ns in zip(marks, times_ns, strict=True):
            stack = self._open[mark.pid, mark.tid]
            if mark.ph == "B":
                stack.append((mark, time_ns))
            elif not stack:
                self.dropped += mark.cat in _KEPT
            else:
                begin, start_ns = stack.pop()
                if begin.cat not in _KEPT:
                    continue
                if time_ns < start_ns:
                    raise TraceError(self._path, f"event {begin.name!r} ends before it begins")
                begun.append(begin)
                spans.append((start_ns, time_ns - start_ns))
        if begun:
            start, duration = np.array(spans, np.int64).T
            self._append(begun, start, duration, lambda row: 0)

    # ------------------------------------------------------------ all events

    def finish(self, base_ns: int) -> dict[str, NDArray[Any]]:
        """The columns by name, sorted by (start, longest first, place in the file), each event once.

        They are put together one after the other, so that little more than their own size is needed.

        Args:
            base_ns: added to all starts, nanoseconds since 1970.

        Raises:
            TraceError: times are out of range.
        """
        self.dropped += sum(event.cat in _KEPT for stack in self._open.values() for event, _ in stack)
        columns: dict[str, NDArray[Any]] = {}
        for name, dtype in COLUMNS.items():
            parts = self._parts.pop(name)
            columns[name] = np.concatenate(parts) if parts else np.zeros(0, dtype)
            del parts
        start, duration = columns["start_ns"], columns["duration_ns"]
        start += base_ns
        if len(start) and not (-MAX_NS // 4 < start.min() <= start.max() < MAX_NS and duration.max() < MAX_NS // 2):
            # Beyond, the difference of two times could overflow.
            raise TraceError(self._path, "times are out of range; expected microseconds of this century")
        order = _sorted_without_duplicates(columns)
        del start, duration
        for name in COLUMNS:
            columns[name] = columns[name][order]
        return columns


def count(value: schema.Scalar) -> int:
    """A number of elements or ranks, 0 if unknown.

    Raises:
        ValueError: too large to be one.
    """
    found = max(_id(value), 0)
    if found > MAX_ELEMENTS:
        raise ValueError(f"{found} is no number of elements or ranks")
    return found


def _id(value: schema.Scalar) -> int:
    """An id as int64; `NO_ID` for anything that is none."""
    if value is None:
        return NO_ID
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else NO_ID


def _ids(values: list[schema.Scalar]) -> NDArray[np.int64]:
    """`_id` of each."""
    if set(map(type, values)) == {int}:
        try:
            ids = np.array(values, np.int64)
        except OverflowError:
            pass
        else:
            ids[ids < 0] = NO_ID
            return ids
    return np.fromiter(map(_id, values), np.int64, len(values))


def _sorted_without_duplicates(columns: dict[str, NDArray[Any]]) -> NDArray[np.intp]:
    """Rows by (start, longest first, place in the file), each event once.

    Only events with an id can be told to be the same event; two of the same name that a coarse clock puts at
    the same microsecond are two events. Files are nearly sorted and few events begin together, so only those few
    are sorted by more than their start.
    """
    start, duration = columns["start_ns"], columns["duration_ns"]
    order = np.argsort(start, kind="stable")
    ordered = start[order]
    same = ordered[1:] == ordered[:-1]
    del ordered
    if not same.any():
        return order
    together = np.zeros(len(order), bool)
    together[1:] = same
    together[:-1] |= same
    places = np.flatnonzero(together)
    rows = order[places]
    # Blocks of equal start stay where they are; within one, a parent precedes its equal child as in the file.
    rows = rows[np.lexsort((-duration[rows], start[rows]))]
    order[places] = rows
    keys = [columns[name][rows] for name in ("external", "correlation", "category", "name", "thread")]
    keys += [duration[rows], start[rows]]
    by_all = np.lexsort(keys)
    equal = np.ones(len(rows) - 1, bool)
    for key in keys:
        column = key[by_all]
        equal &= column[1:] == column[:-1]
    later = by_all[1:]
    has_id = (keys[0][later] > 0) | (keys[1][later] > 0)
    again = later[equal & has_id]
    if not len(again):
        return order
    wanted = np.ones(len(order), bool)
    wanted[places[again]] = False
    return order[wanted]
