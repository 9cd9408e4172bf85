"""Run a command unchanged in the foreground: same streams, same exit code, signals passed on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from loopopt import wire
from loopopt.errors import JobError

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_WATCHED = {*_PASSED_ON, signal.SIGCHLD}

COMMAND_NOT_FOUND = 127
COMMAND_NOT_EXECUTABLE = 126


def job_environment(environ: Mapping[str, str], job_dir: str, job: str) -> dict[str, str]:
    """The environment in which ranks load the agent and find the daemon."""
    changed = dict(environ)
    changed[wire.ENV_ENABLE] = "1"
    changed[wire.ENV_DIR] = job_dir
    changed[wire.ENV_JOB] = job
    if changed.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        del changed["TORCH_DEVICE_BACKEND_AUTOLOAD"]  # with it PyTorch would not load the agent
    return changed


def block_signals() -> set[signal.Signals]:
    """Hold back the signals that `run_in_foreground` waits for; returns the mask that was in force.

    To be called before any thread is started: threads inherit the mask, and a thread that does not hold
    a signal back would be interrupted by it.
    """
    return {signal.Signals(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)}


def restore_signals(mask: set[signal.Signals]) -> None:
    """Undo `block_signals`; signals that came late and belong to the command's end are dropped."""
    while signal.sigtimedwait(_PASSED_ON, 0) is not None:
        pass
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def run_in_foreground(
    command: list[str],
    environ: Mapping[str, str],
    mask: set[signal.Signals],
    started: Callable[[], None] = lambda: None,
    output: int | None = None,
) -> int:
    """Run the command to its end.

    A signal sent to this process is passed on to the command. One that was sent to the whole process group (Ctrl-C
    in a terminal, `timeout`, a batch system) has reached the command already and is not sent a second time: torchrun
    takes a second signal for a hurry and leaves its workers behind.

    Args:
        command: program and arguments.
        environ: its environment.
        mask: signal mask to give it, from `block_signals`.
        started: called once it runs (threads are best begun here, after the fork).
        output: file descriptor for its stdout and stderr; this process's own if None.

    Returns:
        Its exit code, 128 + n if signal n ended it.

    Raises:
        JobError: the program cannot be started.
    """

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    with _Witness() as witness:
        try:
            child = subprocess.Popen(command, env=dict(environ), stdout=output, stderr=output, preexec_fn=before_exec)
        except FileNotFoundError as err:
            raise _cannot_start(f"{command[0]}: command not found", COMMAND_NOT_FOUND) from err
        except OSError as err:
            raise _cannot_start(f"{command[0]}: cannot be run: {err.strerror}", COMMAND_NOT_EXECUTABLE) from err
        started()
        return _wait(child, witness)


def _wait(child: subprocess.Popen[bytes], witness: _Witness) -> int:
    while True:
        # A child that ended before the wait is found here: SIGCHLD stays pending while it is blocked.
        code = child.poll()
        if code is not None:
            return code if code >= 0 else 128 - code
        info = signal.sigtimedwait(_WATCHED, 5.0)
        if info is not None and info.si_signo in _PASSED_ON:
            reached = witness.has_got(info.si_signo) and _same_group(child.pid)
            if not reached:
                child.send_signal(info.si_signo)


def _cannot_start(message: str, code: int) -> JobError:
    """What a shell would say, with the exit code a shell would give."""
    error = JobError(message)
    error.exit_code = code
    return error


def _same_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == os.getpgrp()
    except ProcessLookupError:
        return False


class _Witness:
    """A bystander in our process group, to tell a signal for the group from one for this process alone.

    It is a `cat` that never gets input and, like this process, holds the signals back: what was sent to the
    group stays pending there, and can be read from /proc. It ends when its input does, so with us at the latest.
    """

    _SPREAD_S = 0.05
    """How long the kernel may take to hand a signal to all members of a group."""

    def __init__(self) -> None:
        self._cat: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> _Witness:
        try:
            self._cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        except OSError:
            self._cat = None  # without a witness every signal is passed on
        return self

    def __exit__(self, *exception: object) -> None:
        if self._cat is not None:
            self._cat.kill()
            self._cat.communicate()
            self._cat = None

    def has_got(self, number: int) -> bool:
        """Whether the signal has been sent to the group; forgets it, so that the next one can be told too."""
        if self._cat is None:
            return False
        time.sleep(self._SPREAD_S)
        try:
            with open(f"/proc/{self._cat.pid}/status", encoding="ascii", errors="replace") as status:
                pending = next(int(line.split()[1], 16) for line in status if line.startswith("ShdPnd:"))
        except (OSError, StopIteration):
            return False
        got = bool(pending >> (number - 1) & 1)
        if got:
            self.__exit__()
            self.__enter__()
        return got
