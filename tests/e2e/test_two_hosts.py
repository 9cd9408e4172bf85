"""A job on two hosts with a daemon on each: one decision, own metrics, and what breaks between them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from jobs import SCRIPT
from two_hosts import METRICS_PORT, Host, TwoHosts, steps_of, why_not

from loopopt import ctl
from loopopt.errors import DaemonError

WHY_NOT = why_not()
pytestmark = [pytest.mark.torch, pytest.mark.processes, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

QUICK = (
    "baseline_steps=5",
    "trial_steps=5",
    "min_exposed_share=0.0001",
    "settle_steps=1",
    "max_trials=1",
    "window_timeout_s=8",
    "sampling_interval_s=2",
    "sampling_duty=0.5",
    "metrics_host=0.0.0.0",
    f"metrics_port={METRICS_PORT}",
)


class Job:
    """A training job on two hosts, one rank each, and the daemons beside it."""

    def __init__(self, hosts: TwoHosts, folder: Path) -> None:
        self.pair = hosts
        self.first, self.second = hosts.hosts
        self.folder = folder
        self.log = folder / "steps.jsonl"
        self.stop_file = folder / "stop"
        self.daemons: dict[int, subprocess.Popen[str]] = {}
        script = [str(SCRIPT), "--steps-log", str(self.log), "--steps", "100000", "--pause", "0.05"]
        self.ranks = hosts.torchrun([*script, "--stop-file", str(self.stop_file)], folder)

    def start_daemon(self, host: Host) -> None:
        """As a service manager would."""
        command = [sys.executable, "-m", "loopopt", "daemon", "--dir", str(host.job_dir)]
        for setting in QUICK:
            command += ["--set", setting]
        self.daemons[host.number] = host.start(command, self.folder / f"daemon{host.number}.err")

    def kill_daemon(self, host: Host) -> None:
        """kill -9."""
        daemon = self.daemons.pop(host.number)
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()

    def wait_for(self, host: Host, reached: Callable[[dict[str, Any]], bool], limit_s: float = 120.0) -> dict[str, Any]:
        """The first status of a host's daemon for which `reached` holds."""
        deadline = time.monotonic() + limit_s
        status: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                status = ctl.request(host.job_dir, "status", 10.0)
            except DaemonError:
                status = {}
            if status and reached(status):
                return status
            time.sleep(0.1)
        raise AssertionError(f"{host.name}, not within {limit_s} s: {json.dumps(status, indent=1)[-3000:]}")

    def trains_on(self, steps: int = 5, limit_s: float = 90.0) -> None:
        """So many more steps are done."""
        wanted = steps_of(self.log) + steps
        deadline = time.monotonic() + limit_s
        while steps_of(self.log) < wanted:
            assert time.monotonic() < deadline, f"only {steps_of(self.log)} steps, {wanted} wanted"
            assert all(rank.poll() is None for rank in self.ranks), "a node has ended"
            time.sleep(0.05)

    def finish(self) -> None:
        """The job ends by itself, in good order on both hosts."""
        self.stop_file.touch()
        for rank, host in zip(self.ranks, self.pair.hosts, strict=True):
            assert rank.wait(90) == 0, (self.folder / f"torchrun{host.number}.err").read_text()[-3000:]


@pytest.fixture
def job() -> Iterator[Job]:
    """A job that trains, with both daemons."""
    with tempfile.TemporaryDirectory(prefix="lo", dir="/tmp") as name, TwoHosts(Path(name)) as hosts:
        running = Job(hosts, Path(name))
        for host in hosts.hosts:
            running.start_daemon(host)
        yield running


def _measured_together(status: dict[str, Any]) -> bool:
    tried = any(t["gain"] is not None for t in status["trials"])
    return bool(status["nodes"]) and status["phase"] == "watching" and tried


def test_one_decision_on_two_hosts_and_what_is_survived(job: Job) -> None:
    """Rank 0's node decides from all ranks' traces; cut links and killed daemons stop neither training nor loop."""
    first, second = job.first, job.second
    leading = job.wait_for(first, _measured_together)
    following = job.wait_for(second, lambda s: s["phase"] == "following")
    assert following["follows"] == first.name == "nodea"
    assert [(n["host"], n["ranks"]) for n in leading["nodes"]] == [("nodeb", [1])]
    assert following["trials"] == []
    job.wait_for(second, lambda s: s["active_plan"] == ctl.request(first.job_dir, "status")["active_plan"], 20.0)

    windows = ctl.request(first.job_dir, "windows")["windows"]
    assert all([r["rank"] for r in w["measurement"]["ranks"]] == [0, 1] for w in windows)
    assert all(w["measurement"]["matched"] > 0 == w["measurement"]["unmatched"] for w in windows)

    with pytest.raises(DaemonError, match="follows nodea"):
        ctl.request(second.job_dir, "detach", restore=True)

    # Every rank is told of by its own node alone, with what only all of them together know.
    pages = [host.metrics(status["metrics_port"]) for host, status in ((first, leading), (second, following))]
    for page in pages:
        assert page['loopopt_registered_ranks{state="live"}'] == 1
        assert page["loopopt_sampled_steps_total"] >= 2
    assert sum(page["loopopt_skew_seconds_total"] for page in pages) > 0
    assert pages[1]["loopopt_recompiles_total"] == 0, "counted by the node that decides"

    if shutil.which("prometheus"):
        job.pair.prometheus(job.folder)
        assert job.pair.asked("count by (training_job) (loopopt_build_info)", lambda found: found == {"both": 2.0})
        assert job.pair.asked('sum(loopopt_registered_ranks{state="live"})', lambda found: found == {"": 2.0})

    job.kill_daemon(second)
    job.trains_on()
    job.wait_for(first, lambda s: any("does a daemon run there" in n for n in s["notes"]), 40.0)
    job.start_daemon(second)
    job.wait_for(second, lambda s: s["phase"] == "following")
    before = len(ctl.request(second.job_dir, "windows")["windows"])
    job.wait_for(second, lambda s: len(ctl.request(second.job_dir, "windows")["windows"]) > before, 40.0)

    job.kill_daemon(first)
    job.trains_on()
    job.start_daemon(first)
    job.wait_for(first, lambda s: s["phase"] == "watching" and s["nodes"] and s["step"] > leading["step"])

    job.pair.cut(True)
    done = steps_of(job.log)
    time.sleep(10.0)
    assert steps_of(job.log) <= done + 2, "the link was cut"
    job.pair.cut(False)
    job.trains_on()
    heard = time.time()
    job.wait_for(first, lambda s: any(n["heard_s"] > heard for n in s["nodes"]), 60.0)
    assert {r["state"] for r in ctl.request(first.job_dir, "status")["ranks"]} == {"live"}
    job.finish()
    for number in (0, 1):
        err = (job.folder / f"torchrun{number}.err").read_text()
        assert "loopopt[" not in err, err[-3000:]
