"""`loopopt refresh` on real daemons with agents that speak over the real sockets, and on jobs that do not run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_agents
import pytest
from fake_agents import SPEEDS_US, TRACES, FakeAgents
from test_daemon import Process, _kept, agents, daemon  # noqa: F401  (fixtures)

from loopopt.cli.refresh import LOCK_NAME


def refresh(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [sys.executable, "-m", "loopopt", "refresh", *arguments]
    environment = {**os.environ, "LOOPOPT_HOME": str(home)}
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=120, check=False)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Job -> what was said of it."""
    assert done.returncode in (0, 6, 9), done.stderr
    return {job["dir"].rsplit("/", 1)[1]: job for job in json.loads(done.stdout)["jobs"]}


@pytest.fixture
def _speeds() -> Iterator[None]:
    former = dict(SPEEDS_US)
    yield
    fake_agents.SPEEDS_US.update(former)


def left_over(home: Path, name: str) -> Path:
    """The directory of a job that has ended: one window of both ranks."""
    window = home / name / "traces" / "w000001"
    window.mkdir(parents=True)
    for trace in TRACES.glob("*.json.gz"):
        shutil.copy(trace, window)
    return home / name


@pytest.mark.usefixtures("_speeds")
def test_the_plan_that_is_best_now_is_found(daemon: Process, agents: FakeAgents) -> None:  # noqa: F811
    """Another plan than the one kept has become the fastest overnight."""
    daemon.wait_for(lambda s: _kept(s) and s["settled"])
    home = daemon.job_dir.parent
    fake_agents.SPEEDS_US["schedule"] = 60_000.0
    found = told(refresh(home, "job", "--json"))["job"]
    assert (found["outcome"], found["plan_before"], found["plan_after"]) == (
        "changed", "schedule + bucket", "schedule",
    )  # fmt: skip
    assert found["gain"] == pytest.approx(0.4, abs=0.05)
    again = told(refresh(home, "--all", "--json"))["job"]  # other jobs of this machine may be among them
    assert (again["outcome"], again["plan_after"]) == ("confirmed", "schedule")


def test_a_job_that_does_not_run_gets_its_table_from_its_traces(tmp_path: Path) -> None:
    left_over(tmp_path, "ended")
    (tmp_path / "ended" / "state.sqlite").touch()
    first = refresh(tmp_path, "ended", "--json")
    assert first.returncode == 0
    found = told(first)["ended"]
    assert found["outcome"] == "rebuilt"
    assert found["table_after"]
    again = told(refresh(tmp_path, "ended", "--json"))["ended"]
    assert (again["outcome"], again["table_after"]) == ("unchanged", found["table_after"])


def test_what_cannot_be_used_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    for name in ("good", "torn"):
        (left_over(tmp_path, name) / "state.sqlite").touch()
    torn = next((tmp_path / "torn" / "traces" / "w000001").glob("rank0*"))
    torn.write_bytes(torn.read_bytes()[:200])
    done = refresh(tmp_path, "good", "torn", "--json")
    assert done.returncode == 9
    assert {name: job["outcome"] for name, job in told(done).items()} == {"good": "rebuilt", "torn": "failed"}
    assert refresh(tmp_path, "torn").returncode == 6
    quiet = refresh(tmp_path, "good", "torn", "--quiet")
    assert [line.partition(":")[0] for line in quiet.stdout.splitlines()] == ["torn"]


def test_two_never_overlap(tmp_path: Path) -> None:
    left_over(tmp_path, "ended")
    with (tmp_path / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = refresh(tmp_path, "ended")
    assert done.returncode == 11
    assert "another refresh is running" in done.stderr
    assert refresh(tmp_path, "ended").returncode == 0


def test_names_or_all(tmp_path: Path) -> None:
    assert refresh(tmp_path).returncode == 2
    assert refresh(tmp_path, "x", "--all").returncode == 2
    assert refresh(tmp_path, "nobody").returncode == 7
