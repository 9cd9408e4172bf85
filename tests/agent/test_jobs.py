"""The agent in real two-rank jobs, with the daemon's end of the line driven by the test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from jobs import PLAN, losses, start
from scripted_daemon import ScriptedDaemon

from loopopt import wire
from loopopt.plans import BASELINE, Knobs, Plan

pytestmark = [pytest.mark.torch, pytest.mark.processes]


@pytest.fixture
def job_dir() -> Iterator[Path]:
    """Short, because a Unix socket path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def plain_losses(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The same job without loopopt."""
    code, steps, err = start(tmp_path_factory.mktemp("plain"), None, "--pause", "0").finish()
    assert code == 0, err
    return losses(steps)


def test_a_plan_is_applied_by_all_ranks_and_taken_back(
    tmp_path: Path, job_dir: Path, plain_losses: list[float]
) -> None:
    """Window, switch and back: the same order on both ranks, and the loss of the plain job, bit for bit."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--pause", "0.6")
    hellos = daemon.wait(wire.Hello, 2)
    assert {h.rank for h in hellos} == {0, 1}
    assert {h.mode for h in hellos} == {"closed_loop"}
    daemon.send(wire.Capture("before", 2))
    windows = daemon.wait(wire.WindowDone, 2)
    assert [w.error for w in windows] == ["", ""]
    assert windows[0].first_step == windows[1].first_step
    assert all(b"loopopt.step#" in Path(w.path).read_bytes() for w in windows)
    daemon.send(wire.Apply(PLAN.to_json()))
    applied = daemon.wait(wire.PlanResult, 2)
    assert [r.outcome for r in applied] == ["applied", "applied"]
    assert {r.plan_id for r in applied} == {PLAN.plan_id}
    assert applied[0].step == applied[1].step
    assert applied[0].order_digest == applied[1].order_digest != ""
    assert all(r.graphs >= 2 and r.estimator_hits > 0 for r in applied)
    daemon.send(wire.Apply(BASELINE.to_json()))
    assert [r.plan_id for r in daemon.wait(wire.PlanResult, 2)] == ["as-it-was", "as-it-was"]
    code, steps, err = job.finish()
    assert code == 0, err
    assert losses(steps) == plain_losses
    plans = {m.plan_id for m in daemon.messages if isinstance(m, wire.Steps)}
    assert plans == {"as-it-was", PLAN.plan_id}


def test_without_a_daemon_training_does_not_notice(tmp_path: Path, job_dir: Path, plain_losses: list[float]) -> None:
    """Armed, and nobody ever comes."""
    code, steps, err = start(tmp_path, job_dir, "--pause", "0").finish()
    assert code == 0, err
    assert losses(steps) == plain_losses


@pytest.mark.parametrize("fault", ["compile:1", "order:1"])
def test_what_goes_wrong_on_one_rank_sends_all_back_together(
    tmp_path: Path, job_dir: Path, plain_losses: list[float], fault: str
) -> None:
    """A compile that fails on one rank, or another order there: caught before execution, no hang, same loss."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, LOOPOPT_FAULT=fault)
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Apply(PLAN.to_json()))
    results = daemon.wait(wire.PlanResult, 2)
    assert [r.outcome for r in results] == ["infeasible", "infeasible"]
    assert all("rank 1" in r.reason for r in results)
    code, steps, err = job.finish()
    assert code == 0, err
    assert losses(steps) == plain_losses


@pytest.mark.parametrize(
    "fault",
    ["arm", "step:1", "decision:0", "decision:1", "offer:1", "capture:1", "write", "apply:1", "result:0", "client"],
)
def test_an_exception_in_any_phase_leaves_the_job_alone(
    tmp_path: Path, job_dir: Path, plain_losses: list[float], fault: str
) -> None:
    """The agent fails; the training ends with the loss it would have had."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, LOOPOPT_FAULT=fault)
    if fault not in ("arm", "step:1", "client"):
        daemon.wait(wire.Hello, 2)
        daemon.send(wire.Capture("w", 1))
        daemon.send(wire.Apply(PLAN.to_json()))
    code, steps, err = job.finish(300)
    assert code == 0, err
    assert losses(steps) == plain_losses
    assert fault in ("write", "capture:1", "offer:1") or "injected fault" in err


def test_a_job_without_compile_is_observed_and_told_so(tmp_path: Path, job_dir: Path) -> None:
    """Nothing to reschedule: mode "observe" with the reason; windows still work; a plan is refused by all."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--eager", "--steps", "80")
    beat = next(b for b in iter(lambda: daemon.wait(wire.Heartbeat)[0], None) if b.step > 4)
    assert beat.mode == "observe"
    assert "torch.compile" in beat.reason
    daemon.send(wire.Capture("w", 1))
    assert [w.error for w in daemon.wait(wire.WindowDone, 2)] == ["", ""]
    daemon.send(wire.Apply(PLAN.to_json()))
    assert daemon.wait(wire.PlanResult)[0].outcome == "infeasible"
    assert job.finish()[0] == 0


def test_a_job_that_warms_up_uncompiled_is_not_given_up(tmp_path: Path, job_dir: Path) -> None:
    """First "observe", and the loop can be closed as soon as something is compiled."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--compile-at", "25", "--steps", "60")
    modes = [daemon.wait(wire.Heartbeat)[0].mode]
    while modes[-1] == "closed_loop" and len(modes) < 20:
        modes.append(daemon.wait(wire.Heartbeat)[0].mode)
    assert modes[-1] == "observe"
    while modes[-1] == "observe" and len(modes) < 40:
        modes.append(daemon.wait(wire.Heartbeat)[0].mode)
    assert modes[-1] == "closed_loop"
    daemon.send(wire.Apply(PLAN.to_json()))
    assert {r.outcome for r in daemon.wait(wire.PlanResult, 2)} == {"applied"}
    assert job.finish()[0] == 0


