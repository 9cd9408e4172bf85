"""Which optimizer calls end a training step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from loopopt_agent.steps import StepCounter


def ends(calls: str) -> str:
    """One digit per call: 1 where a step was counted."""
    counter = StepCounter()
    return "".join(str(int(counter.on_optimizer(ord(call)))) for call in calls)


def test_one_optimizer_steps_once_per_iteration() -> None:
    """Every call counts."""
    assert ends("aaaaaaaa") == "11111111"


def test_two_optimizers_make_one_step() -> None:
    """Once the period is known, each second call counts."""
    assert ends("ababababababab")[-8:] == "01010101"


def test_a_gan_with_several_discriminator_steps() -> None:
    """The step ends at the rarer optimizer."""
    assert ends("aab" * 8)[-9:] == "001001001"


def test_a_sequence_without_period_counts_nothing() -> None:
    """No guess: nothing is counted while no period fits."""
    assert "1" not in ends("aabbbabaaabbbb")[4:]
