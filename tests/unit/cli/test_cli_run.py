"""`loopopt run` around real commands, with a real daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopopt.cli import jobs
from loopopt.cli.launch import job_environment
from loopopt.errors import UsageError

LOOPOPT = [sys.executable, "-m", "loopopt"]


def run(*arguments: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LOOPOPT, "run", *arguments], capture_output=True, text=True, timeout=120, env={**os.environ, **options}
    )


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.05)


@pytest.mark.usefixtures("loopopt_home")
def test_the_command_runs_unchanged_with_the_agents_environment() -> None:
    """Same streams and arguments; what is new is in the environment."""
    code = "import os, sys; print(sys.argv[1:], os.environ['LOOPOPT'], os.environ['LOOPOPT_JOB'], sys.stdin.read())"
    done = subprocess.run(
        [*LOOPOPT, "run", "--name", "x", "--", sys.executable, "-c", code, "--steps", "3", "--help"],
        input="typed",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "['--steps', '3', '--help'] 1 x typed\n"
    assert done.returncode == 0


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -9 $$", 128 + 9)])
def test_the_exit_code_is_the_commands_own(loopopt_home: Path, script: str, code: int) -> None:
    """A scheduler must see what the job said; a signal gives 128 + n as in a shell."""
    assert run("--name", "x", "--", "sh", "-c", script).returncode == code


@pytest.mark.usefixtures("loopopt_home")
def test_a_missing_program_is_said_in_a_line_with_the_shells_exit_code() -> None:
    """127, no traceback."""
    done = run("--", "no-such-program-here")
    assert done.returncode == 127
    assert "no-such-program-here: command not found" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_daemon_serves_the_job_and_ends_with_it(loopopt_home: Path) -> None:
    """Started if there is none, shut down at the end, no socket left behind."""
    seen = loopopt_home / "seen"
    script = f"test -S {loopopt_home}/x/control.sock && touch {seen}"
    done = run("--name", "x", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    assert seen.exists()
    assert not jobs.daemon_answers(loopopt_home / "x")
    assert "No rank registered" in done.stderr


def test_without_a_daemon_the_job_runs_all_the_same(loopopt_home: Path) -> None:
    """A wrong setting keeps the daemon from starting, not the job."""
    done = run("--name", "x", "--set", "no_such_setting=1", "--", "sh", "-c", "echo trained; exit 3")
    assert (done.stdout, done.returncode) == ("trained\n", 3)
    assert "no_such_setting" in done.stderr
    assert "the job runs without it" in done.stderr


def test_a_daemon_killed_on_the_way_is_mentioned_and_does_not_matter(loopopt_home: Path) -> None:
    """kill -9 of the daemon; the job's exit code stands."""
    about = loopopt_home / "x" / "daemon.json"
    code = f"import json, os, sys; os.kill(json.load(open({str(about)!r}))['pid'], 9); sys.exit(5)"
    done = run("--name", "x", "--", sys.executable, "-c", code)
    assert done.returncode == 5
    assert "the daemon ended during the job" in done.stderr


def test_a_signal_is_passed_on_once_and_the_job_may_take_its_time(loopopt_home: Path) -> None:
    """SIGTERM to `loopopt run` alone reaches the job, which writes its checkpoint and chooses its exit code."""
    ready, log = loopopt_home / "ready", loopopt_home / "log"
    code = (
        "import signal, sys, time, pathlib\n"
        f"log = open({str(log)!r}, 'a', buffering=1)\n"
        "def end(n, f):\n    log.write(f'{n}\\n'); time.sleep(0.5); log.write('saved\\n'); sys.exit(42)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([*LOOPOPT, "run", "--name", "x", "--", sys.executable, "-c", code])
    wait_for(ready)
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 42
    assert log.read_text().split() == ["15", "saved"]
    assert not jobs.daemon_answers(loopopt_home / "x")


@pytest.mark.usefixtures("loopopt_home")
def test_a_signal_to_the_whole_group_reaches_the_job_once(loopopt_home: Path) -> None:
    """`timeout` and batch systems signal the group; the second of two such signals is counted as well."""
    ready, log = loopopt_home / "ready", loopopt_home / "log"
    code = (
        "import signal, sys, time, pathlib\n"
        f"log = open({str(log)!r}, 'a', buffering=1)\n"
        "signal.signal(signal.SIGUSR1, lambda n, f: log.write('usr1\\n'))\n"
        "signal.signal(signal.SIGTERM, lambda n, f: (log.write('term\\n'), time.sleep(1), sys.exit(3)))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "while True: time.sleep(0.1)\n"
    )
    command = [*LOOPOPT, "run", "--name", "x", "--", sys.executable, "-c", code]
    child = subprocess.Popen(command, start_new_session=True)
    wait_for(ready)
    for number, count in ((signal.SIGUSR1, 1), (signal.SIGUSR1, 2)):
        os.killpg(child.pid, number)
        deadline = time.monotonic() + 30
        while log.read_text().count("usr1") < count:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
    child.send_signal(signal.SIGUSR1)
    while log.read_text().count("usr1") < 3:
        assert time.monotonic() < deadline + 30
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGTERM)
    assert child.wait(timeout=60) == 3
    assert log.read_text().split() == ["usr1", "usr1", "usr1", "term"]


def test_ctrl_c_in_a_terminal_reaches_the_job_once(loopopt_home: Path) -> None:
    """The terminal sends it to the whole foreground group; it is not sent a second time, and the daemon lives on."""
    import pty

    ready, log = loopopt_home / "ready", loopopt_home / "log"
    code = (
        "import signal, sys, time, pathlib\n"
        f"log = open({str(log)!r}, 'a', buffering=1)\n"
        "signal.signal(signal.SIGINT, lambda n, f: log.write('int\\n'))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end: time.sleep(0.1)\n"
        "sys.exit(9)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*LOOPOPT, "run", "--name", "x", "--", sys.executable, "-c", code])
    wait_for(ready)
    os.write(terminal, b"\x03")
    try:
        while os.read(terminal, 4096):
            pass
    except OSError:
        pass  # the other side has closed the terminal
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9
    assert log.read_text() == "int\n"


def test_the_summary_is_also_written_as_json(loopopt_home: Path) -> None:
    """For scripts; with the exit code."""
    target = loopopt_home / "summary.json"
    run("--name", "x", "--summary-json", str(target), "--", "sh", "-c", "exit 4")
    body = json.loads(target.read_text())
    assert body["exit_code"] == 4
    assert body["job"] == "x"
    assert body["world_size"] == 0


def test_a_path_too_long_for_a_socket_is_refused_before_anything_runs(loopopt_home: Path) -> None:
    """With what to do about it; the kernel's own message would be 'AF_UNIX path too long'."""
    marker = loopopt_home / "ran"
    done = run("--dir", "/tmp/" + "x" * 100, "--", "touch", str(marker))
    assert done.returncode == UsageError.exit_code
    assert "too long for a Unix socket" in done.stderr
    assert not marker.exists()


def test_the_agent_is_loaded_even_where_autoload_was_switched_off() -> None:
    """`TORCH_DEVICE_BACKEND_AUTOLOAD=0` would keep the agent out of the ranks."""
    changed = job_environment({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "A": "b"}, "/j/x", "x")
    assert changed == {"A": "b", "LOOPOPT": "1", "LOOPOPT_DIR": "/j/x", "LOOPOPT_JOB": "x"}
