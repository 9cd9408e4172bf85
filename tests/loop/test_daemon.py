"""The daemon as a process of its own, with agents that speak the real messages over the real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_agents import FakeAgents

from loopopt import ctl, wire
from loopopt.errors import DaemonError

BEST = "schedule + bucket"
_CODE = (
    "import sys, pathlib; from loopopt.config import LoopConfig; from loopopt.daemon.main import run_daemon; "
    "sys.exit(run_daemon(pathlib.Path(sys.argv[1]), LoopConfig()))"
)


class Process:
    """Starts and ends daemons for one directory."""

    def __init__(self, job_dir: Path) -> None:
        self.job_dir = job_dir
        self.child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start one and wait until it answers."""
        log = (self.job_dir / "stderr").open("ab")
        self.child = subprocess.Popen([sys.executable, "-c", _CODE, str(self.job_dir)], stderr=log)
        log.close()
        self.wait_for(lambda _: True)

    def status(self) -> dict[str, Any]:
        """Its status."""
        return ctl.request(self.job_dir, "status")

    def wait_for(self, condition: Callable[[dict[str, Any]], bool], limit_s: float = 60.0) -> dict[str, Any]:
        """The first status that meets the condition."""
        deadline = time.monotonic() + limit_s
        status: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                status = self.status()
                if condition(status):
                    return status
            except DaemonError:
                assert self.child is not None
                assert self.child.poll() is None, (self.job_dir / "stderr").read_text()
            time.sleep(0.05)
        status.pop("trials", None)
        raise AssertionError(f"not within {limit_s} s: {json.dumps(status, indent=1)}")

    def kill(self) -> None:
        """kill -9."""
        assert self.child is not None
        self.child.kill()
        self.child.wait()

    def end(self) -> int:
        """SIGTERM; the exit code."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(20)


@pytest.fixture
def daemon() -> Iterator[Process]:
    """A daemon in a directory of its own, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lo") as folder:
        process = Process(Path(folder) / "job")
        process.job_dir.mkdir()
        process.start()
        yield process
        if process.child is not None and process.child.poll() is None:
            process.kill()


@pytest.fixture
def agents(daemon: Process) -> Iterator[FakeAgents]:
    """Two ranks that train."""
    made = FakeAgents(daemon.job_dir)
    yield made
    made.close()


def _kept(status: dict[str, Any]) -> bool:
    return status["phase"] == "watching" and status["active_label"] == BEST


