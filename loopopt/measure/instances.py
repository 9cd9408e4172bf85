"""Collective instances of one rank, with their kind, group and message size.

GPU: a communication kernel says so itself since 2024; before, the host annotation around its launch
("nccl:all_reduce", with shapes if recorded) does, and failing that the kernel's name.

Gloo and MPI: the event on the backend's thread tells when, but not always what: torch's reduce-scatter runs as
`gloo:all_reduce`. The operator that launched it tells kind, group and size. The backend takes work from one
queue, so the k-th launch is the k-th event, up to pieces of work on two threads that begin nearly together; a
launch is therefore matched to the next event that it fits (kind, elements) and that does not begin before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from loopopt.measure import naming
from loopopt.measure.activity import Activity, rows_named
from loopopt.measure.nesting import Rows, enclosing, outermost
from loopopt.traces import NO_ID, Category, CollectiveArgs, ProcessGroup, RankTrace, Signature

# Position of the group size and of the group name among an operator's arguments.
_SIZE_ARGUMENT = {
    "all_gather_into_tensor": 1,
    "all_gather_into_tensor_out": 1,
    "all_gather_into_tensor_coalesced": 1,
    "reduce_scatter_tensor": 2,
    "reduce_scatter_tensor_out": 2,
    "reduce_scatter_tensor_coalesced": 2,
}
_GROUP_ARGUMENT = {
    "all_gather_into_tensor": 2,
    "all_gather_into_tensor_out": 2,
    "all_gather_into_tensor_coalesced": 2,
    "reduce_scatter_tensor": 3,
    "reduce_scatter_tensor_out": 3,
    "reduce_scatter_tensor_coalesced": 3,
    "all_reduce": 2,
    "all_reduce_": 2,
    "all_reduce_coalesced": 2,
    "all_to_all_single": 3,
    "broadcast": 2,
    "broadcast_": 2,
}


@dataclass(frozen=True, slots=True)
class Instance:
    """One collective on one rank. Nanoseconds since the epoch.

    Attributes:
        kind: as in `loopopt.timing`, "other" if unknown.
        group: process group name, "" if unknown.
        group_size: 0 if unknown.
        members: global ranks of the group, empty if unknown.
        message_bytes: 0 if unknown.
        start_ns, end_ns: when this rank's kernel or event ran.
        order_ns: when it was launched, as far as known: instances of one group are in this order on every rank.
        seq: sequence number in the group, `NO_ID` if unknown.
        thread: stream or backend thread, as an index into `RankTrace.threads`.
        dtype: element type as PyTorch names it, "" if unknown.
    """

    kind: str
    group: str
    group_size: int
    members: tuple[int, ...]
    message_bytes: int
    start_ns: int
    end_ns: int
    order_ns: int
    seq: int = NO_ID
    thread: int = NO_ID
    dtype: str = ""


def find_instances(trace: RankTrace, activity: Activity, rank: int) -> list[Instance]:
    """Instances of a rank, one per communication row, in the order of `activity.collective_rows`."""
    if activity.on_device:
        return _of_kernels(trace, activity, rank)
    return _of_host_events(trace, activity, rank)


def _group(
    trace: RankTrace, rank: int, name: str, size: int, ranks: tuple[int, ...]
) -> tuple[str, int, tuple[int, ...]]:
    """Complete (name, size, members) of a group from what an event says of it."""
    known = trace.groups.get(name) if name else None
    if known is not None:
        members = known.ranks or ranks
        return name, known.size or size or len(members), members
    if ranks:
        return name, size or len(ranks), ranks
    if name:
        everybody = tuple(range(size)) if size and size == trace.world_size else ()
        return name, size, everybody
    return _guess_group(trace.groups, trace.world_size, rank, size)


def _guess_group(
    groups: Mapping[str, ProcessGroup], world: int, rank: int, size: int
) -> tuple[str, int, tuple[int, ...]]:
    """The only group an unnamed one of this size (0: any) can be; its name only if just one group has the ranks."""
    fitting = [g for g in groups.values() if rank in g.ranks and g.size > 1 and size in (0, g.size)]
    members = {g.ranks for g in fitting}
    if len(members) == 1:
        first = fitting[0]
        return (first.name if len(fitting) == 1 else "", first.size, first.ranks)
    if not groups and world and size in (0, world):
        return "", world, tuple(range(world))
    return "", size, ()


# ---------------------------------------------------------------- kernels


def _of_kernels(trace: RankTrace, activity: Activity, rank: int) -> list[Instance]:
    rows = activity.collective_rows
    launched = _launch_notes(trace, rows)
    found: list[Instance] = []
    for row, note in zip(rows.tolist(), launched.tolist(), strict=True):
        name = trace.names[trace.name[row]]
        args = _metadata(trace, row, note)
        if args is not None:
            kind = naming.kind_of(args.name)
            dtype = naming.dtype_name(args.dtype)
            group, size, members = _group(trace, rank, args.group, args.group_size, args.ranks)
            message = max(args.in_elements, args.out_elements) * naming.element_bytes(args.dtype)
        else:
            kind = naming.kind_of(trace.names[trace.name[note]] if note >= 0 else name)
            if kind == naming.UNKNOWN_KIND:
                kind = naming.kind_of(name)
            dtype = _tensor_type(trace, note) if note >= 0 else ""
            group, size, members = _group(trace, rank, "", 0, ())
            message = _input_bytes(trace, note) * (max(size, 1) if kind == "all_gather" else 1) if note >= 0 else 0
        start = int(trace.start_ns[row])
        found.append(
            Instance(
                kind=kind,
                group=group,
                group_size=size,
                members=members,
                message_bytes=message,
                start_ns=start,
                end_ns=start + int(trace.duration_ns[row]),
                order_ns=start,
                seq=args.seq if args is not None else NO_ID,
                thread=int(trace.thread[row]),
                dtype=dtype,
            )
        )
    return found


def _metadata(trace: RankTrace, row: int, note: int) -> CollectiveArgs | None:
    for candidate in (row, note):
        index = int(trace.collective[candidate]) if candidate >= 0 else NO_ID
        if index != NO_ID:
            return trace.collectives[index]
    return None


def _launch_notes(trace: RankTrace, rows: Rows) -> Rows:
    """For each communication kernel the host event around its launch that says most, -1 if none."""
    runtime = np.flatnonzero((trace.category == Category.RUNTIME) & (trace.correlation > 0))
    found = np.full(len(rows), -1, np.intp)
    if not len(runtime) or not len(rows):
        return found
    by_id = runtime[np.argsort(trace.correlation[runtime], kind="stable")]
    ids = trace.correlation[by_id]
    place = np.minimum(np.searchsorted(ids, trace.correlation[rows]), len(ids) - 1)
    call = by_id[place]
    linked = (ids[place] == trace.correlation[rows]) & (trace.correlation[rows] > 0)
    with_args = np.flatnonzero((trace.collective != NO_ID) & (trace.category == Category.OPERATOR))
    notes = rows_named(trace, lambda n: n.startswith("nccl:"), Category.ANNOTATION, Category.OPERATOR)
    # Metadata beats shapes; both come from events that do not overlap on a thread once nested ones are left out.
    for candidates in (notes, with_args):
        hit = enclosing(trace, outermost(trace, candidates), trace.thread[call], trace.start_ns[call])
        better = linked & (hit >= 0)
        found[better] = hit[better]
    return found


def _input_bytes(trace: RankTrace, row: int) -> int:
    index = int(trace.signature[row])
    if index == NO_ID:
        return 0
    signature = trace.signatures[index]
    return sum(
        sum(prod(s) for s in shapes) * naming.element_bytes(kind)
        for kind, shapes in zip(signature.types, signature.shapes, strict=True)
    )


def _tensor_type(trace: RankTrace, row: int) -> str:
    index = int(trace.signature[row])
    return _first_type(trace.signatures[index]) if index != NO_ID else ""


def _first_type(signature: Signature | None) -> str:
    """Element type of the first tensor whose type is told, "" if none is."""
    kinds = signature.types if signature is not None else ()
    return next((naming.dtype_name(k) for k in kinds if naming.element_bytes(k)), "")


# ---------------------------------------------------------------- gloo and MPI


@dataclass(slots=True)
class _Launch:
    """An operator that put work into the backend's queue.

    Attributes:
        kind, operator: what was asked for.
        start_ns: when.
        signature: inputs, None if not recorded.
        elements: element counts of its tensors, any of which an event may show; empty if unknown.
        left: events it can still account for.
    """

    kind: str
    operator: str
    functional: bool
    start_ns: int
    signature: Signature | None
    elements: frozenset[int] = field(default_factory=frozenset)
    left: int = 1


def _of_host_events(trace: RankTrace, activity: Activity, rank: int) -> list[Instance]:
    waiting = deque(_launches(trace))
    open_launches: list[_Launch] = []
    found: list[Instance] = []
    for row in activity.collective_rows.tolist():
        start, length = int(trace.start_ns[row]), int(trace.duration_ns[row])
        while waiting and waiting[0].start_ns <= start:
            open_launches.append(waiting.popleft())
        event_kind = naming.kind_of(trace.names[trace.name[row]].partition(":")[2])
        elements, width = _event_size(trace, row)
        launch = next((c for c in open_launches if _fits(c, event_kind, elements)), None)
        if launch is None:
            # Launched before the window began, or by an operator we do not know.
            group, size, members = _group(trace, rank, "", 0, ())
            factor = max(size, 1) if event_kind == "all_gather" else 1
            found.append(
                Instance(
                    kind=event_kind,
                    group=group,
                    group_size=size,
                    members=members,
                    message_bytes=elements * width * factor,
                    start_ns=start,
                    end_ns=start + length,
                    order_ns=start,
                    thread=int(trace.thread[row]),
                    dtype=_tensor_type(trace, row),
                )
            )
            continue
        launch.left -= 1
        if not launch.left:
            open_launches.remove(launch)
        group, size, members = _group(trace, rank, *_named_group(launch), ())
        found.append(
            Instance(
                kind=launch.kind,
                group=group,
                group_size=size,
                members=members,
                message_bytes=_message_bytes(launch, size, elements * width),
                start_ns=start,
                end_ns=start + length,
                order_ns=launch.start_ns,
                thread=int(trace.thread[row]),
                dtype=_tensor_type(trace, row) or _first_type(launch.signature),
            )
        )
    return found


def _launches(trace: RankTrace) -> list[_Launch]:
    def starts_collective(name: str) -> bool:
        match = naming.LAUNCH.fullmatch(name)
        return bool(match) and not naming.WAIT.search(name) and naming.kind_of(name) != naming.UNKNOWN_KIND

    rows = outermost(trace, rows_named(trace, starts_collective, Category.OPERATOR))
    launches = []
    for row in rows.tolist():
        match = naming.LAUNCH.fullmatch(trace.names[trace.name[row]])
        if match is None:
            continue
        index = int(trace.signature[row])
        signature = trace.signatures[index] if index != NO_ID else None
        tensors = [shape for shapes in signature.shapes for shape in shapes] if signature else []
        pieces = len(signature.shapes[0]) if signature and signature.shapes and "coalesced" in match.group(2) else 1
        launches.append(
            _Launch(
                kind=naming.kind_of(match.group(2)),
                operator=match.group(2),
                functional="functional" in match.group(1),
                start_ns=int(trace.start_ns[row]),
                signature=signature,
                elements=frozenset(prod(shape) for shape in tensors),
                left=max(pieces, 1),
            )
        )
    return launches


def _fits(launch: _Launch, event_kind: str, elements: int) -> bool:
    # Gloo has no reduce-scatter of its own: torch all-reduces and keeps a part.
    same_kind = launch.kind == event_kind or (launch.kind == "reduce_scatter" and event_kind == "all_reduce")
    return same_kind and (not elements or not launch.elements or elements in launch.elements)


def _event_size(trace: RankTrace, row: int) -> tuple[int, int]:
    """(elements, bytes per element) of an event's tensors, (0, 0) if not recorded."""
    index = int(trace.signature[row])
    if index == NO_ID:
        return 0, 0
    signature = trace.signatures[index]
    elements = sum(prod(shape) for shapes in signature.shapes for shape in shapes)
    return elements, next((naming.element_bytes(t) for t in signature.types if naming.element_bytes(t)), 0)


