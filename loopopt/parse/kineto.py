"""Kineto JSON (plain, gzip or zstd, object or bare array) -> `RankTrace`, in bounded memory."""

from __future__ import annotations

import os
import re

import msgspec

from loopopt.errors import TraceError
from loopopt.parse import schema
from loopopt.parse.columns import Columns, count
from loopopt.parse.pieces import CHUNK, Decode, Pieces
from loopopt.parse.reading import MAX_BYTES, open_text
from loopopt.parse.signatures import read_ranks
from loopopt.parse.times import MAX_NS, NeedsDecimalsError
from loopopt.traces import ProcessGroup, RankTrace


def parse_trace(path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> RankTrace:
    """Read one rank's trace.

    The text passes through memory in pieces of some MiB: what is needed is about 60 bytes per kept event, and what
    the names and shapes take.

    Args:
        path: `.json`, `.json.gz` or `.json.zst`, as written by torch.profiler or Kineto; or an address that fsspec
            understands, such as `s3://bucket/rank0.json.gz`.
        max_bytes: bound on the uncompressed size.

    Returns:
        The kept events (kernels, copies, operators, annotations, runtime calls) as columns.

    Raises:
        TraceError: the file is missing, empty, torn, malformed, too large, or a field has the wrong type or an
            impossible value. The error names the file, the byte offset where known, and what was expected.
    """
    return parse_in_pieces(os.fspath(path), max_bytes=max_bytes, chunk=CHUNK)


def parse_in_pieces(path: str, *, max_bytes: int, chunk: int) -> RankTrace:
    """`parse_trace` with another size of the pieces, in bytes; the result does not depend on it."""
    reader = _Reader(path)
    with open_text(path, max_bytes) as text:
        pieces = Pieces(path, text, lambda piece: reader.decode(piece), reader.restart, chunk)
        for events in pieces:
            try:
                reader.columns.add(events, pieces.event_offset)
            except NeedsDecimalsError:
                reader.decode = schema.EXACT.decode
                reader.columns.add(pieces.again(reader.decode), pieces.event_offset)
    return _rank_trace(path, reader.columns, pieces.envelope)


class _Reader:
    """Columns so far, and the decoder for the next piece: once a trace needed decimals, it will again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.columns = Columns(path)
        self.decode: Decode = schema.FAST.decode

    def restart(self) -> None:
        self.columns = Columns(self._path)


def _rank_trace(path: str, columns: Columns, envelope: schema.Envelope) -> RankTrace:
    base_ns = envelope.base_ns or 0
    if not -MAX_NS < base_ns < MAX_NS:
        raise TraceError(path, f"baseTimeNanoseconds {base_ns} is out of range")
    info = _distributed(path, envelope.distributed)
    try:
        groups = _groups(info)
    except ValueError as err:
        raise TraceError(path, f"distributedInfo: {err}") from err
    arrays = columns.finish(base_ns)
    return RankTrace(
        path=path,
        rank=info.rank if info.rank is not None else _rank_in_name(path),
        world_size=info.world_size or 0,
        backend=info.backend or "",
        host=envelope.host or "",
        groups=groups,
        names=tuple(name or "" for name in columns.names),
        threads=tuple((str(process), str(label)) for process, label in columns.threads),
        signatures=tuple(columns.signatures),
        collectives=tuple(columns.collectives),
        device=_device(envelope.devices),
        dropped=columns.dropped,
        **arrays,
    )


def _distributed(path: str, raw: msgspec.Raw) -> schema.DistributedInfo:
    data = bytes(raw)
    if not data or data == b"null":
        return schema.DistributedInfo()
    try:
        return msgspec.json.decode(data, type=schema.DistributedInfo)
    except msgspec.MsgspecError as err:
        raise TraceError(path, f"distributedInfo: {err}") from err


def _device(raw: msgspec.Raw) -> str:
    """Name of the first device; "" for anything else, as it only labels the numbers."""
    try:
        devices = msgspec.json.decode(raw, type=list[schema.Device])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return devices[0].name if devices else ""


def _groups(info: schema.DistributedInfo) -> dict[str, ProcessGroup]:
    groups: dict[str, ProcessGroup] = {}
    configs = info.pg_config if isinstance(info.pg_config, list) else []
    for config in configs:
        ranks = config.ranks if isinstance(config.ranks, list) else read_ranks((config.ranks or "").encode())
        name = str(config.name)
        groups[name] = ProcessGroup(
            name=name,
            description="" if config.description is None else str(config.description),
            size=count(config.size) or len(ranks),
            ranks=tuple(sorted(ranks)),
        )
    return groups


def _rank_in_name(path: str) -> int | None:
    found = re.search(r"rank[-_]?(\d{1,7})(?!\d)", os.path.basename(path))
    return int(found.group(1)) if found else None
