"""Kineto traces of jobs that never ran, with known answers. Deterministic, without torch.

A job is simulated in whole nanoseconds of one true clock. Every rank has a host thread that launches, a compute stream
and one communication stream per process group. A collective starts on a rank when it was launched and the stream is
free, and ends on all ranks of its group together, `latency + bytes / bandwidth` (with some noise) after the last one
has arrived. One step, with two layers:

    host      |launch launch launch ...........................................sync|
    compute   |  fwd 0  |  fwd 1  |tp|  bwd 1  |  bwd 0  |           |optimizer|
    dp group  |gather 0|gather 1|          |scatter 1|scatter 0|
    world                                                       |reduce|

What the ranks write down is the true time plus the clock offset of their host.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

BASE_NS = 1_790_000_000_000_000_000
"""`baseTimeNanoseconds` of all files."""

RANKS_PER_HOST = 8
LINKS = {
    "all_gather": (18_000, 200.0),
    "reduce_scatter": (22_000, 180.0),
    "all_reduce": (30_000, 90.0),
}
"""Latency (ns) and bandwidth (bytes per ns, that is GB/s) of each kind."""

NOISE = 0.01
"""Relative spread (uniform, both ways) of a transfer."""

LATE_NS = 40_000
"""By how much the late rank begins each layer's backward later."""

_GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_execute_segment_k_off_kernel"
    "__5x_cublas"
)
_ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}<c10::BFloat16>, std::array<char*, 3ul> >"
    "(int, at::native::{0}<c10::BFloat16>, std::array<char*, 3ul>)"
)
# Operator, kernel, duration of the kernel in ns.
_OPERATORS = (
    ("aten::mm", _GEMM, 62_000),
    ("aten::mul", _ELEMENTWISE.format("BinaryFunctor"), 9_000),
    ("aten::mm", _GEMM.replace("128x128x64", "256x128x64"), 81_000),
    ("aten::add", _ELEMENTWISE.format("CUDAFunctor_add"), 11_000),
    ("aten::addmm", _GEMM.replace("_tn_n_", "_nn_n_"), 57_000),
    ("aten::silu", _ELEMENTWISE.format("silu_kernel"), 14_000),
)
_NCCL = {
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
}
_COMPUTE_STREAM = 7
_STREAMS = {"world": 20, "dp": 24, "tp": 28}

