"""`loopopt run`, `attach` and `detach` on real two-rank jobs with a real daemon."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from jobs import SCRIPT, losses, start

from loopopt import ctl, wire
from loopopt.errors import DaemonError

pytestmark = [pytest.mark.torch, pytest.mark.processes]

QUICK = ("baseline_steps=5", "trial_steps=5", "min_exposed_share=0.0001", "settle_steps=1", "max_trials=2")


@pytest.fixture
def home() -> Iterator[Path]:
    """A short directory for jobs (socket paths)."""
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name:
        yield Path(name)


def environment(home: Path) -> dict[str, str]:
    """Without any loopopt of the surroundings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LOOPOPT")}
    return {**clean, "LOOPOPT_HOME": str(home), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}


def loopopt(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    command = [sys.executable, "-m", "loopopt", *arguments]
    return subprocess.run(command, env=environment(home), text=True, capture_output=True, timeout=120)


def start_run(home: Path, log: Path, steps: int, pause: float, **env: str) -> subprocess.Popen[str]:
    """`loopopt run` of the test script."""
    command = [sys.executable, "-m", "loopopt", "run", "--name", "job", "--summary-json", str(home / "summary.json")]
    for setting in QUICK:
        command += ["--set", setting]
    command += ["--", sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(SCRIPT), "--steps-log", str(log), "--steps", str(steps), "--pause", str(pause)]
    return subprocess.Popen(
        command, env=environment(home) | env, text=True, stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for(job_dir: Path, reached: Callable[[dict[str, Any]], bool], timeout_s: float = 240.0) -> dict[str, Any]:
    """The first status for which `reached` holds."""
    deadline = time.monotonic() + timeout_s
    status: dict[str, Any] = {}
    while time.monotonic() < deadline:
        try:
            status = ctl.request(job_dir, "status", 10.0)
        except DaemonError:
            status = {}
        if status and reached(status):
            return status
        time.sleep(0.1)
    raise AssertionError(f"not reached within {timeout_s} s: {json.dumps(status, indent=1)[-3000:]}")


def test_the_loop_is_closed_on_a_real_job(home: Path, tmp_path: Path) -> None:
    """Baseline, plans, verdicts, metrics; same exit code and the loss of the plain job, bit for bit."""
    code, plain, err = start(tmp_path, None, "--steps", "130", "--pause", "0").finish()
    assert code == 0, err
    log = tmp_path / "run.jsonl"
    run = start_run(home, log, steps=130, pause=0.25)
    status = wait_for(home / "job", lambda s: s["phase"] == "watching")
    trials = {t["label"]: t for t in status["trials"]}
    assert trials.pop("as it was")["verdict"] == "baseline"
    assert len(trials) == 2
    assert {t["verdict"] for t in trials.values()} <= {"kept", "rolled_back"}
    assert all(t["samples"] >= 5 and t["gain"] is not None and t["exposed_us"] is not None for t in trials.values())
    assert status["counters"]["recompiles"] >= 2
    with urllib.request.urlopen(f"http://127.0.0.1:{status['metrics_port']}/metrics", timeout=10) as page:
        metrics = page.read().decode()
    assert 'loopopt_registered_ranks{state="live"} 2.0' in metrics
    assert "loopopt_exposed_communication_seconds_total{" in metrics
    assert "loopopt_step_duration_seconds_count" in metrics
    graphs = list((home / "job" / "graphs").glob("*.json"))
    assert graphs
    table = home / "table.json"
    assert loopopt(home, "table", "build", str(home / "job" / "traces" / "w000001"), "-o", str(table)).returncode in (
        0,
        9,
    )
    for path in graphs:
        simulated = loopopt(home, "plan", "simulate", str(path), "--table", str(table), "--json")
        assert simulated.returncode == 0, simulated.stderr
        found = json.loads(simulated.stdout)["schedules"]
        assert 0 < found[-1]["step_us"] <= found[0]["step_us"]
    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
    assert "plans tried" in err
    assert json.loads((home / "summary.json").read_text())["trials"]
    assert losses([json.loads(line) for line in log.read_text().splitlines()]) == losses(plain)
    with pytest.raises(DaemonError, match="no daemon"):
        ctl.request(home / "job", "status")


def test_a_daemon_killed_in_every_phase_is_not_noticed_and_goes_on(home: Path, tmp_path: Path) -> None:
    """kill -9 in each phase, a new daemon each time: the state is whole, the loop ends, the training never stops."""
    job_dir = home / "job"
    job_dir.mkdir(mode=0o700)
    job = start(tmp_path, job_dir, "--steps", "420", "--pause", "0.15")
    command = [sys.executable, "-m", "loopopt", "daemon", "--dir", str(job_dir)]
    for setting in QUICK:
        command += ["--set", setting]
    survived = []
    for phase in ("waiting", "baseline", "capturing", "applying", "trial", "watching"):
        daemon = subprocess.Popen(command, env=environment(home), stderr=subprocess.DEVNULL)
        wait_for(job_dir, lambda s, phase=phase: s["phase"] == phase)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
        with sqlite3.connect(job_dir / wire.STATE_NAME) as state:
            assert state.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        survived.append(phase)
    assert len(survived) == 6
    last = subprocess.Popen(command, env=environment(home), stderr=subprocess.DEVNULL)
    status = wait_for(job_dir, lambda s: s["phase"] == "watching")
    assert status["counters"]["recompiles"] >= 1, "counters outlive the daemon"
    code, steps, err = job.finish(400)
    assert code == 0, err
    assert len(steps) == 420
    last.send_signal(signal.SIGTERM)
    assert last.wait(timeout=20) == 0


def test_attach_to_a_running_job_and_detach_with_the_original_schedule(home: Path, tmp_path: Path) -> None:
    """A job started without a daemon is listed, attached to, and left as it was."""
    job_dir = home / "late"
    job_dir.mkdir(mode=0o700)
    job = start(tmp_path, job_dir, "--steps", "150", "--pause", "0.25")
    deadline = time.monotonic() + 60
    while len(list((job_dir / wire.RANKS_DIR_NAME).glob("*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.2)
    listed = loopopt(home, "attach")
    pids = [path.name.split(".")[1] for path in (job_dir / wire.RANKS_DIR_NAME).glob("*.json")]
    assert len(pids) == 2
    rows = [line for line in listed.stdout.splitlines() if any(f" {pid} " in line for pid in pids)]
    assert ["yes" in row for row in rows] == [True, True], listed.stdout + listed.stderr
    attached = loopopt(home, "attach", str(job_dir))
    assert attached.returncode == 0, attached.stderr
    assert len(wait_for(job_dir, lambda s: s["world_size"] == 2)["ranks"]) == 2
    assert loopopt(home, "attach", str(job_dir)).returncode in (0, 6, 7), "a second attach is an answer, not a crash"
    detached = loopopt(home, "detach", str(job_dir), "--restore")
    assert detached.returncode == 0, detached.stderr
    with pytest.raises(DaemonError, match="no daemon"):
        wait_until_gone(job_dir)
    code, steps, err = job.finish(240)
    assert code == 0, err
    assert len(steps) == 150


def wait_until_gone(job_dir: Path) -> None:
    """Ask until nobody answers; raises what the last question got."""
    for _ in range(100):
        ctl.request(job_dir, "status")
        time.sleep(0.1)


def test_interrupting_run_stops_job_and_daemon(home: Path, tmp_path: Path) -> None:
    """Ctrl-C: the whole foreground group gets SIGINT; the job ends, the daemon too, and the code says so."""
    run = start_run(home, tmp_path / "log.jsonl", steps=400, pause=0.2)
    wait_for(home / "job", lambda s: s["world_size"] == 2)
    os.killpg(run.pid, signal.SIGINT)
    _, err = run.communicate(timeout=90)
    assert run.returncode not in (0, None), err
    with pytest.raises(DaemonError, match="no daemon"):
        ctl.request(home / "job", "status")


def test_a_torn_trace_costs_one_window(home: Path, tmp_path: Path) -> None:
    """A file cut in half on one rank: the window is dropped by name, counted, and taken again."""
    job_dir = home / "job"
    log = tmp_path / "run.jsonl"
    run = start_run(home, log, steps=160, pause=0.25, LOOPOPT_FAULT="torn:1")
    status = wait_for(job_dir, lambda s: any("dropped" in n for n in s["notes"]))
    assert any("rank1.pt.trace.json" in n for n in status["notes"])
    _, err = run.communicate(timeout=240)
    assert run.returncode == 0, err
