"""Arming: decide whether this process is a rank, and hook the step boundary. One agent per process."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from pathlib import Path

import torch.distributed as dist

from loopopt import wire
from loopopt.errors import LoopoptError
from loopopt_agent import torch_api
from loopopt_agent.agent import Agent
from loopopt_agent.faults import Faults
from loopopt_agent.steps import StepCounter

_NOT_RANKS = ("compile_worker", "--multiprocessing-fork", "torch.distributed.run", "torchrun", "resource_tracker")


def why_not_a_rank() -> str:
    """Empty if this process is a training rank, else what it is.

    Data-loader workers, compile workers and other children inherit the rank's environment; the torchrun agent
    has none of it.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return "RANK and WORLD_SIZE are not set: not started by torchrun or the like"
    if multiprocessing.parent_process() is not None:
        return "a child of multiprocessing (a data loader, for example)"
    # The program's own arguments do not count, only how Python was started.
    command = getattr(sys, "orig_argv", [])[1:4]
    helper = next((word for word in _NOT_RANKS for part in command if word in part), "")
    return f"a helper process ({helper})" if helper else ""


class _Arming:
    """What this process has done so far; `agent` comes with the first step of a process group."""

    def __init__(self, job_dir: Path, job: str) -> None:
        self.job_dir = job_dir
        self.job = job
        self.pid = os.getpid()
        self.counter = StepCounter()
        self.agent: Agent | None = None
        self.broken = False

    def on_optimizer(self, optimizer: int) -> None:
        if not self.broken and self.counter.on_optimizer(optimizer):
            self.on_step()

    def on_step(self) -> None:
        """End of a step. Never raises."""
        if self.broken:
            return
        if self.agent is not None:
            self.agent.on_step()
            return
        try:
            if os.getpid() != self.pid:
                self.broken = True
            elif dist.is_available() and dist.is_initialized():
                faults = Faults.from_environment(dist.get_rank())
                faults.hit("arm")
                self.agent = Agent(self.job_dir, self.job, faults)
                atexit.register(self.agent.at_exit)
                self.agent.on_step()
        except Exception as err:  # noqa: BLE001  (the door to the training loop, before there is an agent)
            self.broken = True
            print(f"loopopt: agent not started, training goes on: {err!r}", file=sys.stderr, flush=True)


_arming: _Arming | None = None


def _arm(job_dir: str, job: str) -> None:
    global _arming
    if _arming is not None:
        return
    if not os.path.isabs(job_dir):
        raise LoopoptError(f"{wire.ENV_DIR}={job_dir!r} must be an absolute path, the same for all ranks")
    arming = _Arming(Path(job_dir), job or os.path.basename(job_dir.rstrip("/")))
    torch_api.on_optimizer_step(arming.on_optimizer)
    # A forked child (a data-loader worker) shares our memory but is no rank.
    os.register_at_fork(after_in_child=_forget)
    _arming = arming


def _forget() -> None:
    if _arming is not None:
        _arming.broken = True
        _arming.agent = None


def arm_from_environment() -> None:
    """Called at the end of `import torch` when ``LOOPOPT=1``."""
    job_dir = os.environ.get(wire.ENV_DIR, "")
    if job_dir and not why_not_a_rank():
        _arm(job_dir, os.environ.get(wire.ENV_JOB, ""))


def arm_explicitly(job_dir: str | None) -> bool:
    """`loopopt_agent.attach`: like the environment, from the script. Never raises."""
    try:
        chosen = job_dir or os.environ.get(wire.ENV_DIR, "")
        if not chosen:
            raise LoopoptError(f"attach() needs a job directory: pass job_dir or set {wire.ENV_DIR}")
        _arm(chosen, os.environ.get(wire.ENV_JOB, ""))
    except Exception as err:  # noqa: BLE001  (called from the training script)
        print(f"loopopt: not attached, training goes on: {err}", file=sys.stderr, flush=True)
        return False
    return True


def explicit_step() -> None:
    """`loopopt_agent.step`: the script marks its steps itself; optimizer calls no longer count."""
    if _arming is not None:
        _arming.counter.explicit = True
        _arming.on_step()