Times = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective as it really was.

    Attributes:
        kind: as in `LINKS`.
        group: process group name.
        seq: number in the group.
        ranks: of the group.
        message_bytes: the larger of a rank's input and output.
        transfer_ns: last arrival to completion.
        late_rank: the rank that arrived last.
    """

    kind: str
    group: str
    seq: int
    ranks: tuple[int, ...]
    message_bytes: int
    transfer_ns: int
    late_rank: int


@dataclass(slots=True)
class RankTruth:
    """One rank's sums over its whole trace.

    Attributes:
        compute_ns, communication_ns, exposed_ns: as the project defines them.
        kernels, collectives: events of category "kernel", and those of them that communicate.
        events: all events of the file.
    """

    compute_ns: int = 0
    communication_ns: int = 0
    exposed_ns: int = 0
    kernels: int = 0
    collectives: int = 0
    events: int = 0


@dataclass(slots=True)
class Truth:
    """The right answers for one job.

    Attributes:
        files: one per rank that was written.
        ranks: by rank.
        transfers: every collective once.
        late_rank: rank that is late for the collectives of the backward pass, None if none is.
        clock_offsets_ns: by host, what its clock shows minus the true time.
        host_of: host of each rank.
        steps: step numbers.
    """

    files: list[Path] = field(default_factory=list)
    ranks: dict[int, RankTruth] = field(default_factory=lambda: defaultdict(RankTruth))
    transfers: list[Transfer] = field(default_factory=list)
    late_rank: int | None = None
    clock_offsets_ns: dict[str, int] = field(default_factory=dict)
    host_of: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Work:
    """One operator with its kernel, on all ranks. Times: int64 (ranks,), true ns."""

    operator: str
    kernel: str
    stream: int
    size: int
    host: Times
    start: Times
    duration: Times
    kind: str = ""
    groups: Sequence[_Group] = ()
    seq: Sequence[int] = ()
    elements: int = 0


@dataclass(slots=True)
class _Group:
    name: str
    description: str
    ranks: tuple[int, ...]
    launched: int = 0


class _Job:
    """The simulation; `step` advances it by one step."""

    def __init__(self, ranks: int, layers: int, kernels: int, mesh: tuple[int, int] | None, seed: int) -> None:
        if mesh is not None and mesh[0] * mesh[1] != ranks:
            raise ValueError(f"a mesh of {mesh} does not have {ranks} ranks")
        self.ranks = ranks
        self.layers = layers
        self.kernels = kernels
        self.random = np.random.default_rng(seed)
        everybody = tuple(range(ranks))
        world = _Group("0", "default_pg", everybody)
        self.world = [world] * ranks
        self.dp, self.tp = self.world, None
        self.groups = [world]
        if mesh is not None:
            grid = np.arange(ranks).reshape(mesh)
            columns = [_Group(str(1 + i), "mesh_dp", tuple(c)) for i, c in enumerate(grid.T.tolist())]
            rows = [_Group(str(1 + mesh[1] + i), "mesh_tp", tuple(r)) for i, r in enumerate(grid.tolist())]
            self.dp = [columns[rank % mesh[1]] for rank in range(ranks)]
            self.tp = [rows[rank // mesh[1]] for rank in range(ranks)]
            self.groups += columns + rows
        self.compute = np.zeros(ranks, np.int64)  # when the compute stream is free
        self.host = np.zeros(ranks, np.int64)
        self.streams = {stream: np.zeros(ranks, np.int64) for stream in _STREAMS.values()}
        self.work: list[_Work] = []
        self.transfers: list[Transfer] = []

    def step(self, late_rank: int | None) -> tuple[list[_Work], list[Transfer], Times, Times]:
        """One step: its work, its collectives, and when it begins and ends on each rank."""
        self.work, self.transfers = [], []
        begin = self.host.copy()
        gathered = [self._collective("all_gather", "dp", self._elements(0))]
        for layer in range(self.layers):
            if layer + 1 < self.layers:
                gathered.append(self._collective("all_gather", "dp", self._elements(layer + 1)))
            self.compute = np.maximum(self.compute, gathered[layer])
            self._operators(layer, 1.0)
            if self.tp is not None:
                self.compute = np.maximum(self.compute, self._collective("all_reduce", "tp", 1 << 19))
        scattered = self.compute
        for layer in reversed(range(self.layers)):
            if late_rank is not None:
                self.compute[late_rank] += LATE_NS
            self._operators(layer, 1.9)
            scattered = self._collective("reduce_scatter", "dp", self._elements(layer))
        self.compute = np.maximum(self.compute, scattered)
        self.compute = np.maximum(self.compute, self._collective("all_reduce", "world", 256))
        self._operators(0, 0.4)
        end = np.maximum(self.compute, np.maximum.reduce(list(self.streams.values()))) + 6_000
        end = np.maximum(end, self.host + 6_000)
        self.host = end + 15_000
        self.compute = np.maximum(self.compute, self.host)
        return self.work, self.transfers, begin, end

    def _elements(self, layer: int) -> int:
        return (1 + layer % 3) << 21

    def _launch(self) -> Times:
        launched = self.host
        self.host = launched + 11_000
        return launched

    def _operators(self, layer: int, scale: float) -> None:
        for index in range(self.kernels):
            operator, kernel, nominal = _OPERATORS[index % len(_OPERATORS)]
            host = self._launch()
            start = np.maximum(self.compute + 1_200, host + 9_000)
            spread = self.random.uniform(0.97, 1.03, self.ranks)
            duration = np.asarray(nominal * scale * spread, np.int64)
            self.compute = start + duration
            size = 1024 << (layer % 3)
            self.work.append(_Work(operator, kernel, _COMPUTE_STREAM, size, host, start, duration))

    def _collective(self, kind: str, where: str, elements: int) -> Times:
        """Launch after the compute launched so far; returns when it ends on each rank."""
        groups = {"world": self.world, "dp": self.dp, "tp": self.tp}[where]
        assert groups is not None
        stream = _STREAMS[where]
        host = self._launch()
        # It waits for what was computed before it, except a gather, whose input is always there.
        ready = host + 9_000 if kind == "all_gather" else np.maximum(self.compute, host + 9_000)
        start = np.maximum(self.streams[stream] + 2_000, ready)
        end = np.zeros(self.ranks, np.int64)
        seq = [0] * self.ranks
        latency, bandwidth = LINKS[kind]
        size = elements * 2
        for group in {id(g): g for g in groups}.values():
            group.launched += 1
            members = np.array(group.ranks)
            noise = self.random.uniform(1 - NOISE, 1 + NOISE)
            transfer = int((latency + size / bandwidth) * noise)
            end[members] = start[members].max() + transfer
            late = int(members[start[members].argmax()])
            self.transfers.append(Transfer(kind, group.name, group.launched, group.ranks, size, transfer, late))
            for rank in group.ranks:
                seq[rank] = group.launched
        self.streams[stream] = end
        operator, kernel = _NCCL[kind]
        self.work.append(
            _Work(operator, kernel, stream, elements, host, start, end - start, kind, groups, seq, elements)
        )
        return end


def write_job(
    folder: str | os.PathLike[str],
    *,
    ranks: int = 8,
    steps: int = 3,
    layers: int = 4,
    kernels: int = 6,
    mesh: tuple[int, int] | None = None,
    seed: int = 0,
    late_rank: int | None = None,
    clock_spread_ns: int = 300_000,
    python: bool = False,
    shapes: bool = True,
    compress: bool = False,
    wanted: Sequence[int] | None = None,
) -> Truth:
    """Write one file per rank into `folder`, `rank<n>.pt.trace.json` (`.gz` if compressed).

    Args:
        folder: made if need be.
        ranks: of the job, `RANKS_PER_HOST` on each host.
        steps: traced training steps.
        layers: of the model.
        kernels: compute kernels per layer and pass.
        mesh: (data parallel, tensor parallel) sizes; None for one group of all ranks.
        seed: same seed, same files.
        late_rank: rank to be late.
        clock_spread_ns: hosts' clocks are off by up to this, except the first host's.
        python: also write Python function events, as `with_stack=True` does.
        shapes: also write input shapes, types, strides and values, as `record_shapes=True` does.
        compress: gzip.
        wanted: ranks to write, all by default.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    job = _Job(ranks, layers, kernels, mesh, seed)
    truth = _truth(ranks, seed, clock_spread_ns, late_rank)
    done = [job.step(late_rank) for _ in range(steps)]
    truth.steps = list(range(1, steps + 1))
    for _, transfers, _, _ in done:
        truth.transfers += transfers
    for rank in range(ranks) if wanted is None else wanted:
        path = target / f"rank{rank}.pt.trace.json{'.gz' if compress else ''}"
        # Level 1: the time of tests is better spent elsewhere.
        with gzip.open(path, "wt", 1) if compress else open(path, "w") as out:
            writer = _Writer(out, job, rank, truth, python=python, shapes=shapes)
            for number, (work, _, begin, end) in zip(truth.steps, done, strict=True):
                writer.step(number, work, int(begin[rank]), int(end[rank]))
            writer.finish()
        truth.files.append(path)
    return truth


