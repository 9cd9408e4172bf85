"""Jobs of other kinds than the demo, as people write them; a few steps each, losses to a file.

    torchrun --nproc-per-node 2 workloads.py KIND --steps-log FILE [--steps N]

tensor      tensor parallel by DTensor (all-reduce in forward and backward)
data        DistributedDataParallel, gradients reduced outside the compiled graph
compiled    DistributedDataParallel with gradients reduced inside, through compiled autograd
experts     all-to-all between ranks
hybrid      2 x 2: sharded within a row, replicated across (four ranks)
fsdp        fully_shard on each block, compiled with the collectives outside the graph
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH = 64


class Mlp(nn.Module):
    """Two linear layers and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def stack() -> nn.Sequential:
    """The same weights on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*[Mlp() for _ in range(3)])


def tensor() -> nn.Module:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = stack()
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return torch.compile(model)


def data() -> nn.Module:
    return torch.compile(nn.parallel.DistributedDataParallel(stack()))


def compiled() -> nn.Module:
    import torch._dynamo

    torch._dynamo.config.optimize_ddp = "python_reducer"
    return torch.compile(nn.parallel.DistributedDataParallel(stack()))


class Experts(nn.Module):
    """Tokens go to the other ranks and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack()

    def forward(self, x: Tensor) -> Tensor:
        group = dist.group.WORLD
        for layer in self.layers:
            sent = funcol.all_to_all_single_autograd(x, None, None, group)
            x = funcol.all_to_all_single_autograd(layer(sent), None, None, group)
        return x


def experts() -> nn.Module:
    return torch.compile(Experts())


class Hybrid(nn.Module):
    """Weights sharded within a row of the mesh; gradients summed over the column by a functional all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        self.row, self.column = mesh["shard"].get_group(), mesh["replicate"].get_group()
        torch.manual_seed(0)
        full = [torch.randn(WIDTH, WIDTH) * WIDTH**-0.5 for _ in range(4)]
        mine = self.row.rank()
        self.shards = nn.ParameterList(w.chunk(2)[mine].clone() for w in full)

    def forward(self, x: Tensor) -> Tensor:
        for shard in self.shards:
            weight = funcol.all_gather_tensor_autograd(_Replicated.apply(shard, self.column.group_name), 0, self.row)
            x = x + torch.relu(x @ weight)
        return x


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, group: str) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.group = group
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[no-untyped-def]
        return funcol.all_reduce(grad, "sum", ctx.group), None


def hybrid() -> nn.Module:
    return torch.compile(Hybrid())


def fsdp() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = stack()
    for block in model:
        block.compile()
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


KINDS: dict[str, Callable[[], nn.Module]] = {f.__name__: f for f in (tensor, data, compiled, experts, hybrid, fsdp)}


def _backward(kind: str) -> contextlib.AbstractContextManager[object]:
    if kind != "compiled":
        return contextlib.nullcontext()
    enabled: contextlib.AbstractContextManager[object] = torch._dynamo.compiled_autograd._enable(torch.compile())
    return enabled


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("--steps-log", dest="log", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    model = KINDS[args.kind]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1 if args.kind == "tensor" else 1 + dist.get_rank())
    for step in range(args.steps):
        x = torch.randn(8, WIDTH, generator=generator)
        loss = model(x).square().mean()
        with _backward(args.kind):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            with open(args.log, "a", encoding="utf-8") as log:
                log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        time.sleep(args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
