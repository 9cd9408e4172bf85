"""Traces with known times, built in memory. Microseconds in, columns out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loopopt.traces import NO_ID, Category, CollectiveArgs, ProcessGroup, RankTrace, Signature

BASE_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Ev:
    """One event; times in microseconds after `BASE_NS`."""

    name: str
    start: float
    end: float
    category: Category = Category.OPERATOR
    thread: int = 0
    correlation: int = NO_ID
    signature: Signature | None = None
    collective: CollectiveArgs | None = None


def step(number: int, start: float, end: float) -> Ev:
    """A step mark."""
    return Ev(f"loopopt.step#{number}", start, end, Category.ANNOTATION)


def kernel(name: str, start: float, end: float, correlation: int = NO_ID) -> Ev:
    """A compute kernel."""
    return Ev(name, start, end, Category.KERNEL, thread=50, correlation=correlation)


def nccl(kind: str, start: float, end: float, elements: int = 256, seq: int = NO_ID, group: str = "0") -> Ev:
    """A communication kernel of two ranks with metadata, float32."""
    args = CollectiveArgs(kind, group, 2, (), elements, elements, "Float", seq)
    return Ev(f"ncclDevKernel_{kind}(args)", start, end, Category.KERNEL, thread=51, collective=args)


def tensors(*shapes: tuple[int, ...], dtype: str = "float", values: Sequence[str] = ()) -> Signature:
    """Signature of tensors of one type, followed by one scalar for each value."""
    padded = ("",) * len(shapes) + tuple(values)
    types = (dtype,) * len(shapes) + ("Scalar",) * len(values)
    return Signature(types, tuple((s,) for s in shapes) + ((),) * len(values), padded)


def gather(start: float, end: float, elements: int) -> Ev:
    """Launch of a functional all-gather on two ranks."""
    signature = tensors((elements,), values=("2", ""))
    return Ev("_c10d_functional::all_gather_into_tensor", start, end, signature=signature)


def gloo(kind: str, start: float, end: float, elements: int, thread: int = 9) -> Ev:
    """A gloo event."""
    return Ev(f"gloo:{kind}", start, end, Category.ANNOTATION, thread, signature=tensors((elements,)))


def trace(
    events: Sequence[Ev], rank: int | None = 0, world: int = 2, backend: str = "nccl", host: str = "a", shift: float = 0
) -> RankTrace:
    """Columns of the events; `shift` (us) is the error of this rank's clock."""
    ordered = sorted(events, key=lambda e: (e.start, -e.end))
    names = sorted({e.name for e in ordered})
    threads = sorted({e.thread for e in ordered})
    signatures = [e.signature for e in ordered if e.signature is not None]
    collectives = [e.collective for e in ordered if e.collective is not None]
    starts = np.array([BASE_NS + round((e.start + shift) * 1000) for e in ordered], np.int64)
    return RankTrace(
        path=f"rank{rank}.json",
        rank=rank,
        world_size=world,
        backend=backend,
        host=host,
        groups={"0": ProcessGroup("0", "default_pg", world, tuple(range(world)))} if world else {},
        names=tuple(names),
        threads=tuple(("1", str(t)) for t in threads),
        signatures=tuple(signatures),
        collectives=tuple(collectives),
        category=np.array([e.category for e in ordered], np.uint8),
        name=np.array([names.index(e.name) for e in ordered], np.int32),
        thread=np.array([threads.index(e.thread) for e in ordered], np.int32),
        start_ns=starts,
        duration_ns=np.array([round((e.end - e.start) * 1000) for e in ordered], np.int64),
        correlation=np.array([e.correlation for e in ordered], np.int64),
        external=np.full(len(ordered), NO_ID, np.int64),
        signature=np.array(
            [NO_ID if e.signature is None else signatures.index(e.signature) for e in ordered], np.int32
        ),
        collective=np.array(
            [NO_ID if e.collective is None else collectives.index(e.collective) for e in ordered], np.int32
        ),
    )
