"""Kineto JSON (plain or gzip, object or bare array) -> `RankTrace`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from loopopt.errors import TraceError
from loopopt.parse import schema
from loopopt.parse.reading import MAX_BYTES, read_text
from loopopt.parse.signatures import MAX_ELEMENTS, read_ranks, read_signature
from loopopt.parse.times import MAX_NS, first_out_of_range, needs_decimals, to_ns
from loopopt.traces import NO_ID, Category, CollectiveArgs, ProcessGroup, RankTrace

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

Item = TypeVar("Item", bound=Hashable)


def parse_trace(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> RankTrace:
    """Read one rank's trace.

    Args:
        path: `.json` or `.json.gz`, as written by torch.profiler or Kineto.
        max_bytes: bound on the uncompressed size.

    Returns:
        The kept events (kernels, copies, operators, annotations, runtime calls) as columns.

    Raises:
        TraceError: the file is missing, empty, torn, malformed, too large, or a field has the wrong type or an
            impossible value. The error names the file, the byte offset where known, and what was expected.
    """
    where = os.fspath(path)
    text = read_text(where, max_bytes)
    file = _decode(where, text, schema.FAST_OBJECT, schema.FAST_ARRAY)
    timed = [e for e in file.events if e.ph == "X"]
    if needs_decimals([e.ts for e in timed if e.ts is not None]) or needs_decimals(
        [e.dur for e in timed if e.dur is not None]
    ):
        file = _decode(where, text, schema.EXACT_OBJECT, schema.EXACT_ARRAY)
    return _columns(where, text, file)


def _decode(path: str, text: bytes, as_object: Any, as_array: Any) -> schema.File[Any]:
    try:
        if text.lstrip()[:1] == b"[":
            return schema.File(events=as_array.decode(text))
        decoded: schema.File[Any] = as_object.decode(text)
        return decoded
    except msgspec.ValidationError as err:
        raise TraceError(path, f"wrong field: {err}", _offset_of(text, str(err))) from err
    except msgspec.DecodeError as err:
        message = str(err)
        found = re.search(r"\(byte (\d+)\)", message)
        if found:
            reason = "not valid JSON: " + message.replace(found.group(0), "").strip()
            raise TraceError(path, reason, int(found.group(1))) from err
        if "truncated" in message:
            raise TraceError(path, "torn: the JSON ends too early; expected more data", len(text)) from err
        raise TraceError(path, f"not valid JSON: {message}") from err
    except RecursionError as err:
        raise TraceError(path, "values are nested too deeply; expected a Kineto trace") from err
    except UnicodeDecodeError as err:
        raise TraceError(path, f"text that is not UTF-8: {err.reason}", None) from err


def _offset_of(text: bytes, message: str) -> int | None:
    """Byte offset of the event a validation error speaks of."""
    found = re.search(r"traceEvents\[(\d+)\]|\$\[(\d+)\]", message)
    if found is None:
        return None
    return _event_offset(text, int(found.group(1) or found.group(2)))


def _event_offset(text: bytes, index: int) -> int | None:
    try:
        is_array = text.lstrip()[:1] == b"["
        raws = schema.RAW_ARRAY.decode(text) if is_array else schema.RAW_OBJECT.decode(text).events
    except (msgspec.MsgspecError, RecursionError):
        return None
    offset = max(text.find(b'"traceEvents"'), 0)
    for raw in raws[: index + 1]:
        piece = bytes(raw)
        begin = text.find(piece, offset)
        offset = begin + len(piece)
    return begin if raws[: index + 1] else None


def _columns(path: str, text: bytes, file: schema.File[Any]) -> RankTrace:
    events = file.events
    categories = {cat: _CATEGORIES.get((cat or "").lower()) for cat in {e.cat for e in events}}
    places = [i for i, e in enumerate(events) if e.ph == "X" and categories[e.cat] is not None]
    kept = [events[i] for i in places]

    def at(index: int) -> int | None:
        return _event_offset(text, places[index])

    base_ns = file.base_ns or 0
    if not -MAX_NS < base_ns < MAX_NS:
        raise TraceError(path, f"baseTimeNanoseconds {base_ns} is out of range")
    start = _times(path, "ts", [e.ts for e in kept], at) + base_ns
    duration = _times(path, "dur", [e.dur if e.dur is not None else 0 for e in kept], at)
    if len(start) and not (-MAX_NS // 4 < start.min() <= start.max() < MAX_NS and duration.max() < MAX_NS // 2):
        # Beyond, the difference of two times could overflow.
        raise TraceError(path, "times are out of range; expected microseconds of this century")
    if len(duration) and duration.min() < 0:
        worst = int(duration.argmin())
        raise TraceError(path, f"event {kept[worst].name!r} has a negative duration", at(worst))

    names, threads, signatures, collectives = (
        _Interned[str](),
        _Interned[tuple[schema.Scalar, schema.Scalar]](),
        _Shapes(),
        _Collectives(),
    )
    rows = range(len(kept))
    name = np.fromiter((names.index(e.name or "") for e in kept), np.int32, len(kept))
    for index, text_name in enumerate(names.items):
        if len(text_name) > MAX_NAME:
            row = int(np.flatnonzero(name == index)[0])
            raise TraceError(path, f"an event name of {len(text_name)} characters; at most {MAX_NAME}", at(row))
    thread = np.fromiter((threads.index((e.pid, e.tid)) for e in kept), np.int32, len(kept))
    none = schema.Args()
    args = [e.args or none for e in kept]
    correlation = np.fromiter((_id(a.correlation) for a in args), np.int64, len(kept))
    external = np.fromiter(
        (_id(a.external if a.external is not None else a.old_external) for a in args), np.int64, len(kept)
    )
    try:
        signature = np.fromiter((signatures.index(args[i]) for i in rows), np.int32, len(kept))
        collective = np.fromiter((collectives.index(args[i]) for i in rows), np.int32, len(kept))
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as err:
        raise TraceError(path, f"input shapes or collective metadata of an event cannot be read: {err}") from err

    category = np.fromiter((categories[e.cat] for e in kept), np.uint8, len(kept))
    order = _sorted_without_duplicates(category, name, thread, start, duration, correlation, external)
    info = _distributed(path, file.distributed)
    try:
        groups = _groups(info)
    except ValueError as err:
        raise TraceError(path, f"distributedInfo: {err}") from err
    return RankTrace(
        path=path,
        rank=info.rank if info.rank is not None else _rank_in_name(path),
        world_size=info.world_size or 0,
        backend=info.backend or "",
        host=file.host or "",
        groups=groups,
        names=tuple(names.items),
        threads=tuple((str(process), str(label)) for process, label in threads.items),
        signatures=tuple(signatures.items),
        collectives=tuple(collectives.items),
        category=category[order],
        name=name[order],
        thread=thread[order],
        start_ns=start[order],
        duration_ns=duration[order],
        correlation=correlation[order],
        external=external[order],
        signature=signature[order],
        collective=collective[order],
    )


def _times(path: str, key: str, values: Sequence[Any], at: Callable[[int], int | None]) -> NDArray[np.int64]:
    if None in values:
        raise TraceError(path, f"an event has no {key!r}; expected microseconds", at(values.index(None)))
    bad = first_out_of_range(values)
    if bad is not None:
        raise TraceError(path, f"{key!r} is {values[bad]!r} us, which is no time; expected microseconds", at(bad))
    return to_ns(values)


def _id(value: schema.Scalar) -> int:
    """An id as int64; `NO_ID` for anything that is none."""
    if value is None:
        return NO_ID
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else NO_ID


def _count(value: schema.Scalar) -> int:
    count = max(_id(value), 0)
    if count > MAX_ELEMENTS:
        raise ValueError(f"{count} is no number of elements or ranks")
    return count


class _Interned(Generic[Item]):
    """Distinct items in order of appearance."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._known: dict[Item, int] = {}

    def index(self, item: Item) -> int:
        found = self._known.get(item)
        if found is None:
            found = self._known[item] = len(self.items)
            self.items.append(item)
        return found


