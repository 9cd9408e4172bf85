"""A daemon in the background: start it, wait until it answers, watch it, end it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from loopopt.cli import jobs
from loopopt.errors import DaemonError, LoopoptError

LOG_NAME = "daemon.log"


def start(job_dir: Path, settings: tuple[str, ...] = (), wait_s: float = 20.0) -> subprocess.Popen[bytes]:
    """Start a daemon for this directory in a session of its own, so that Ctrl-C in the terminal does not reach it.

    Args:
        job_dir: the job's directory; what the daemon prints goes to `daemon.log` there.
        settings: ``key=value`` for `loopopt daemon --set`.
        wait_s: how long it may take until it answers.

    Raises:
        DaemonError: it ended at once or does not answer; the message has the end of its log.
    """
    log = job_dir / LOG_NAME
    command = [sys.executable, "-m", "loopopt", "daemon", "--dir", str(job_dir)]
    for setting in settings:
        command += ["--set", setting]
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
    except OSError as err:
        raise DaemonError(f"the daemon cannot be started: {log}: {err.strerror}") from err
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        if jobs.daemon_answers(job_dir):
            return child
        if child.poll() is not None:
            raise DaemonError(f"the daemon ended at once with exit code {child.returncode}: {_last_line(log)}")
        time.sleep(0.05)
    child.terminate()
    raise DaemonError(f"the daemon does not answer on {job_dir} after {wait_s:.0f} s: {_last_line(log)}")


def ask(job_dir: Path, command: str, timeout_s: float = 5.0, **arguments: Any) -> dict[str, Any]:
    """Ask the daemon of a directory.

    Raises:
        DaemonError: no daemon, or it refused.
    """
    from loopopt.ctl import request

    return request(job_dir, command, timeout_s, **arguments)


class Watcher:
    """Keeps the latest status a daemon gave, so that a summary can be printed even if the daemon is gone.

    Attributes:
        latest: last answer to "status"; empty before the first one.
    """

    def __init__(self, job_dir: Path, every_s: float = 1.0) -> None:
        self.latest: dict[str, Any] = {}
        self._job_dir = job_dir
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)

    def begin(self) -> None:
        """Start asking. Call it after signals have been blocked."""
        self._thread.start()

    def end(self) -> dict[str, Any]:
        """Ask a last time and stop; returns the latest status."""
        self._stop.set()
        self._thread.join(timeout=10.0)
        self._ask()
        return self.latest

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._ask()

    def _ask(self) -> None:
        try:
            self.latest = ask(self._job_dir, "status")
        except LoopoptError:
            return  # between two answers the daemon may be restarted or gone; the last one stays


def shut_down(job_dir: Path, child: subprocess.Popen[bytes] | None, wait_s: float = 15.0) -> None:
    """Have the daemon end in good order; a daemon of our own that does not is ended by force."""
    try:
        ask(job_dir, "shutdown")
    except LoopoptError:
        if child is not None:
            child.terminate()
    if child is None:
        return
    try:
        child.wait(timeout=wait_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _last_line(log: Path) -> str:
    try:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    return f"{lines[-1].strip()} (see {log})" if lines else f"see {log}"


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        LoopoptError: it cannot be written.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.tmp")
    try:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
        partial.replace(target)
    except OSError as err:
        raise LoopoptError(f"{path}: cannot be written: {err.strerror}") from err
