"""The error tree."""

from __future__ import annotations

import inspect

from loopopt import errors
from loopopt.errors import LoopoptError, TraceError


def test_every_error_is_in_the_tree_with_its_own_exit_code() -> None:
    """Scripts can tell the errors apart by exit code, and one `except` catches them all."""
    found = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    assert all(issubclass(c, LoopoptError) for c in found)
    assert sorted(c.exit_code for c in found) == [*range(1, 9), 11]  # 9 and 10 come with results


def test_a_trace_error_names_file_and_offset() -> None:
    """A person can go and look at the very byte."""
    assert str(TraceError("/t/rank0.json", "expected an object", 17)) == "/t/rank0.json (byte 17): expected an object"
    assert str(TraceError("/t/rank0.json", "empty file")) == "/t/rank0.json: empty file"
