"""The part of the Kineto JSON that is read, as typed structures; everything else is skipped while decoding.

Scalars whose type changed between PyTorch releases (thread ids were strings once) are unions; only times
must be numbers. Shapes stay raw text here and are decoded once per distinct text.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Generic, TypeVar

import msgspec

Scalar = int | float | str | bool | None
Time = TypeVar("Time")


class Args(msgspec.Struct, gc=False):
    """`args` of an event."""

    external: Scalar = msgspec.field(default=None, name="External id")
    old_external: Scalar = msgspec.field(default=None, name="external id")
    correlation: Scalar = None
    shapes: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    in_elements: Scalar = msgspec.field(default=None, name="In msg nelems")
    out_elements: Scalar = msgspec.field(default=None, name="Out msg nelems")
    group_size: Scalar = msgspec.field(default=None, name="Group size")
    dtype: Scalar = None
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    ranks: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    seq: Scalar = msgspec.field(default=None, name="Seq")


class Event(msgspec.Struct, Generic[Time], gc=False):
    """One element of `traceEvents`."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Time | None = None
    dur: Time | None = None
    args: Args | None = None


class File(msgspec.Struct, Generic[Time]):
    """The top-level object."""

    events: list[Event[Time]] = msgspec.field(name="traceEvents")
    distributed: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="distributedInfo")
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    host: str | None = msgspec.field(default=None, name="host_name")


class RawFile(msgspec.Struct):
    """The top-level object with undecoded events, to find where an error is."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")


class GroupConfig(msgspec.Struct):
    """One element of `distributedInfo.pg_config`."""

    name: Scalar = msgspec.field(default=None, name="pg_name")
    description: Scalar = msgspec.field(default=None, name="pg_desc")
    size: Scalar = msgspec.field(default=None, name="pg_size")
    ranks: list[int] | str | None = None


class DistributedInfo(msgspec.Struct):
    """`distributedInfo`."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    pg_config: list[GroupConfig] | str | None = None


FAST_OBJECT = msgspec.json.Decoder(File[int | float])
FAST_ARRAY = msgspec.json.Decoder(list[Event[int | float]])
EXACT_OBJECT = msgspec.json.Decoder(File[Decimal])
EXACT_ARRAY = msgspec.json.Decoder(list[Event[Decimal]])
RAW_OBJECT = msgspec.json.Decoder(RawFile)
RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
