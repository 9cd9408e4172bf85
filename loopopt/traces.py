"""One rank's trace as numpy columns: what `parse` makes and `measure` reads.

Times are whole nanoseconds since the Unix epoch (int64), so that the set arithmetic on intervals is exact;
they become microseconds when a measurement leaves the `measure` room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

NO_ID = -1
"""Stands for "the trace does not say" in the integer columns."""


class Category(IntEnum):
    """What kind of event a row is. Other events (stacks, counters, flow arrows) are not kept."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    OPERATOR = 3
    ANNOTATION = 4
    RUNTIME = 5


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group as `distributedInfo.pg_config` describes it.

    Attributes:
        name: name used in the events.
        description: for people ("default_pg", "mesh_dp", ...).
        size: number of ranks.
        ranks: global ranks, rising; empty if the trace does not list them.
    """

    name: str
    description: str
    size: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs of an operator, recorded with `record_shapes=True`; each part has one entry per argument.

    Attributes:
        types: "float", "c10::BFloat16", "TensorList", "Scalar", "" ...
        shapes: the shapes of the tensors in the argument: none for a scalar, one for a tensor (a 0-dimensional
            tensor has the shape `()`), several for a list of tensors.
        values: text of scalar arguments, "" for tensors; empty if the trace does not say.
        strides: of the tensors in `shapes`, in elements, nested as they are; empty if the trace does not say.
    """

    types: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    values: tuple[str, ...]
    strides: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class CollectiveArgs:
    """Metadata of a communication kernel or of a `record_param_comms` event.

    Attributes:
        name: collective name as the trace spells it.
        group: process group name, "" if unknown.
        group_size: ranks in the group, 0 if unknown.
        ranks: global ranks of the group; empty if absent or shortened in the trace.
        in_elements, out_elements: elements of a rank's input and output, 0 if unknown.
        dtype: element type as the trace spells it.
        seq: sequence number in the group, `NO_ID` if absent.
    """

    name: str
    group: str
    group_size: int
    ranks: tuple[int, ...]
    in_elements: int
    out_elements: int
    dtype: str
    seq: int


@dataclass(frozen=True, eq=False, slots=True)
class RankTrace:
    """All kept events of one rank, sorted by (start, longest first); exact duplicates are gone.

    Every column has the shape (events,).

    Attributes:
        path: file it came from.
        rank: global rank, None if neither the file nor its name says.
        world_size: ranks in the job, 0 if unknown.
        backend: "nccl", "gloo", "cpu:gloo,cuda:nccl", ...; "" if unknown.
        host: host name, "" if unknown.
        groups: process groups by name.
        names: event names, indexed by `name`.
        threads: (process, thread) labels, indexed by `thread`; a GPU stream is a thread here.
        signatures: indexed by `signature`.
        collectives: indexed by `collective`.
        category: uint8, a `Category`.
        name: int32.
        thread: int32.
        start_ns: int64, nanoseconds since the Unix epoch.
        duration_ns: int64, nanoseconds, never negative.
        correlation: int64, links a runtime call to its kernels; `NO_ID` if absent.
        external: int64, links a kernel to the operator that launched it; `NO_ID` if absent.
        signature: int32, `NO_ID` if shapes were not recorded.
        collective: int32, `NO_ID` for all but collectives.
        device: name of the (first) accelerator, "" if the trace does not say.
        dropped: events of a kept category that could not be used: they were running when the window ended (a
            beginning without an end, no duration) or had begun before it.
    """

    path: str
    rank: int | None
    world_size: int
    backend: str
    host: str
    groups: Mapping[str, ProcessGroup]
    names: tuple[str, ...]
    threads: tuple[tuple[str, str], ...]
    signatures: tuple[Signature, ...]
    collectives: tuple[CollectiveArgs, ...]
    category: NDArray[np.uint8] = field(repr=False)
    name: NDArray[np.int32] = field(repr=False)
    thread: NDArray[np.int32] = field(repr=False)
    start_ns: NDArray[np.int64] = field(repr=False)
    duration_ns: NDArray[np.int64] = field(repr=False)
    correlation: NDArray[np.int64] = field(repr=False)
    external: NDArray[np.int64] = field(repr=False)
    signature: NDArray[np.int32] = field(repr=False)
    collective: NDArray[np.int32] = field(repr=False)
    device: str = ""
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """int64 (events,): start plus duration, nanoseconds since the Unix epoch."""
        return self.start_ns + self.duration_ns
