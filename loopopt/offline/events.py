"""The events of a trace file as they are written, piece by piece: only their first level is decoded."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from loopopt.errors import TraceError
from loopopt.parse import schema
from loopopt.parse.pieces import Pieces
from loopopt.parse.reading import open_text
from loopopt.traces import ProcessGroup

Event = dict[str, msgspec.Raw]
"""An element of `traceEvents`; values are JSON text as it stands in the file."""

PIECE = 1 << 20
"""Bytes of text that are decoded together."""

_HEAD = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS = msgspec.json.Decoder(list[Event])
_TOP = msgspec.json.Decoder(schema.Envelope)


def pieces(path: str) -> Iterator[list[Event]]:
    """The events in the order of the file, some at a time.

    Raises:
        TraceError: the file cannot be read, is torn, or is not JSON with an array of events.
    """

    def restart() -> None:
        raise TraceError(path, "two arrays of 'traceEvents'; expected one")

    with open_text(path) as text:
        yield from Pieces(path, text, _EVENTS.decode, restart, PIECE)


def envelope(path: str) -> schema.Envelope:
    """The top level without the events. Reads only what comes before them if that tells rank and time base.

    Raises:
        TraceError: as `pieces`.
    """
    with open_text(path) as text:
        head = text.read(PIECE)
    for match in _HEAD.finditer(head):
        try:
            found = _TOP.decode(head[: match.start()] + b'"traceEvents":[]}')
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            continue
        if found.base_ns is not None and bytes(found.distributed):
            return found
    with open_text(path) as text:
        whole = Pieces(path, text, schema.RAW_ARRAY.decode, lambda: None, PIECE)
        for _ in whole:
            pass
    return whole.envelope


def groups_of(path: str) -> list[ProcessGroup]:
    """Process groups that a trace lists with their ranks; none where it does not say.

    Raises:
        TraceError: as `pieces`.
    """
    try:
        info = msgspec.json.decode(bytes(envelope(path).distributed) or b"{}", type=schema.DistributedInfo)
    except msgspec.MsgspecError:
        return []
    return [
        ProcessGroup(
            str(c.name), "" if c.description is None else str(c.description), len(c.ranks), tuple(sorted(c.ranks))
        )
        for c in (info.pg_config if isinstance(info.pg_config, list) else [])
        if isinstance(c.ranks, list) and c.ranks
    ]
