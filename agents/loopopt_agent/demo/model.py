"""A small transformer whose parameters live sharded over the ranks.

Every weight is kept as a flat 1/world_size shard. The forward pass gathers it by a functional
all-gather inside the compiled graph, and the gradient flows back through a reduce-scatter, so that the
compiler sees all communication and may move it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes of the model; one sequence position is one token."""

    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 512
    sequence: int = 128


class Sharded(nn.Module):
    """One weight of a given shape, of which this rank holds 1/world_size.

    Args:
        shape: full shape; the product must divide by the group's size.
        group: the process group the weight is sharded over.
        generator: seeded alike on all ranks, so that the full weight is the same everywhere.
    """

    def __init__(self, shape: tuple[int, ...], group: dist.ProcessGroup, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.group = group
        self.ranks = group.size()
        full = torch.randn(shape, generator=generator) * (shape[-1] ** -0.5)
        flat = full.reshape(self.ranks, -1)
        self.shard = nn.Parameter(flat[group.rank()].clone())

    def forward(self) -> Tensor:
        """The full weight, gathered now."""
        full = funcol.all_gather_tensor_autograd(self.shard, 0, self.group)
        return full.view(self.shape)


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, config: ModelConfig, group: dist.ProcessGroup, generator: torch.Generator) -> None:
        super().__init__()
        d = config.width
        self.heads = config.heads
        self.qkv = Sharded((3 * d, d), group, generator)
        self.out = Sharded((d, d), group, generator)
        self.up = Sharded((4 * d, d), group, generator)
        self.down = Sharded((d, 4 * d), group, generator)

    def forward(self, x: Tensor) -> Tensor:
        b, s, d = x.shape
        h = F.layer_norm(x, (d,))
        q, k, v = F.linear(h, self.qkv()).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5, dim=-1)
        x = x + F.linear((attention @ v).transpose(1, 2).reshape(b, s, d), self.out())
        h = F.layer_norm(x, (d,))
        return x + F.linear(F.gelu(F.linear(h, self.up())), self.down())


class Transformer(nn.Module):
    """Embedding, blocks, and a head; returns the mean next-token loss."""

    def __init__(self, config: ModelConfig, group: dist.ProcessGroup, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = Sharded((config.vocabulary, config.width), group, generator)
        self.blocks = nn.ModuleList(Block(config, group, generator) for _ in range(config.layers))
        self.head = Sharded((config.vocabulary, config.width), group, generator)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embedding())
        for block in self.blocks:
            x = block(x)
        logits = F.linear(x, self.head())
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
