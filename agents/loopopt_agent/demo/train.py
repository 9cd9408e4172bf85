"""The demo job: an ordinary training script, with no word of loopopt in it.

    torchrun --nproc-per-node 2 -m loopopt_agent.demo.train --steps 60

Prints one JSON line per rank 0 step: ``{"step": 3, "loss": 6.2, "seconds": 1.05}``.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist

from loopopt_agent.demo.model import ModelConfig, Transformer


def main() -> None:
    """Train for a number of steps on fixed random tokens."""
    parser = argparse.ArgumentParser(description="Train a small sharded transformer.")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--dynamic", action="store_true", help="change the batch size now and then")
    parser.add_argument(
        "--steps-log", dest="log", default="", help="append the JSON lines to this file instead of stdout"
    )
    args = parser.parse_args()

    dist.init_process_group("gloo")
    group = dist.group.WORLD
    assert group is not None
    torch.manual_seed(0)
    config = ModelConfig(layers=args.layers, width=args.width, sequence=args.sequence)
    model = Transformer(config, group)
    step_model = model if args.eager else torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1 + dist.get_rank())

    for step in range(args.steps):
        batch = args.batch + (step // 5) % 2 if args.dynamic else args.batch
        tokens = torch.randint(0, config.vocabulary, (batch, config.sequence + 1), generator=data)
        start = time.perf_counter()
        loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            line = json.dumps({"step": step, "loss": loss.item(), "seconds": time.perf_counter() - start})
            if args.log:
                with open(args.log, "a", encoding="utf-8") as log:
                    log.write(line + "\n")
            else:
                print(line, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