class _Shapes:
    """Distinct signatures; each text is decoded once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[tuple[bytes, bytes, bytes], int] = {(b"", b"", b""): NO_ID}

    def index(self, args: schema.Args) -> int:
        key = (bytes(args.shapes), bytes(args.types), bytes(args.values))
        found = self._known.get(key)
        if found is None:
            signature = read_signature(*key)
            found = NO_ID
            if signature is not None:
                found = len(self.items)
                self.items.append(signature)
            self._known[key] = found
        return found


class _Collectives(_Interned[CollectiveArgs]):
    """Distinct collective metadata."""

    def index_of(self, args: schema.Args) -> int:
        return super().index(
            CollectiveArgs(
                name=str(args.collective),
                group="" if args.group is None else str(args.group),
                group_size=_count(args.group_size),
                ranks=read_ranks(bytes(args.ranks)),
                in_elements=_count(args.in_elements),
                out_elements=_count(args.out_elements),
                dtype="" if args.dtype is None else str(args.dtype),
                seq=_id(args.seq),
            )
        )

    def index(self, args: Any) -> int:
        return NO_ID if args.collective is None else self.index_of(args)


def _sorted_without_duplicates(
    category: NDArray[np.uint8],
    name: NDArray[np.int32],
    thread: NDArray[np.int32],
    start: NDArray[np.int64],
    duration: NDArray[np.int64],
    correlation: NDArray[np.int64],
    external: NDArray[np.int64],
) -> NDArray[np.intp]:
    """Rows by (start, longest first, place in the file), each event once.

    Only events with an id can be told to be the same event; two of the same name that a coarse clock puts at
    the same microsecond are two events.
    """
    keys = (external, correlation, category, name, thread, -duration, start)
    order = np.lexsort(keys)
    if len(order) < 2:
        return order
    same = np.ones(len(order) - 1, dtype=bool)
    for key in keys:
        column = key[order]
        same &= column[1:] == column[:-1]
    has_id = (correlation[order] > 0) | (external[order] > 0)
    unique = order[np.concatenate(([True], ~(same & has_id[1:])))]
    # Back to the order of the file among events that begin together, so that a parent precedes its equal child.
    unique = np.sort(unique)
    return unique[np.lexsort((-duration[unique], start[unique]))]


def _distributed(path: str, raw: msgspec.Raw) -> schema.DistributedInfo:
    data = bytes(raw)
    if not data or data == b"null":
        return schema.DistributedInfo()
    try:
        return msgspec.json.decode(data, type=schema.DistributedInfo)
    except msgspec.MsgspecError as err:
        raise TraceError(path, f"distributedInfo: {err}") from err


def _groups(info: schema.DistributedInfo) -> dict[str, ProcessGroup]:
    groups: dict[str, ProcessGroup] = {}
    configs = info.pg_config if isinstance(info.pg_config, list) else []
    for config in configs:
        ranks = config.ranks if isinstance(config.ranks, list) else read_ranks((config.ranks or "").encode())
        name = str(config.name)
        groups[name] = ProcessGroup(
            name=name,
            description="" if config.description is None else str(config.description),
            size=_count(config.size) or len(ranks),
            ranks=tuple(sorted(ranks)),
        )
    return groups


def _rank_in_name(path: str) -> int | None:
    found = re.search(r"rank[-_]?(\d{1,7})(?!\d)", os.path.basename(path))
    return int(found.group(1)) if found else None
