"""A training script as a user might have it: small, compiled, sharded; options for what jobs may do."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from loopopt_agent.demo.model import ModelConfig, Transformer


class Tokens(torch.utils.data.Dataset):
    """Fixed random token rows."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 64, (17,), generator=torch.Generator().manual_seed(index))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-log", dest="log", required=True)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--pause", type=float, default=0.25, help="sleep in each step, so that a test can keep up")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--compile-at", type=int, default=0, help="run uncompiled before this step")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--loader", action="store_true", help="spawned data-loader workers")
    parser.add_argument("--profile-at", type=int, default=-1, help="use torch.profiler in this and the next step")
    parser.add_argument("--die-once", type=int, default=-1, help="rank 1 kills itself at this step, the first time")
    parser.add_argument("--no-optimizer", action="store_true", help="update by hand, mark steps with loopopt_agent")
    parser.add_argument("--stop-file", help="end after the step in which rank 0 finds this file")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    config = ModelConfig(layers=1, width=64, heads=2, vocabulary=64, sequence=16)
    group = dist.group.WORLD
    assert group is not None
    model = Transformer(config, group)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = Tokens()
    loader = None
    if args.loader:
        loader = iter(torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2, multiprocessing_context="spawn"))
    for step in range(args.steps):
        size = 4 + (step // 6) % 2 * 3 if args.dynamic else 4
        tokens = (
            next(loader) if loader is not None else torch.stack([rows[rank * 97 + step * 4 + i] for i in range(size)])
        )
        profiler = torch.profiler.profile() if args.profile_at == step else None
        if profiler is not None:
            profiler.start()
        step_model = model if args.eager or step < args.compile_at else compiled
        loss = step_model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        if args.no_optimizer:
            import loopopt_agent

            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
            loopopt_agent.step()
        else:
            optimizer.step()
            optimizer.zero_grad()
        if profiler is not None:
            profiler.stop()
            assert profiler.events(), "the user's own profile must be whole"
        marker = Path(args.log).with_suffix(".died")
        if step == args.die_once and rank == 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            with open(args.log, "a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        time.sleep(args.pause)
        if args.stop_file is not None:
            stop = torch.tensor([float(rank == 0 and Path(args.stop_file).exists())])
            dist.all_reduce(stop)
            if stop.item():
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
