"""Other kinds of jobs under a plan: it is used or said not to be, and the losses are those of the plain job."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import PLAN, losses, start
from scripted_daemon import ScriptedDaemon

from loopopt import wire

pytestmark = [pytest.mark.torch, pytest.mark.processes]

SCRIPT = Path(__file__).with_name("workloads.py")


@pytest.fixture
def job_dir() -> Iterator[Path]:
    """Short, because a Unix socket path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("kind", "ranks", "outcome"),
    [
        ("tensor", 2, "applied"),
        ("compiled", 2, "applied"),
        ("experts", 2, "applied"),
        ("hybrid", 4, "applied"),
        ("data", 2, "unused"),
        ("fsdp", 2, "unused"),
    ],
)
def test_a_plan_on_another_kind_of_job(tmp_path: Path, job_dir: Path, kind: str, ranks: int, outcome: str) -> None:
    """All ranks report the same, nothing hangs, and the losses are equal to the last bit."""
    code, plain, err = start(
        tmp_path, None, "--steps", "30", "--pause", "0", script=(SCRIPT, kind), ranks=ranks
    ).finish()
    assert code == 0, err
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--steps", "30", "--pause", "0.7", script=(SCRIPT, kind), ranks=ranks)
    daemon.wait(wire.Hello, ranks)
    daemon.send(wire.Capture("w", 2))
    assert {w.error for w in daemon.wait(wire.WindowDone, ranks)} == {""}
    daemon.send(wire.Apply(PLAN.to_json()))
    results = daemon.wait(wire.PlanResult, ranks)
    assert {r.outcome for r in results} == {outcome}, results
    assert len({r.order_digest for r in results}) == 1
    code, steps, err = job.finish()
    assert code == 0, err
    assert losses(steps) == losses(plain)
