"""The demo job plain, or under torch's overlap scheduler with its default settings, without loopopt's loop.

On a build without a GPU the stock scheduler dies in a memory-bandwidth query; that one function is given a
number, and its compute estimates are the analytical ones (the others are GPU benchmarks).
"""

from __future__ import annotations

import contextlib
import sys

import torch._inductor.config as inductor
from loopopt_agent import torch_api
from loopopt_agent.demo import train


def main() -> None:
    """`stock.py plain|stock` and the demo's own arguments."""
    mode = sys.argv.pop(1)
    with contextlib.ExitStack() as stack:
        if mode == "stock":
            stack.enter_context(torch_api.scheduling(20.0, 600.0, lambda _: False))
            stack.enter_context(
                inductor.patch(
                    {
                        "aten_distributed_optimizations.enable_overlap_scheduling": True,
                        "aten_distributed_optimizations.compute_estimator": "analytical",
                    }
                )
            )
            torch_api.replace_gloo_all_gather()
            torch_api.set_cache_key_tag("stock")
        train.main()


if __name__ == "__main__":
    main()
