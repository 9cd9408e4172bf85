"""Input shapes, types and scalar values of an operator, and rank lists, from their JSON text."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import msgspec

from loopopt.traces import Signature

MAX_ELEMENTS = 2**44
"""More elements in one tensor are taken for damage (and would overflow further on)."""

_Shapes = tuple[tuple[tuple[int, ...], ...], ...]

_NOT_TENSORS = frozenset({"", "Scalar", "ScalarList", "None"})


def read_signature(shapes: bytes, types: bytes, values: bytes, strides: bytes = b"") -> Signature | None:
    """Decode the four texts of one event; any may be empty.

    Returns:
        The signature, None if the event has no shapes.

    Raises:
        msgspec.MsgspecError: not JSON.
        ValueError: JSON of another form.
    """
    if not shapes:
        return None
    type_names = tuple(str(t) for t in _list(types))
    arguments = _list(shapes)
    known = len(type_names) == len(arguments)
    if not known:
        type_names = ("?",) * len(arguments)
    decoded = tuple(_shapes_of(*argument) for argument in zip(arguments, type_names, strict=True))
    return Signature(
        types=type_names,
        shapes=decoded,
        values=tuple(str(v) for v in _list(values)),
        strides=_strides(_list(strides), decoded),
    )


def _strides(arguments: list[Any], shapes: _Shapes) -> _Shapes:
    """Strides nested as the shapes are; none if they do not fit them (they are extra, and no reason to fail)."""
    if len(arguments) != len(shapes):
        return ()
    found: list[tuple[tuple[int, ...], ...]] = []
    for argument, of_argument in zip(arguments, shapes, strict=True):
        entries = argument if isinstance(argument, list) else []
        if not any(isinstance(entry, list) for entry in entries) and len(of_argument) == 1:
            entries = [entries]
        if not of_argument:
            found.append(())
            continue
        if len(entries) != len(of_argument):
            return ()
        for entry, shape in zip(entries, of_argument, strict=True):
            if not isinstance(entry, list) or len(entry) != len(shape) or not all(type(n) is int for n in entry):
                return ()
        found.append(tuple(tuple(entry) for entry in entries))
    return tuple(found)


def read_ranks(text: bytes) -> tuple[int, ...]:
    """Ranks of ``[0, 1]`` or ``"[0, 1]"``; empty when absent or shortened ("[0, 1, ...]"), as past 30 ranks."""
    if not re.fullmatch(rb'"?\[\s*\d+(\s*,\s*\d+)*\s*\]"?', text):
        return ()
    return tuple(sorted(int(n) for n in re.findall(rb"\d{1,9}", text)))


def _list(text: bytes) -> list[Any]:
    value = msgspec.json.decode(text) if text else []
    if isinstance(value, str):
        value = msgspec.json.decode(value) if value else []
    if not isinstance(value, list):
        raise ValueError(f"expected a list, got {str(value)[:60]!r}")
    return value


def _shapes_of(argument: Any, kind: str) -> tuple[tuple[int, ...], ...]:
    if not isinstance(argument, list):
        raise ValueError(f"expected a shape, got {str(argument)[:60]!r}")
    if any(isinstance(entry, list) for entry in argument):
        return tuple(_shape(entry) for entry in argument)
    if kind == "TensorList" or kind in _NOT_TENSORS:
        return ()
    if kind == "?" and not argument:
        return ()
    return (_shape(argument),)


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int for n in value):
        raise ValueError(f"expected a shape, got {str(value)[:60]!r}")
    if any(n < 0 for n in value) or prod(value) > MAX_ELEMENTS:
        raise ValueError(f"{value[:8]} is no shape of a tensor")
    return tuple(value)