def write_big(
    path: str | os.PathLike[str],
    target_bytes: int,
    *,
    ranks: int = 8,
    layers: int = 24,
    kernels: int = 12,
    seed: int = 0,
    python: bool = True,
    shapes: bool = True,
) -> Truth:
    """Write rank 0's trace of a job that runs until the file has `target_bytes`, step by step, in little memory."""
    job = _Job(ranks, layers, kernels, None, seed)
    truth = _truth(ranks, seed, 0, None)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "w", buffering=1 << 20) as out:
        writer = _Writer(out, job, 0, truth, python=python, shapes=shapes)
        while writer.written < target_bytes:
            work, _, begin, end = job.step(None)
            truth.steps.append(len(truth.steps) + 1)
            writer.step(truth.steps[-1], work, int(begin[0]), int(end[0]))
        writer.finish()
    truth.files.append(target)
    return truth


def _truth(ranks: int, seed: int, clock_spread_ns: int, late_rank: int | None) -> Truth:
    rng = random.Random(seed)
    hosts = [f"host{i:04d}" for i in range(-(-ranks // RANKS_PER_HOST))]
    offsets = {host: rng.randint(-clock_spread_ns, clock_spread_ns) if i else 0 for i, host in enumerate(hosts)}
    return Truth(
        late_rank=late_rank, clock_offsets_ns=offsets, host_of=[hosts[r // RANKS_PER_HOST] for r in range(ranks)]
    )


class _Writer:
    """One rank's file."""

    def __init__(self, out: TextIO, job: _Job, rank: int, truth: Truth, *, python: bool, shapes: bool) -> None:
        self.written = 0
        self._out = out
        self._rank = rank
        self._device = rank % RANKS_PER_HOST
        self._host_pid = 4000 + rank
        self._python = python
        self._shapes = shapes
        self._truth = truth.ranks[rank]
        self._offset = truth.clock_offsets_ns[truth.host_of[rank]] + 5_000_000_000
        self._next_id = 1
        self._next_python = 1
        own = [g for g in job.groups if rank in g.ranks]
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": "NVIDIA H100 80GB HBM3", "numSms": 132} for i in range(8)],
            "distributedInfo": {
                "backend": "nccl",
                "rank": rank,
                "world_size": job.ranks,
                "pg_count": len(own),
                "pg_config": [
                    {"pg_name": g.name, "pg_desc": g.description, "backend_config": "cuda:nccl",
                     "pg_size": len(g.ranks), "ranks": list(g.ranks)} for g in own
                ],
                "nccl_version": "2.27.5",
            },
            "host_name": truth.host_of[rank],
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
        }  # fmt: skip
        self._write(json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [')
        self._comma = ""
        self._event(
            f'{{\n    "name": "process_name", "ph": "M", "ts": 0.000, "pid": {self._host_pid}, "tid": 0,\n    '
            '"args": {\n      "name": "python3"\n    }\n  }'
        )

    def finish(self) -> None:
        self._write(f'\n  ],\n  "traceName": "/tmp/rank{self._rank}.pt.trace.json"\n}}\n')

    def step(self, number: int, work: Sequence[_Work], begin: int, end: int) -> None:
        rank = self._rank
        host_thread = f'"pid": {self._host_pid}, "tid": {self._host_pid}'
        identity = self._id()
        self._event(
            f'{{\n    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{number}", {host_thread},\n    '
            f'"ts": {self._us(begin)}, "dur": {_us(end - begin)},\n    "args": {{\n      "External id": {identity},'
            f'"Record function id": 0, "Ev Idx": {identity - 1}\n    }}\n  }}'
        )
        for one in work:
            self._work(one, int(one.host[rank]), int(one.start[rank]), int(one.duration[rank]), host_thread)
        self._add_truth([w for w in work if not w.kind], [w for w in work if w.kind])

    def _work(self, one: _Work, host: int, start: int, duration: int, thread: str) -> None:
        if self._python:
            for depth, name in enumerate(
                ("torch/nn/modules/module.py(1773): _wrapped_call_impl", "train.py(42): loss")
            ):
                number = self._next_python
                self._next_python += 1
                self._event(
                    f'{{\n    "ph": "X", "cat": "python_function", "name": "{name}", {thread},\n    '
                    f'"ts": {self._us(host - 900 + 200 * depth)}, "dur": {_us(10_500 - 400 * depth)},\n    "args": {{\n'
                    f'      "Python parent id": {number - 1}, "Python id": {number}, "Ev Idx": {number}\n    }}\n  }}'
                )
        external = self._comm_op(one, host, thread) if one.kind else self._compute_op(one, host, thread)
        link = self._id()
        call = "cudaLaunchKernelExC" if one.kind else "cudaLaunchKernel"
        launched = self._us(host + 3_000)
        self._event(
            f'{{\n    "ph": "X", "cat": "cuda_runtime", "name": "{call}", {thread},\n    "ts": {launched}, '
            f'"dur": 4.250,\n    "args": {{\n      "External id": {external}, "cbid": 211, '
            f'"correlation": {link}\n    }}\n  }}'
        )
        self._event(
            f'{{\n    "ph": "s", "id": {link}, {thread}, "ts": {launched},\n    "cat": "ac2g", "name": "ac2g"\n  }}'
        )
        stream = f'"pid": {self._device}, "tid": {one.stream}'
        self._event(
            f'{{\n    "ph": "X", "cat": "kernel", "name": "{one.kernel}", {stream},\n    "ts": {self._us(start)}, '
            f'"dur": {_us(duration)},\n    "args": {{\n      "External id": {external}, "queued": 0, "device": '
            f'{self._device}, "context": 1,\n      "stream": {one.stream}, "correlation": {link},\n      '
            f'"registers per thread": 96, "shared memory": 49152,\n      "blocks per SM": 7.757576,\n      '
            f'"warps per SM": 31.030304,\n      "grid": [1024, 1, 1],\n      "block": [128, 1, 1],\n      '
            f'"est. achieved occupancy %": 48{self._metadata(one) if one.kind else ""}\n    }}\n  }}'
        )
        self._event(
            f'{{\n    "ph": "f", "id": {link}, {stream}, "ts": {self._us(start)},\n    "cat": "ac2g", "name": "ac2g", '
            f'"bp": "e"\n  }}'
        )

    def _compute_op(self, one: _Work, host: int, thread: str) -> int:
        dims = f"[[{one.size}, {one.size}], [{one.size}, {one.size}], []]"
        strides = f"[[{one.size}, 1], [1, {one.size}], []]"
        number = self._id()
        inputs = (
            '"Concrete Inputs": ["", "", "1."], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], '
            f'"Input Strides": {strides}, "Input Dims": {dims}, '
        )
        self._event(
            f'{{\n    "ph": "X", "cat": "cpu_op", "name": "{one.operator}", {thread},\n    "ts": {self._us(host)}, '
            f'"dur": 9.750,\n    "args": {{\n      "External id": {number},"Record function id": 0, '
            f'{inputs if self._shapes else ""}"Ev Idx": {number - 1}\n    }}\n  }}'
        )
        return number

    def _comm_op(self, one: _Work, host: int, thread: str) -> int:
        number = self._id()
        self._event(
            f'{{\n    "ph": "X", "cat": "cpu_op", "name": "record_param_comms", {thread},\n    "ts": {self._us(host)}, '
            f'"dur": 9.750,\n    "args": {{\n      "External id": {number},"Record function id": 0'
            f'{self._metadata(one)}, "Ev Idx": {number - 1}\n    }}\n  }}'
        )
        inside = self._id()
        self._event(
            f'{{\n    "ph": "X", "cat": "user_annotation", "name": "nccl:{one.operator}", {thread},\n    '
            f'"ts": {self._us(host + 1_000)}, "dur": 8.000,\n    "args": {{\n      "External id": {inside},'
            f'"Record function id": 0, "Ev Idx": {inside - 1}\n    }}\n  }}'
        )
        return inside

    def _metadata(self, one: _Work) -> str:
        group = one.groups[self._rank]
        size = len(group.ranks)
        large, small = one.elements, max(1, one.elements // size)
        given, got = {"all_gather": (small, large), "reduce_scatter": (large, small)}.get(one.kind, (large, large))
        # Kineto shortens long lists; distributedInfo has them all.
        ranks = list(group.ranks) if size <= 30 else [*group.ranks[:29], "..."]
        listed = "[" + ", ".join(map(str, ranks)) + "]"
        return (
            f', "Collective name": "{one.operator}", "In msg nelems": {given}, "Out msg nelems": {got}, '
            f'"Group size": {size}, "dtype": "BFloat16", "Process Group Name": "{group.name}", '
            f'"Process Group Description": "{group.description}", "Process Group Ranks": "{listed}", '
            f'"Rank": {self._rank}, "Seq": {one.seq[self._rank]}'
        )

    def _add_truth(self, compute: Sequence[_Work], communication: Sequence[_Work]) -> None:
        """Add one step's sums; no kernel of a step reaches into the next one."""
        busy = _covered(self._spans(compute))
        talking = _covered(self._spans(communication))
        both = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a, b in _neighbours(busy, talking))
        truth = self._truth
        truth.compute_ns += sum(b - a for a, b in busy)
        truth.communication_ns += sum(b - a for a, b in talking)
        truth.exposed_ns += sum(b - a for a, b in talking) - both
        truth.kernels += len(compute) + len(communication)
        truth.collectives += len(communication)

    def _spans(self, work: Sequence[_Work]) -> list[tuple[int, int]]:
        rank = self._rank
        return [(int(w.start[rank]), int(w.start[rank] + w.duration[rank])) for w in work]

    def _us(self, time_ns: int) -> str:
        return _us(time_ns + self._offset)

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    def _event(self, text: str) -> None:
        self._write(f"{self._comma}\n  {text}")
        self._comma = ","
        self._truth.events += 1

    def _write(self, text: str) -> None:
        self._out.write(text)
        self.written += len(text)


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _covered(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union, as rising spans that do not touch."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _neighbours(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of spans that may overlap; both lists rise."""
    i = j = 0
    while i < len(a) and j < len(b):
        yield a[i], b[j]
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
