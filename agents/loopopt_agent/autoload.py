"""Entry point of group `torch.backends`: PyTorch calls `autoload` at the end of `import torch`.

An exception here would break `import torch` for everybody who has loopopt installed, so nothing may
escape, and without our variable it returns at once (one dictionary look-up).
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Arm the agent if the environment asks for it (``LOOPOPT=1``) and this process is a rank."""
    if os.environ.get("LOOPOPT") != "1":
        return
    try:
        from loopopt_agent.arm import arm_from_environment

        arm_from_environment()
    except BaseException as err:
        if isinstance(err, KeyboardInterrupt):
            raise
        import sys

        print(f"loopopt: agent not armed: {err!r}", file=sys.stderr)
