"""Summaries of ranks as one short text, to send from the node that has the traces to the one that decides.

MessagePack, zlib, base64: never pickle. What comes back is checked against the records' types and lengths.
"""

from __future__ import annotations

import base64
import binascii
import typing
import zlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from loopopt.errors import WireError
from loopopt.measure.columns import Collectives
from loopopt.measure.summary import RankSummary

MAX_BYTES = 256 * 1024 * 1024
"""Longest content, unpacked."""

_COLUMNS = tuple(f.name for f in fields(Collectives) if f.name not in ("kinds", "groups", "dtypes"))


def summaries_to_text(summaries: Sequence[RankSummary]) -> str:
    """One line of ASCII; `summaries_from_text` is the inverse."""
    packed = msgspec.msgpack.encode(list(summaries), enc_hook=_plain)
    return base64.b64encode(zlib.compress(packed, 6)).decode("ascii")


def summaries_from_text(text: str) -> list[RankSummary]:
    """Inverse of `summaries_to_text`.

    Raises:
        WireError: not made by it, or by another release.
    """
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
        if unpacking.unconsumed_tail or not unpacking.eof:
            raise WireError(f"summaries of ranks: cut off, or longer than {MAX_BYTES} bytes")
        found = msgspec.msgpack.decode(packed, type=list[RankSummary], dec_hook=_array)
    except (ValueError, TypeError, zlib.error, binascii.Error, msgspec.MsgspecError) as err:
        raise WireError(f"summaries of ranks: not of the expected form, use the same loopopt release: {err}") from err
    for summary in found:
        _check(summary)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} cannot be sent")


def _array(kind: Any, value: Any) -> Any:
    """A column from a list; `kind` is the annotation, `NDArray[np.int64]` for example."""
    if typing.get_origin(kind) is not np.ndarray or not isinstance(value, list):
        raise NotImplementedError(f"{kind} cannot be received")
    (element,) = typing.get_args(typing.get_args(kind)[1])
    wanted: type = bool if element is np.bool_ else int
    if not all(type(v) is wanted for v in value):
        raise ValueError(f"a column of {element.__name__} holds something else")
    try:
        return np.array(value, element)
    except OverflowError as err:
        raise ValueError(f"a column of {element.__name__} holds a number that is too large") from err


def _check(summary: RankSummary) -> None:
    """Columns are of one length and point to what is there."""
    c = summary.collectives
    if any(len(getattr(c, name)) != len(c) for name in _COLUMNS):
        raise WireError(f"summary of rank {summary.rank}: columns of different lengths")
    for column, labels in ((c.kind, c.kinds), (c.group, c.groups), (c.dtype, c.dtypes)):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(labels):
            raise WireError(f"summary of rank {summary.rank}: a collective of a kind, group or type it does not name")
