"""One rank's collectives as columns: compact to send, quick to match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from loopopt.measure.instances import Instance
from loopopt.measure.intervals import Times


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A process group as the ranks tell it; see `Instance`."""

    name: str
    size: int
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Collectives:
    """All collectives of one rank, by start. Every column has the shape (n,).

    Attributes:
        kinds, groups, dtypes: what the columns `kind`, `group` and `dtype` are indices into.
        kind: int16.
        group: int32.
        dtype: int16.
        message_bytes: int64, 0 if unknown.
        start_ns, end_ns, order_ns, seq: int64, as in `Instance`.
        thread: int32.
        exposed_ns: int64, additive share of the rank's exposed time, within the steps that were asked for.
        chosen: bool, whether it began within the steps that were asked for.
    """

    kinds: tuple[str, ...]
    groups: tuple[GroupKey, ...]
    dtypes: tuple[str, ...]
    kind: NDArray[np.int16]
    group: NDArray[np.int32]
    dtype: NDArray[np.int16]
    message_bytes: Times
    start_ns: Times
    end_ns: Times
    order_ns: Times
    seq: Times
    thread: NDArray[np.int32]
    exposed_ns: Times
    chosen: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start_ns)

    def instances(self) -> list[Instance]:
        """The same as records."""
        return [
            Instance(
                kind=self.kinds[kind],
                group=self.groups[group].name,
                group_size=self.groups[group].size,
                members=self.groups[group].members,
                message_bytes=message_bytes,
                start_ns=start_ns,
                end_ns=end_ns,
                order_ns=order_ns,
                seq=seq,
                thread=thread,
                dtype=self.dtypes[dtype],
            )
            for kind, group, dtype, message_bytes, start_ns, end_ns, order_ns, seq, thread in zip(
                *(
                    getattr(self, f.name).tolist()
                    for f in fields(self)
                    if f.name not in ("kinds", "groups", "dtypes", "exposed_ns", "chosen")
                ),
                strict=True,
            )
        ]

    @property
    def all_grouped(self) -> bool:
        """Whether every collective's group is known."""
        return all(g.members for g in self.groups)


def collectives_of(instances: Sequence[Instance], exposed_ns: Times, chosen: NDArray[np.bool_]) -> Collectives:
    """Columns of a rank's collectives.

    Args:
        instances: by start.
        exposed_ns: int64 (n,).
        chosen: bool (n,).
    """
    kinds: dict[str, int] = {}
    groups: dict[GroupKey, int] = {}
    dtypes: dict[str, int] = {}
    n = len(instances)
    kind = np.fromiter((kinds.setdefault(i.kind, len(kinds)) for i in instances), np.int16, n)
    group = np.fromiter(
        (groups.setdefault(GroupKey(i.group, i.group_size, i.members), len(groups)) for i in instances), np.int32, n
    )
    dtype = np.fromiter((dtypes.setdefault(i.dtype, len(dtypes)) for i in instances), np.int16, n)
    return Collectives(
        kinds=tuple(kinds),
        groups=tuple(groups),
        dtypes=tuple(dtypes),
        kind=kind,
        group=group,
        dtype=dtype,
        message_bytes=np.fromiter((min(i.message_bytes, 2**62) for i in instances), np.int64, n),
        start_ns=np.fromiter((i.start_ns for i in instances), np.int64, n),
        end_ns=np.fromiter((i.end_ns for i in instances), np.int64, n),
        order_ns=np.fromiter((i.order_ns for i in instances), np.int64, n),
        seq=np.fromiter((i.seq for i in instances), np.int64, n),
        thread=np.fromiter((i.thread for i in instances), np.int32, n),
        exposed_ns=exposed_ns,
        chosen=chosen,
    )