def test_shapes_that_change_are_compiled_again_under_the_plan(tmp_path: Path, job_dir: Path) -> None:
    """Dynamic batch sizes: later compiles are agreed on too, and the loss is that of the plain job."""
    code, plain, err = start(tmp_path, None, "--dynamic", "--pause", "0", "--steps", "30").finish()
    assert code == 0, err
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--dynamic", "--steps", "30", "--pause", "0.5")
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Apply(PLAN.to_json()))
    assert [r.outcome for r in daemon.wait(wire.PlanResult, 2)] == ["applied", "applied"]
    code, steps, err = job.finish()
    assert code == 0, err
    assert losses(steps) == losses(plain)


def test_the_users_own_profiler_goes_first(tmp_path: Path, job_dir: Path, plain_losses: list[float]) -> None:
    """A window that is open when the job starts its profiler is dropped; the job's profile is whole."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--profile-at", "14", "--pause", "0.4")
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Capture("w", 100))
    assert all(w.error.startswith("user_profiler") for w in daemon.wait(wire.WindowDone, 2))
    code, steps, err = job.finish()
    assert code == 0, err
    assert losses(steps) == plain_losses


def test_loader_workers_and_the_torchrun_agent_are_not_ranks(tmp_path: Path, job_dir: Path) -> None:
    """Spawned workers inherit RANK; only the two ranks say hello."""
    daemon = ScriptedDaemon(job_dir)
    code, _, err = start(tmp_path, job_dir, "--loader").finish()
    assert code == 0, err
    hellos = [m for m in daemon.messages if isinstance(m, wire.Hello)]
    assert sorted(h.rank for h in hellos) == [0, 1]
    assert len({h.pid for h in hellos}) == 2


def test_a_killed_rank_comes_back_with_torchrun(tmp_path: Path, job_dir: Path) -> None:
    """torchrun restarts both ranks: new hellos with the attempt, the original schedule, and a plan that still works."""
    daemon = ScriptedDaemon(job_dir)
    # With the store shared between attempts, gloo (2.13) finds the dead ranks' addresses in it and cannot connect,
    # with or without loopopt: each attempt gets a store of its own.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    restarts = ("--max-restarts", "1")
    job = start(tmp_path, job_dir, "--die-once", "8", "--pause", "0.5", torchrun=restarts, **own_store)
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Apply(PLAN.to_json()))
    again = daemon.wait(wire.Hello, 2, timeout_s=120)
    assert {h.attempt for h in again} == {1}
    assert {h.active_plan for h in again} == {"as-it-was"}
    daemon.send(wire.Apply(PLAN.to_json()))
    results = daemon.wait(wire.PlanResult, 2)
    assert {r.outcome for r in results} == {"applied"}
    assert job.finish()[0] == 0


def test_a_script_may_mark_its_steps_itself(tmp_path: Path, job_dir: Path) -> None:
    """No optimizer anywhere: `loopopt_agent.step()` makes the boundaries."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--no-optimizer")
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Capture("w", 2))
    assert [w.error for w in daemon.wait(wire.WindowDone, 2)] == ["", ""]
    assert job.finish()[0] == 0


def test_a_daemon_that_dies_and_comes_back_learns_the_plan_in_force(tmp_path: Path, job_dir: Path) -> None:
    """The line is cut under a plan; the next daemon hears of it in the hello, and can take it back."""
    first = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir, "--pause", "0.5", "--steps", "40")
    first.wait(wire.Hello, 2)
    first.send(wire.Apply(PLAN.to_json()))
    assert {r.outcome for r in first.wait(wire.PlanResult, 2)} == {"applied"}
    first.close()
    second = ScriptedDaemon(job_dir)
    assert {h.active_plan for h in second.wait(wire.Hello, 2)} == {PLAN.plan_id}
    second.send(wire.Release(restore=True))
    assert {r.plan_id for r in second.wait(wire.PlanResult, 2)} == {"as-it-was"}
    assert job.finish()[0] == 0


def test_an_unknown_setting_is_infeasible_by_name(tmp_path: Path, job_dir: Path) -> None:
    """A plan this torch cannot carry out is refused by all ranks, with the mode it asked for in the reason."""
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir)
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Apply(Plan("odd", Knobs(scheduling=True, bucket_mode="nonsense"), PLAN.table).to_json()))
    results = daemon.wait(wire.PlanResult, 1)
    assert results[0].outcome == "infeasible"
    assert job.finish()[0] == 0


def test_a_read_only_trace_directory_costs_a_window_and_nothing_else(tmp_path: Path, job_dir: Path) -> None:
    """The trace directory is a file: the window is reported as failed with the path in it, and the job ends well."""
    (job_dir / wire.TRACE_DIR_NAME).write_text("in the way")
    daemon = ScriptedDaemon(job_dir)
    job = start(tmp_path, job_dir)
    daemon.wait(wire.Hello, 2)
    daemon.send(wire.Capture("w", 1))
    windows = daemon.wait(wire.WindowDone, 2)
    assert all(w.error.startswith("disk") and os.fspath(job_dir) in w.error for w in windows)
    assert job.finish()[0] == 0
