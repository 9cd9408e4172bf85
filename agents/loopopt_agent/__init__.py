"""The part of loopopt that lives inside the training process.

Most jobs need no line of code: with ``LOOPOPT=1`` in the environment (``loopopt run`` sets it) the agent
arms itself at the end of ``import torch``. For those who prefer it in the script::

    import loopopt_agent

    loopopt_agent.attach()   # once, after init_process_group
    loopopt_agent.step()     # at the end of each step; only for jobs without a torch.optim optimizer

Nothing here raises into the training loop: on an internal error the agent disarms itself, says so once,
and every later call returns at once.
"""

from __future__ import annotations

__all__ = ["attach", "step"]


def attach(job_dir: str | None = None) -> bool:
    """Arm the agent in this rank, whatever ``LOOPOPT`` says.

    Args:
        job_dir: job directory shared with the daemon; ``LOOPOPT_DIR`` if None.

    Returns:
        Whether the agent is armed (a second call is harmless).
    """
    from loopopt_agent.arm import arm_explicitly

    return arm_explicitly(job_dir)


def step() -> None:
    """Mark the end of a training step (for jobs whose steps no optimizer marks)."""
    from loopopt_agent.arm import explicit_step

    explicit_step()
