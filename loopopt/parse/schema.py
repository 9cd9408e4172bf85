"""The part of the Kineto JSON that is read, as typed structures; everything else is skipped while decoding.

Scalars whose type changed between PyTorch releases (thread ids were strings once) are unions; only times
must be numbers (or text of one). Shapes stay raw text here and are decoded once per distinct text.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec

Scalar = int | float | str | bool | None
Time = TypeVar("Time")


ABSENT = msgspec.Raw(b"")
"""Stands for a field that the event does not have; compare with `is`."""

NO_ID = -1


class Args(msgspec.Struct, gc=False):
    """`args` of an event. Ids are -1 where absent, so that a column of them is all integers."""

    external: Scalar = msgspec.field(default=NO_ID, name="External id")
    correlation: Scalar = NO_ID
    old_external: Scalar = msgspec.field(default=NO_ID, name="external id")
    values: msgspec.Raw = msgspec.field(default=ABSENT, name="Concrete Inputs")
    types: msgspec.Raw = msgspec.field(default=ABSENT, name="Input type")
    strides: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Strides")
    shapes: msgspec.Raw = msgspec.field(default=ABSENT, name="Input Dims")
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    in_elements: Scalar = msgspec.field(default=None, name="In msg nelems")
    out_elements: Scalar = msgspec.field(default=None, name="Out msg nelems")
    group_size: Scalar = msgspec.field(default=None, name="Group size")
    dtype: Scalar = None
    group: Scalar = msgspec.field(default=None, name="Process Group Name")
    ranks: msgspec.Raw = msgspec.field(default=ABSENT, name="Process Group Ranks")
    seq: Scalar = msgspec.field(default=None, name="Seq")


class Event(msgspec.Struct, Generic[Time], gc=False):
    """One element of `traceEvents`, in the order in which Kineto writes its fields."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Scalar = None
    tid: Scalar = None
    ts: Time | None = None
    dur: Time | None = None
    args: Args | None = None


class Envelope(msgspec.Struct):
    """The top-level object without its events."""

    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")
    distributed: msgspec.Raw = msgspec.field(default=ABSENT, name="distributedInfo")
    base_ns: int | None = msgspec.field(default=None, name="baseTimeNanoseconds")
    host: str | None = msgspec.field(default=None, name="host_name")
    devices: msgspec.Raw = msgspec.field(default=ABSENT, name="deviceProperties")


class Device(msgspec.Struct):
    """One element of `deviceProperties`."""

    name: str = ""


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


FAST = msgspec.json.Decoder(list[Event[int | float | str]])
EXACT = msgspec.json.Decoder(list[Event[Decimal]])
ENVELOPE = msgspec.json.Decoder(Envelope)
RAW_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
RAW: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.Raw)