def _metrics(status: dict[str, Any]) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{status['metrics_port']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_the_loop_is_closed_over_real_sockets_and_traces(daemon: Process, agents: FakeAgents) -> None:
    """Baseline, trace, table, plans, trials, the best one kept, and all of it told by status, windows and metrics."""
    status = daemon.wait_for(_kept)
    verdicts = [t["verdict"] for t in status["trials"]]
    assert sorted(verdicts) == ["baseline", "kept", "rolled_back", "rolled_back"]
    kept = next(t for t in status["trials"] if t["verdict"] == "kept")
    assert kept["gain"] == pytest.approx(0.2, abs=0.02)
    assert kept["gain_low"] > 0.1
    assert kept["exposed_us"] > 5_000
    windows = ctl.request(daemon.job_dir, "windows")["windows"]
    assert {"as-it-was", status["active_plan"]} <= {w["plan_id"] for w in windows}
    assert ctl.request(daemon.job_dir, "table")["table"]["collectives"]
    metrics = _metrics(status)
    assert metrics["loopopt_recompiles_total"] == len(agents.applied)
    assert metrics["loopopt_rollbacks_total"] == 2
    assert metrics['loopopt_registered_ranks{state="live"}'] == 2
    assert metrics["loopopt_sampled_steps_total"] == 4 * 2 * 3


@pytest.mark.parametrize("phase", ["baseline", "applying", "trial", "measuring", "watching"])
def test_killed_in_a_phase_and_started_again_it_comes_to_the_same_end(
    daemon: Process, agents: FakeAgents, phase: str
) -> None:
    """The job trains on meanwhile; a stale socket is no obstacle; counters go on where they were."""
    passed = {"measuring": ("capturing", "measuring")}.get(phase, (phase,))
    before = daemon.wait_for(lambda s: s["phase"] in passed or (phase != "watching" and s["phase"] == "watching"))
    counted = _metrics(before)
    daemon.kill()
    daemon.start()
    status = daemon.wait_for(_kept)
    after = _metrics(status)
    for name in ("loopopt_recompiles_total", "loopopt_trace_requests_total", "loopopt_sampled_steps_total"):
        assert after[name] >= counted[name]
    # Whatever was under way at the kill is told as given up, not as running for ever.
    assert all(t["verdict"] != "running" for t in status["trials"])
    if phase == "watching":
        assert after["loopopt_recompiles_total"] == counted["loopopt_recompiles_total"]


def test_a_connection_that_breaks_does_not_make_the_daemon_forget_the_plan(daemon: Process, agents: FakeAgents) -> None:
    """The rank's process lives, so the plan is still in force: the loop goes on watching and orders nothing."""
    daemon.wait_for(_kept)
    ordered = len(agents.applied)
    for rank in (1, 0):
        welcomes = agents.welcomes
        agents.hang_up(rank)
        daemon.wait_for(lambda s: agents.welcomes > welcomes and _kept(s))  # noqa: B023  (called at once)
    assert len(agents.applied) == ordered


def test_after_a_restart_of_the_job_the_plan_is_found_again(daemon: Process, agents: FakeAgents) -> None:
    """New processes run as it was; the loop measures them and ends with the better plan."""
    first = daemon.wait_for(_kept)
    agents.restart()
    status = daemon.wait_for(lambda s: s["round"] > first["round"] and _kept(s))
    assert all(rank["state"] == "live" for rank in status["ranks"])
    assert agents.label == BEST


def test_a_torn_trace_costs_one_window(daemon: Process) -> None:
    """It is dropped and counted, named in the notes, and the loop goes on."""
    ours = FakeAgents(daemon.job_dir)
    ours.torn = 1
    try:
        status = daemon.wait_for(_kept)
    finally:
        ours.close()
    assert _metrics(status)['loopopt_trace_failures_total{reason="unreadable"}'] == 1
    assert any("rank1.pt.trace.json" in note for note in status["notes"])


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"v": 99, "type": "steps"}\n',
        b'{"v": 1, "type": "steps", "rank": 0, "first_step": 1, "durations_us": [1], "plan_id": "x"}\n',
        b'{"v": 1, "type": "hello", "rank": "zero"}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_bad_message_ends_its_connection_and_nothing_else(daemon: Process, agents: FakeAgents, line: bytes) -> None:
    """The stranger is hung up on; the ranks stay registered."""
    daemon.wait_for(lambda s: s["world_size"] == 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(20)
        stranger.connect(str(daemon.job_dir / wire.SOCKET_NAME))
        stranger.sendall(line)
        assert stranger.recv(100) == b""
    status = daemon.wait_for(_kept)
    assert [rank["state"] for rank in status["ranks"]] == ["live", "live"]


def test_an_observed_job_is_traced_and_left_alone(daemon: Process) -> None:
    """A job without torch.compile gets windows for the metrics and no order to change."""
    ours = FakeAgents(daemon.job_dir, mode="observe")
    try:
        status = daemon.wait_for(lambda s: s["counters"].get("sampled_steps", 0) > 0)
        assert (status["mode"], status["reason"]) == ("observe", "not compiled")
        assert ours.applied == []
    finally:
        ours.close()


@pytest.mark.parametrize("restore", [True, False])
def test_detach_tells_the_job_and_ends_the_daemon(daemon: Process, agents: FakeAgents, restore: bool) -> None:
    """The release reaches rank 0 before the daemon is gone; it ends with 0."""
    daemon.wait_for(_kept)
    answer = ctl.request(daemon.job_dir, "detach", 60.0, restore=restore)
    assert answer["restored"] is restore, "with --restore the ranks have reported the original schedule by then"
    assert daemon.child is not None
    assert daemon.child.wait(60) == 0
    deadline = time.monotonic() + 10
    while not agents.released and time.monotonic() < deadline:
        time.sleep(0.05)
    assert agents.released == [restore]


def test_sigterm_ends_it_in_good_order(daemon: Process, agents: FakeAgents) -> None:
    """Exit code 0, the sockets are gone, the state is kept."""
    daemon.wait_for(lambda s: s["phase"] == "trial")
    assert daemon.end() == 0
    left = {path.name for path in daemon.job_dir.iterdir()}
    assert wire.STATE_NAME in left
    assert not left & {wire.SOCKET_NAME, wire.CONTROL_SOCKET_NAME, "daemon.json"}


def test_only_this_user_can_reach_it(daemon: Process) -> None:
    """Directory 0700, both sockets 0600, and what others need to know in a whole file."""
    assert stat.S_IMODE(daemon.job_dir.stat().st_mode) == 0o700
    for name in (wire.SOCKET_NAME, wire.CONTROL_SOCKET_NAME):
        assert stat.S_IMODE((daemon.job_dir / name).stat().st_mode) == 0o600
    about = json.loads((daemon.job_dir / "daemon.json").read_text())
    assert daemon.child is not None
    assert about["pid"] == daemon.child.pid
    assert about["metrics_port"] == daemon.status()["metrics_port"]


def test_a_second_daemon_for_the_same_job_is_refused(daemon: Process) -> None:
    """It says so, ends with an error, and the first one serves on."""
    second = subprocess.run(
        [sys.executable, "-c", _CODE, str(daemon.job_dir)], capture_output=True, text=True, timeout=60
    )
    assert second.returncode != 0
    assert "another daemon serves" in second.stderr
    assert daemon.status()["pid"] == daemon.child.pid  # type: ignore[union-attr]


def test_idle_it_is_small_and_without_torch(daemon: Process, agents: FakeAgents) -> None:
    """Below 150 MB resident after a whole round, and next to no processor time when nothing happens."""
    daemon.wait_for(_kept)
    agents.close()
    assert daemon.child is not None
    process = psutil.Process(daemon.child.pid)
    assert process.memory_info().rss < 150e6
    assert not any("torch" in m.path for m in process.memory_maps())
    switches = process.num_ctx_switches().voluntary
    time.sleep(2.0)
    assert process.num_ctx_switches().voluntary - switches < 200


def test_without_a_usable_database_the_loop_goes_on_in_memory(daemon: Process) -> None:
    """The status says so; the plan is found all the same."""
    daemon.end()
    for path in daemon.job_dir.glob(wire.STATE_NAME + "*"):
        path.unlink()
    (daemon.job_dir / wire.STATE_NAME).mkdir()
    daemon.start()
    ours = FakeAgents(daemon.job_dir)
    try:
        status = daemon.wait_for(_kept)
    finally:
        ours.close()
    assert any("kept on disk" in note for note in status["notes"])
    assert _metrics(status)["loopopt_rollbacks_total"] == 2


@pytest.mark.parametrize("request_line", [b"\n", b"[]\n", b'"status"\n', b'{"cmd": "no such"}\n', b"\xff\n"])
def test_a_bad_question_gets_an_error_for_an_answer(daemon: Process, request_line: bytes) -> None:
    """One line comes back with `error`, and the next question is answered."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(20)
        line.connect(str(daemon.job_dir / wire.CONTROL_SOCKET_NAME))
        line.sendall(request_line)
        answer = line.makefile("rb").readline()
    assert "error" in json.loads(answer)
    assert daemon.status()["phase"] == "waiting"


def test_without_a_daemon_the_question_says_what_to_do() -> None:
    """No socket and a dead socket are both "no daemon", with the command that starts one."""
    with tempfile.TemporaryDirectory(prefix="lo") as folder:
        with pytest.raises(DaemonError, match="loopopt attach"):
            ctl.request(Path(folder), "status")
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dead.bind(os.path.join(folder, wire.CONTROL_SOCKET_NAME))
        dead.close()
        with pytest.raises(DaemonError, match="loopopt attach"):
            ctl.request(Path(folder), "status")
