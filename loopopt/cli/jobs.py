"""Job directories: where they are, which are live, and which one a person means."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from loopopt import wire
from loopopt.errors import DaemonError, JobError, UsageError

MAX_SOCKET_PATH_BYTES = 107
"""`sun_path` is 108 bytes on Linux, the closing NUL included."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder of all job directories: LOOPOPT_HOME, else $XDG_RUNTIME_DIR/loopopt, else ~/.loopopt."""
    if chosen := environ.get("LOOPOPT_HOME"):
        return Path(chosen).absolute()
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime).absolute() / "loopopt"
    return Path(environ.get("HOME") or os.path.expanduser("~")) / ".loopopt"


def checked_name(name: str) -> str:
    """The name, if it can be a directory's.

    Raises:
        UsageError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: use letters, digits, '.', '_' and '-', beginning with a letter or digit")
    return name


def check_socket_path(job_dir: Path) -> None:
    """See that Unix sockets in this directory can have an address.

    Raises:
        UsageError: the path is too long.
    """
    longest = max((wire.SOCKET_NAME, wire.CONTROL_SOCKET_NAME), key=len)
    length = len(os.fsencode(job_dir / longest))
    if length > MAX_SOCKET_PATH_BYTES:
        raise UsageError(
            f"{job_dir}: too long for a Unix socket ({length} bytes with /{longest}, {MAX_SOCKET_PATH_BYTES} allowed): "
            "choose a shorter --name or --dir, or set LOOPOPT_HOME to a short path such as /tmp/loopopt"
        )


def default_name(command: list[str], pid: int) -> str:
    """A name for a job nobody named: the script's, or the program's, and a process id.

    >>> default_name(["torchrun", "--nproc-per-node", "2", "src/train.py", "--lr", "1"], 7)
    'train-7'
    """
    scripts = [word for word in command if word.endswith(".py")]
    stem = Path(scripts[0]).stem if scripts else Path(command[0]).name
    stem = re.sub(r"[^A-Za-z0-9_.-]", "", stem)[:24].lstrip("._-")
    return f"{stem or 'job'}-{pid}"


def job_directory(name: str | None, directory: str | None, command: list[str], pid: int) -> Path:
    """Absolute directory of a job to be run; not created here.

    Raises:
        UsageError: a bad name, or a path too long for a socket.
    """
    if directory is not None:
        job_dir = Path(directory).absolute()
    else:
        job_dir = home() / (checked_name(name) if name is not None else default_name(command, pid))
    check_socket_path(job_dir)
    return job_dir


def make_directory(job_dir: Path) -> None:
    """Create it, for this user only.

    Raises:
        JobError: it cannot be created or belongs to somebody else.
    """
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = job_dir.stat().st_uid
    except OSError as err:
        raise JobError(f"job directory {job_dir}: {err.strerror}: choose another with --dir or LOOPOPT_HOME") from err
    if owner not in (os.geteuid(), 0):
        raise JobError(f"job directory {job_dir}: belongs to uid {owner}, not to you: choose another with --dir")


def daemon_answers(job_dir: Path) -> bool:
    """Whether a process listens on the directory's control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(job_dir / wire.CONTROL_SOCKET_NAME))
        except OSError:
            return False
    return True


def served_directories() -> list[Path]:
    """Job directories under `home()` that a daemon serves, sorted."""
    return [d for d in _under_home() if (d / wire.CONTROL_SOCKET_NAME).exists() and daemon_answers(d)]


def all_directories() -> list[Path]:
    """Job directories under `home()`, running or not, then those of live ranks elsewhere; each once."""
    signs = (wire.STATE_NAME, wire.CONTROL_SOCKET_NAME)
    kept = [d for d in _under_home() if not d.name.startswith(".") and any((d / n).exists() for n in signs)]
    return list(dict.fromkeys([*kept, *_directories_of_live_ranks()]))


def _under_home() -> list[Path]:
    try:
        return sorted(home().iterdir())
    except OSError:
        return []


def find_served(job: str | None) -> Path:
    """Directory of the job a person means, which a daemon must serve.

    Args:
        job: name, directory or process id of a rank; None means the only one there is.

    Raises:
        DaemonError: no daemon serves it.
        UsageError: several are served and none was named.
    """
    if job is None:
        served = served_directories() or [d for d in _directories_of_live_ranks() if daemon_answers(d)]
        if not served:
            raise DaemonError(f"no daemon is running under {home()}: start one with `loopopt run` or `loopopt attach`")
        if len(served) > 1:
            raise UsageError(f"several jobs are being served, name one: {', '.join(map(str, served))}")
        return served[0]
    job_dir = find_directory(job)
    if not daemon_answers(job_dir):
        raise DaemonError(f"no daemon serves {job_dir}: start one with `loopopt attach {job}`")
    return job_dir


def find_directory(job: str) -> Path:
    """Directory of a job by name, directory or process id, served or not.

    Raises:
        JobError: there is none.
    """
    from loopopt.cli import processes

    if os.sep in job or job in (".", ".."):
        if not Path(job).is_dir():
            raise JobError(f"{job}: no such job directory")
        return Path(job).absolute()
    if (home() / job).is_dir():
        return home() / job
    if job.isdigit():
        return processes.directory_of(int(job))
    matches = sorted({r.job_dir for r in processes.armed_ranks() if r.job == job or r.job_dir.name == job})
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"{job}: several jobs have this name, give the directory: {', '.join(map(str, matches))}")
    raise JobError(f"{job}: no job of that name under {home()} or among the live processes: see `loopopt attach`")


def _directories_of_live_ranks() -> list[Path]:
    from loopopt.cli import processes

    return sorted({r.job_dir for r in processes.armed_ranks()})
