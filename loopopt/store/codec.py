"""How nested values are written into columns: JSON text, compressed JSON, packed floats."""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable
from typing import Any

from loopopt.errors import StoreError


def to_text(value: object, what: str) -> str:
    """JSON text with sorted keys, so that equal values are equal text.

    Raises:
        StoreError: the value has no JSON form; `what` names it.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as err:
        raise StoreError(f"{what} cannot be stored as JSON: {err}") from err


def from_text(text: str) -> Any:
    """Inverse of `to_text`."""
    return json.loads(text)


def to_blob(value: object, what: str) -> bytes:
    """Compressed JSON, for measurements and tables: they are large and very regular.

    Raises:
        StoreError: as `to_text`.
    """
    return zlib.compress(to_text(value, what).encode(), level=1)


def from_blob(blob: bytes, what: str) -> dict[str, Any]:
    """Inverse of `to_blob`, for objects.

    Raises:
        StoreError: the bytes are damaged; `what` names them.
    """
    try:
        value: dict[str, Any] = json.loads(zlib.decompress(blob))
    except (zlib.error, ValueError) as err:
        raise StoreError(f"{what} is damaged: {err}") from err
    return value


def pack_floats(values: Iterable[float]) -> bytes:
    """Little-endian float64, eight bytes each."""
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    """Inverse of `pack_floats`."""
    packed = array("d")
    packed.frombytes(blob)
    if sys.byteorder == "big":
        packed.byteswap()
    return tuple(packed)
