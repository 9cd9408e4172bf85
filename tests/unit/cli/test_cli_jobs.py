"""Finding jobs, ranks and directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopopt.cli import jobs, processes
from loopopt.cli.main import main
from loopopt.errors import DaemonError, JobError, UsageError

LOOPOPT = [sys.executable, "-m", "loopopt"]


@contextmanager
def rank(number: int, **environ: str) -> Iterator[int]:
    """A live process that looks like a rank."""
    ready = "import sys, time; print('ready', flush=True); time.sleep(120)"
    child = subprocess.Popen(
        [sys.executable, "-c", ready],
        env={**os.environ, "RANK": str(number), "WORLD_SIZE": "2", **environ},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def found(pid: int) -> processes.Rank:
    return next(r for r in processes.live_ranks() if r.pid == pid)


def test_the_home_follows_the_environment() -> None:
    """LOOPOPT_HOME, then XDG_RUNTIME_DIR, then the home directory."""
    everything = {"LOOPOPT_HOME": "/a", "XDG_RUNTIME_DIR": "/run/user/7", "HOME": "/home/x"}
    assert jobs.home(everything) == Path("/a")
    del everything["LOOPOPT_HOME"]
    assert jobs.home(everything) == Path("/run/user/7/loopopt")
    del everything["XDG_RUNTIME_DIR"]
    assert jobs.home(everything) == Path("/home/x/.loopopt")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["torchrun", "--nproc-per-node", "2", "src/train.py", "--lr", "1"], "train-7"),
        (["/usr/bin/env", "x"], "env-7"),
        (["./-_.", "x"], "job-7"),
        (["a" * 300 + ".py"], "a" * 24 + "-7"),
    ],
)
def test_an_unnamed_job_is_called_after_its_script(command: list[str], name: str) -> None:
    """And after a process id, so that two at once do not share a directory."""
    assert jobs.default_name(command, 7) == name
    assert jobs.checked_name(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "-x"])
def test_a_name_that_is_no_directory_name_is_refused(name: str) -> None:
    """It must not lead out of the home."""
    with pytest.raises(UsageError, match="--name"):
        jobs.checked_name(name)


def test_the_longest_path_that_is_accepted_can_really_be_bound(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The limit is the kernel's, not a guess."""
    import shutil
    import socket

    room = jobs.MAX_SOCKET_PATH_BYTES - len("/tmp/") - len("/control.sock")
    folder = Path("/tmp") / ("l" * (room - 8) + f"{os.getpid():08d}")
    try:
        folder.mkdir()
        jobs.check_socket_path(folder)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / "control.sock"))
        with pytest.raises(UsageError, match="too long"):
            jobs.check_socket_path(Path(str(folder) + "l"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_rank_with_the_agent_is_found_with_its_job(loopopt_home: Path) -> None:
    """By its environment, and by the presence file for what the agent said."""
    job_dir = loopopt_home / "night"
    (job_dir / "ranks").mkdir(parents=True)
    with rank(1, LOOPOPT="1", LOOPOPT_DIR=str(job_dir), LOOPOPT_JOB="night") as pid:
        assert not found(pid).present
        (job_dir / "ranks" / f"1.{pid}.json").write_text(json.dumps({"mode": "observe"}))
        seen = found(pid)
        assert (seen.rank, seen.world_size, seen.job, seen.job_dir) == (1, 2, "night", job_dir)
        assert (seen.present, seen.mode, seen.why_not) == (True, "observe", "")
        assert jobs.find_directory(str(pid)) == job_dir
        assert jobs.find_directory("night") == job_dir


@pytest.mark.parametrize(
    ("environ", "why_not"),
    [
        ({}, "LOOPOPT=1 is not set"),
        ({"LOOPOPT": "1", "LOOPOPT_DIR": "/x", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "TORCH_DEVICE_BACKEND_AUTOLOAD"),
        ({"LOOPOPT": "1", "LOOPOPT_DIR": "relative"}, "not an absolute path"),
    ],
)
def test_a_rank_without_the_agent_is_listed_with_the_reason(environ: dict[str, str], why_not: str) -> None:
    """`loopopt attach` says why not, and asking for it by pid says the same."""
    with rank(0, **environ) as pid:
        assert why_not in found(pid).why_not
        with pytest.raises(JobError, match=why_not):
            processes.directory_of(pid)


def test_children_of_a_rank_are_no_ranks() -> None:
    """A data-loader worker has the rank's whole environment."""
    code = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()"
    )
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    try:
        worker = int(parent.stdout.readline())
        pids = {r.pid for r in processes.live_ranks()}
        assert parent.pid in pids
        assert worker not in pids
    finally:
        os.killpg(parent.pid, 9)
        parent.wait()
        parent.stdout.close()


def test_a_process_that_is_no_rank_is_refused_by_pid() -> None:
    """And so is one that does not exist."""
    with pytest.raises(JobError, match="not a training rank"):
        processes.directory_of(os.getpid())
    with pytest.raises(JobError, match="no process"):
        processes.directory_of(2**22 + 1)


def test_attach_and_detach_on_live_ranks(loopopt_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A background daemon comes and goes; a second one is refused; the ranks live on."""
    with rank(0, LOOPOPT="1", LOOPOPT_DIR=str(loopopt_home / "j"), LOOPOPT_JOB="j") as pid:
        (loopopt_home / "j").mkdir()
        assert main(["attach", "j", "--wait", "0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ranks"] == 1
        assert main(["attach", str(pid)]) == JobError.exit_code
        assert "a daemon already serves" in capsys.readouterr().err
        assert main(["attach", "--json"]) == 0
        listed = next(r for r in json.loads(capsys.readouterr().out) if r["pid"] == pid)
        assert (listed["attachable"], listed["why_not"]) == (False, "a daemon already serves it")
        assert main(["status", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["dir"] == str(loopopt_home / "j")
        assert main(["status", "j"]) == 0
        assert main(["plan", "show"]) == 0
        assert main(["table", "show"]) == 0
        assert "no timing table yet" in capsys.readouterr().out
        assert main(["detach", "j"]) == 0
        assert not jobs.daemon_answers(loopopt_home / "j")
        assert found(pid).why_not == ""


def test_without_a_daemon_the_questions_say_what_to_do(loopopt_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on stderr and the exit code of the error."""
    (loopopt_home / "cold").mkdir()
    for arguments in (["status", "cold"], ["plan", "show", "cold"], ["table", "show", "cold"], ["detach", "cold"]):
        assert main(arguments) == DaemonError.exit_code
        error = capsys.readouterr().err
        assert error.startswith("loopopt: no daemon")
        assert error.count("\n") == 1
    assert main(["status", "nobody"]) == JobError.exit_code
