"""What this PyTorch offers: ``python -m loopopt_agent.probe --json`` (used by `loopopt doctor`)."""

from __future__ import annotations

import json
import sys

import torch

from loopopt_agent import torch_api


def main() -> int:
    """Print the feature probes; exit code 0 if the closed loop can run, 8 if only observing."""
    found = torch_api.probes()
    reason = torch_api.why_observe_only(found)
    if "--json" in sys.argv[1:]:
        body = {"torch": torch.__version__, "cuda": torch.cuda.is_available(), "features": found, "reason": reason}
        print(json.dumps(body))
    else:
        for name, answer in found.items():
            print(f"{name:24} {answer}")
        print(reason or "the closed loop can run")
    return 8 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
