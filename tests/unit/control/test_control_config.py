"""Settings that contradict themselves are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from loopopt.config import LoopConfig
from loopopt.errors import UsageError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("baseline_steps", 1),
        ("trial_steps", 4),
        ("window_steps", 0),
        ("max_trials", 0),
        ("trace_keep", 0),
        ("sampling_duty", 0.0),
        ("sampling_duty", 0.9),
        ("confidence", 1.0),
        ("min_gain", -0.1),
        ("settle_steps", -1),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_key(key: str, value: Any) -> None:
    """The message says which setting it was, as the person wrote it."""
    with pytest.raises(UsageError, match=f"^{key}="):
        LoopConfig(**{key: value})


def test_the_settings_cannot_be_changed_afterwards() -> None:
    """What was checked stays as it was."""
    with pytest.raises(AttributeError):
        LoopConfig().trial_steps = 1  # type: ignore[misc]
