"""`--set key=value`."""

from __future__ import annotations

import doctest

import pytest

from loopopt.cli import jobs as jobs_module
from loopopt.cli import netns, settings
from loopopt.config import LoopConfig
from loopopt.errors import UsageError


@pytest.mark.parametrize("module", [settings, jobs_module])
def test_the_examples_in_the_docstrings_hold(module: object) -> None:
    """They are the first tests."""
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_settings_get_the_type_of_their_field() -> None:
    """Text in, numbers out."""
    changed = settings.loop_config(["trial_steps=20", "min_gain=0.02", "metrics_host=0.0.0.0"])
    assert changed == LoopConfig(trial_steps=20, min_gain=0.02, metrics_host="0.0.0.0")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trial_steps", "give KEY=VALUE"),
        ("no_such=1", "no such setting; there are baseline_steps"),
        ("trial_steps=many", "trial_steps=many: should be of type int"),
        ("trial_steps=1", "at least 5"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    """A person should not have to look for it."""
    with pytest.raises(UsageError, match=message):
        settings.loop_config([setting])


@pytest.mark.parametrize("rate", ["fast", "10", "10 mbit", "1mbit; reboot"])
def test_a_rate_that_tc_does_not_know_is_refused(rate: str) -> None:
    """Before anything is started."""
    with pytest.raises(UsageError, match="--rate"):
        netns.checked_rate(rate)


@pytest.mark.shaped
def test_the_shaped_loopback_is_as_slow_as_asked_and_private() -> None:
    """The limit is set inside; outside nothing has changed."""
    import subprocess

    if why_not := netns.why_not():
        pytest.skip(f"no shaped loopback here: {why_not}")
    show = [netns.find("tc") or "tc", "qdisc", "show", "dev", "lo"]
    inside = subprocess.run(netns.wrapped(show, "300mbit"), capture_output=True, text=True, check=True).stdout
    outside = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert "300Mbit" in inside
    assert "300Mbit" not in outside
