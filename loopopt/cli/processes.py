"""Training ranks among the live processes: which carry the agent, and why the others do not."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from loopopt import wire
from loopopt.errors import JobError

_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_HELPERS = ("/compile_worker/", "--multiprocessing-fork", "multiprocessing.resource_tracker", "multiprocessing.spawn")
"""In the command line of processes that inherit a rank's environment without being one."""


@dataclass(frozen=True, slots=True)
class Rank:
    """A live process that says it is a training rank.

    Attributes:
        why_not: empty if a daemon can be attached, else why not and what to do.
        present: whether the agent has written its presence file.
        mode: "closed_loop" or "observe", as the agent said; empty if it has said nothing yet.
    """

    pid: int
    rank: int
    world_size: int
    command: str
    job: str = ""
    job_dir: Path = Path()
    present: bool = False
    mode: str = ""
    why_not: str = ""


def armed_ranks() -> list[Rank]:
    """Live ranks with the agent, by directory and rank."""
    return [r for r in live_ranks() if not r.why_not]


def live_ranks() -> list[Rank]:
    """All live ranks that can be seen, the ones with an agent first."""
    found = []
    for process in psutil.process_iter():
        try:
            rank = _rank_of(process)
        except psutil.Error:  # it ended meanwhile, or belongs to another user
            rank = None
        if rank is not None:
            found.append(rank)
    return sorted(found, key=lambda r: (bool(r.why_not), str(r.job_dir), r.rank, r.pid))


def directory_of(pid: int) -> Path:
    """Job directory of a rank by process id.

    Raises:
        JobError: no such process, not a rank, or a rank without agent.
    """
    try:
        process = psutil.Process(pid)
        rank = _rank_of(process, look_for_parents=False)
    except psutil.NoSuchProcess as err:
        raise JobError(f"no process {pid}: see `loopopt attach` for those there are") from err
    except psutil.AccessDenied as err:
        raise JobError(f"process {pid} belongs to another user: attach as that user") from err
    if rank is None:
        raise JobError(f"process {pid} is not a training rank (no RANK in its environment): give the pid of a rank")
    if rank.why_not:
        raise JobError(f"process {pid} (rank {rank.rank}): {rank.why_not}")
    return rank.job_dir


def judge(environ: Mapping[str, str]) -> str:
    """Why a rank with this environment carries no agent; empty if it does."""
    if environ.get(wire.ENV_ENABLE) != "1":
        return f"{wire.ENV_ENABLE}=1 is not set: the agent was not loaded; start the job with `loopopt run`"
    if environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        return "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps PyTorch from loading the agent: unset it and restart the job"
    directory = environ.get(wire.ENV_DIR, "")
    if not os.path.isabs(directory):
        return f"{wire.ENV_DIR} is not an absolute path: set it to the job's directory and restart the job"
    return ""


def _rank_of(process: psutil.Process, look_for_parents: bool = True) -> Rank | None:
    """The process as a rank; None if it is none.

    Raises:
        psutil.Error: the process is gone or its environment may not be read.
    """
    environ = process.environ()
    number = environ.get("RANK", "")
    if not number.isdigit() or "WORLD_SIZE" not in environ:
        return None
    arguments = process.cmdline()
    if not _is_trainer(arguments):
        return None
    present, mode = False, ""
    why_not = judge(environ)
    if not why_not:
        present, mode = _presence(Path(environ[wire.ENV_DIR]), int(number), process.pid)
    if not present and look_for_parents and _child_of_a_rank(process, number):
        return None
    world = environ["WORLD_SIZE"]
    job_dir = Path(environ[wire.ENV_DIR]) if not why_not else Path()
    return Rank(
        pid=process.pid,
        rank=int(number),
        world_size=int(world) if world.isdigit() else 0,
        command=" ".join(arguments)[:200],
        job=environ.get(wire.ENV_JOB) or job_dir.name,
        job_dir=job_dir,
        present=present,
        mode=mode,
        why_not=why_not,
    )


def _is_trainer(arguments: list[str]) -> bool:
    """Whether a command line is that of a Python program which is no launcher and no helper."""
    if not arguments or not os.path.basename(arguments[0]).startswith("python"):
        return False
    started = arguments[1:5]  # the program's own arguments do not count, only how it was started
    if any(os.path.basename(part) in _LAUNCHERS for part in started):
        return False
    return not any(word in part for part in started for word in _HELPERS)


def _child_of_a_rank(process: psutil.Process, rank: str) -> bool:
    """Whether the parent is a Python program with the same RANK (this one is a forked data loader, say)."""
    try:
        parent = process.parent()
        return parent is not None and _is_trainer(parent.cmdline()) and parent.environ().get("RANK") == rank
    except psutil.Error:
        return False


def _presence(job_dir: Path, rank: int, pid: int) -> tuple[bool, str]:
    try:
        body = json.loads((job_dir / wire.RANKS_DIR_NAME / f"{rank}.{pid}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False, ""
    return True, str(body.get("mode", "")) if isinstance(body, dict) else ""
