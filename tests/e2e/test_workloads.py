"""Other kinds of jobs under a plan: it is used or said not to be, and the losses are those of the plain job."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import PLAN, Job, losses, start
from scripted_daemon import ScriptedDaemon

from loopopt import wire
from loopopt.graphs import START, WAIT, Graph, Schedule, lawful
from loopopt.plans import Plan

pytestmark = [pytest.mark.torch, pytest.mark.processes]

SCRIPT = Path(__file__).with_name("workloads.py")


@pytest.fixture
def job_dir() -> Iterator[Path]:
    """Short, because a Unix socket path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name:
        yield Path(name)


@contextlib.contextmanager
def beside_plain(tmp_path: Path, job_dir: Path, kind: str, ranks: int, steps: int) -> Iterator[ScriptedDaemon]:
    """A job whose agents are there, after the same one without loopopt; at its end their losses must be equal."""

    def begin(directory: Path | None, pause: str) -> Job:
        options = ("--steps", str(steps), "--pause", pause)
        return start(tmp_path, directory, *options, script=(SCRIPT, kind), ranks=ranks)

    code, plain, err = begin(None, "0").finish()
    assert code == 0, err
    daemon = ScriptedDaemon(job_dir)
    job = begin(job_dir, "0.7")
    daemon.wait(wire.Hello, ranks)
    yield daemon
    code, done, err = job.finish()
    assert code == 0, err
    assert losses(done) == losses(plain)


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
    with beside_plain(tmp_path, job_dir, kind, ranks, steps=30) as daemon:
        daemon.send(wire.Capture("w", 2))
        assert {w.error for w in daemon.wait(wire.WindowDone, ranks)} == {""}
        daemon.send(wire.Apply(PLAN.to_json()))
        results = daemon.wait(wire.PlanResult, ranks)
        assert {r.outcome for r in results} == {outcome}, results
        assert len({r.order_digest for r in results}) == 1


def early(graph: Graph) -> Schedule:
    """Every collective as early, every wait as late as can be; what can be merged in pairs is."""
    wish = sorted(range(len(graph.nodes)), key=lambda i: ({START: 0, WAIT: 2}.get(graph.nodes[i].role, 1), i))
    keys: dict[str, list[int]] = {}
    for i in graph.starts():
        collective = graph.nodes[i].collective
        if collective is not None and collective.bucket_key:
            keys.setdefault(collective.bucket_key, []).append(i)
    buckets: list[tuple[int, int]] = []
    for members in keys.values():
        for pair in zip(members[::2], members[1::2], strict=False):
            if lawful(graph, wish, [*buckets, pair]) is not None:
                buckets.append(pair)
    found = lawful(graph, wish, buckets)
    assert found is not None
    return found


@pytest.mark.parametrize(("kind", "ranks"), [("hybrid", 4)])
def test_our_own_schedule_on_a_real_job(tmp_path: Path, job_dir: Path, kind: str, ranks: int) -> None:
    """Schedules for the graphs of the first plan's compile, written back on all ranks: used, and the same losses."""
    with beside_plain(tmp_path, job_dir, kind, ranks, steps=40) as daemon:
        daemon.send(wire.Apply(PLAN.to_json()))
        assert {r.outcome for r in daemon.wait(wire.PlanResult, ranks)} == {"applied"}
        graphs = [Graph.from_json(json.loads(p.read_text())) for p in (job_dir / wire.GRAPH_DIR_NAME).glob("*.json")]
        assert graphs
        schedules = [early(graph) for graph in graphs]
        assert any(list(s.order) != sorted(s.order) for s in schedules)
        assert any(s.buckets for s in schedules)
        daemon.send(wire.Apply(Plan("own", PLAN.knobs, PLAN.table, tuple(schedules)).to_json()))
        results = daemon.wait(wire.PlanResult, ranks)
        assert {r.outcome for r in results} == {"applied"}, results
        assert len({r.order_digest for r in results}) == 1