def _named_group(launch: _Launch) -> tuple[str, int]:
    """(group name, group size) as far as the operator's recorded arguments tell."""
    signature = launch.signature
    if signature is None:
        return "", 0
    if launch.functional:
        name = _argument(signature.values, _GROUP_ARGUMENT.get(launch.operator))
        size = _argument(signature.values, _SIZE_ARGUMENT.get(launch.operator))
        return name.strip("'\""), int(size) if size.isdecimal() and len(size) < 10 else 0
    if launch.operator in ("_allgather_base_", "_reduce_scatter_base_") and len(signature.shapes) > 1:
        # (output, input): one is the group's size times the other.
        sizes = sorted(sum(prod(shape) for shape in shapes) for shapes in signature.shapes[:2])
        if sizes[0] and sizes[1] % sizes[0] == 0:
            return "", sizes[1] // sizes[0]
    return "", 0


def _argument(values: tuple[str, ...], place: int | None) -> str:
    return values[place] if place is not None and place < len(values) else ""


def _message_bytes(launch: _Launch, group_size: int, event_bytes: int) -> int:
    """The larger of a rank's total input and total output."""
    signature = launch.signature
    tensors = [] if signature is None else [(t, s) for t, s in zip(signature.types, signature.shapes, strict=True) if s]
    sizes = [sum(prod(shape) for shape in shapes) * naming.element_bytes(kind) for kind, shapes in tensors]
    if len(tensors) and all(len(shapes) == 1 for _, shapes in tensors) and all(sizes):
        gathers = launch.functional and launch.kind == "all_gather"
        return max(sizes[0] * max(group_size, 1), *sizes) if gathers else max(sizes)
    # A list of tensors has no element type in the trace, and makes several events: take the event's own input.
    return event_bytes * max(group_size, 1) if launch.kind == "all_gather" else event_bytes
