"""Messages between agent and daemon. Their exact bytes are frozen in tests/contract."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopopt import wire
from loopopt.errors import WireError

_VALUES = {
    "int": st.integers(-(2**53), 2**53),
    "float": st.floats(allow_nan=False, allow_infinity=False),
    "str": st.text(max_size=20),
    "bool": st.booleans(),
    "list[float]": st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5),
    "dict[str, str]": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    "dict[str, Any]": st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3),
}


def messages() -> st.SearchStrategy[wire.Message]:
    return st.one_of(
        *(st.builds(kind, **{f.name: _VALUES[str(f.type)] for f in fields(kind)}) for kind in wire.MESSAGES.values())
    )


@given(messages())
def test_every_message_survives_the_wire_as_one_line(message: wire.Message) -> None:
    """Framing is by newline, so the text itself must have none."""
    line = wire.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode(line) == message


@given(st.binary(max_size=200))
def test_any_other_bytes_are_a_wire_error_and_nothing_else(line: bytes) -> None:
    """The receiver catches one exception to drop the connection."""
    with pytest.raises(WireError):
        wire.decode(line)


def _body(**changed: Any) -> bytes:
    return json.dumps({**json.loads(wire.encode(wire.Goodbye(rank=1, step=2))), **changed}).encode()


def test_unknown_fields_are_ignored_and_missing_defaults_filled_in() -> None:
    """A newer peer may send more, an older one less."""
    assert wire.decode(_body(mood="good")) == wire.Goodbye(rank=1, step=2)
    short = b'{"v":1,"type":"heartbeat","rank":0,"step":5,"agent_us":1}'
    assert wire.decode(short) == wire.Heartbeat(rank=0, step=5, agent_us=1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"v": 2}, "version 2"),
        ({"v": None}, "version None"),
        ({"type": "nonsense"}, "unknown message type 'nonsense'"),
        ({"type": ["goodbye"]}, "unknown message type"),
        ({"rank": "1"}, "field 'rank' should be int, got str"),
        ({"rank": True}, "field 'rank' should be int, got bool"),
        ({"rank": 1.5}, "field 'rank' should be int, got float"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    """The log of the daemon is where somebody will look for it."""
    with pytest.raises(WireError, match=message):
        wire.decode(_body(**changed))


def test_a_missing_field_is_named() -> None:
    """Required fields have no default."""
    for kind in wire.MESSAGES.values():
        for f in fields(kind):
            if f.default is MISSING and f.default_factory is MISSING:
                with pytest.raises(WireError, match=r"field '\w+' is missing"):
                    wire.decode(json.dumps({"v": wire.VERSION, "type": kind.TYPE}).encode())


def test_an_oversized_line_is_refused_before_it_is_parsed() -> None:
    """A broken or hostile peer must not make the daemon allocate without bound."""
    with pytest.raises(WireError, match="longer than"):
        wire.decode(b" " * (wire.MAX_MESSAGE_BYTES + 1))


def test_deep_nesting_is_a_wire_error() -> None:
    """Python's JSON parser recurses."""
    with pytest.raises(WireError, match="not JSON"):
        wire.decode(b"[" * 200_000)
