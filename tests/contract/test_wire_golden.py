"""The wire format, byte for byte. A change here needs a new `wire.VERSION`, or a new field with a default."""

from __future__ import annotations

from pathlib import Path

from loopopt import wire
from loopopt.plans import BASELINE

GOLDEN = Path(__file__).with_name("wire.golden")

EXAMPLES: tuple[wire.Message, ...] = (
    wire.Hello(
        job="night",
        rank=1,
        local_rank=1,
        world_size=2,
        pid=4711,
        host="node1",
        torch="2.13.0",
        backend="gloo",
        device="cpu",
        attempt=0,
        mode="closed_loop",
        reason="",
        step=3,
        active_plan="as-it-was",
        features={"cache_key_tag": "ok"},
        leader="node0",
    ),
    wire.Steps(rank=1, first_step=4, durations_us=[1000.5, 990.25], plan_id="as-it-was", peak_memory_bytes=7),
    wire.Heartbeat(rank=1, step=5, agent_us=12.5, compiled=True, leader="node0"),
    wire.WindowDone(rank=1, window_id="w1", first_step=6, steps=3, plan_id="as-it-was", path="/j/t", overhead_us=9.5),
    wire.PlanResult(rank=1, plan_id="0123456789ab", step=9, outcome="applied", compile_us=2.5, graphs=2),
    wire.Disarmed(rank=1, reason="internal error"),
    wire.Goodbye(rank=1, step=10),
    wire.Welcome(pid=4000, loopopt="0.1.0"),
    wire.Capture(window_id="w1", steps=3),
    wire.Apply(plan=BASELINE.to_json()),
    wire.Release(restore=True),
    wire.Post(topic="w/1.6", content="{}"),
    wire.Fetch(topic="w/1.6", seconds=300.0),
    wire.Posted(rank=0, topic="w/1.6", number=1, content="{}"),
)


def test_there_is_an_example_of_every_message() -> None:
    """A new message type must be frozen too."""
    assert [type(example) for example in EXAMPLES] == list(wire.MESSAGES.values())


def test_the_bytes_on_the_wire_are_as_they_were() -> None:
    """Agents of a running job and a newly installed daemon talk to each other."""
    assert b"".join(wire.encode(example) for example in EXAMPLES) == GOLDEN.read_bytes()


def test_the_frozen_bytes_can_still_be_read() -> None:
    """Old messages decode to the same values."""
    assert tuple(wire.decode(line) for line in GOLDEN.read_bytes().splitlines()) == EXAMPLES
