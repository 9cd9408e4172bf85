"""``--set key=value`` to a `LoopConfig`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loopopt.errors import UsageError

if TYPE_CHECKING:
    from loopopt.config import LoopConfig

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


def loop_config(settings: Sequence[str]) -> LoopConfig:
    """The configuration with these settings changed.

    Raises:
        UsageError: an unknown setting or a value of the wrong kind; the message names it.
    """
    from loopopt.config import LoopConfig

    kinds = typing.get_type_hints(LoopConfig)
    names = [f.name for f in dataclasses.fields(LoopConfig)]
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r}: give KEY=VALUE")
        if name not in names:
            raise UsageError(f"--set {name}: no such setting; there are {', '.join(names)}")
        values[name] = convert(name, text, kinds[name])
    return LoopConfig(**values)


def convert(name: str, text: str, kind: object) -> Any:
    """A value from the command line in the type of the field.

    >>> convert("steps", "3", int), convert("watch", "no", bool), convert("port", "none", int | None)
    (3, False, None)

    Raises:
        UsageError: the text is no such value.
    """
    choices = typing.get_args(kind)
    if type(None) in choices:
        if text.lower() in ("", "none"):
            return None
        kind = next(c for c in choices if c is not type(None))
    try:
        if kind is bool:
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError
            return text.lower() in _TRUE
        if kind in (int, float):
            return int(text) if kind is int else float(text)
    except ValueError as err:
        wanted = getattr(kind, "__name__", str(kind))
        raise UsageError(f"--set {name}={text}: should be of type {wanted}") from err
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        return tuple(convert(name, part, inner) for part in text.split(",") if part)
    return text
