"""A plan: scheduler knobs and the timing table they are used with. Standard library only.

Same knobs and same table give the same plan id on every rank and every machine. "As it was"
(`BASELINE`) is a plan too: the job's own settings, untouched.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from typing import Any

from loopopt.errors import WireError
from loopopt.graphs import Schedule
from loopopt.timing import TimingTable, canonical_json


@dataclass(frozen=True, slots=True)
class Knobs:
    """Settings of Inductor's overlap scheduler; None leaves the scheduler's own default.

    Names follow `torch._inductor.config.aten_distributed_optimizations`.
    """

    scheduling: bool = False
    """Run the overlap scheduler at all. False is "as it was"."""
    collective_bucketing: bool | None = None
    pre_bucketing: bool | None = None
    """`pre_bucketing_fsdp_collectives`."""
    bucket_mode: str | None = None
    bucket_cap_mb: float | None = None
    """`pre_bucketing_fsdp_collectives_bucket_cap_mb`."""
    max_compute_pre_fetch: int | None = None
    max_in_flight_gb: float | None = None
    max_coll_distance: int | None = None
    compute_overlap_multipler: float | None = None
    max_memory_increase_gb: float | None = None
    max_memory_increase_ratio: float | None = None
    bucket_exposed_first: bool | None = None
    enable_fusion_regions: bool | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Knobs plus table.

    Attributes:
        label: short human name ("as it was", "schedule + bucket").
        knobs: scheduler settings.
        table: measured durations; None schedules with torch's own estimates.
        schedules: our own, one for each graph they name: they take the scheduler's place there.
    """

    label: str
    knobs: Knobs
    table: TimingTable | None = field(default=None)
    schedules: tuple[Schedule, ...] = ()

    @property
    def plan_id(self) -> str:
        """12 hex digits over knobs and table digest ("as-it-was" for the baseline); the label does not count."""
        if not self.knobs.scheduling:
            return "as-it-was"
        content: dict[str, Any] = {"knobs": asdict(self.knobs), "table": self.table.digest if self.table else None}
        if self.schedules:
            content["schedules"] = [s.to_json() for s in self.schedules]
        return hashlib.sha256(canonical_json(content)).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        content: dict[str, Any] = {
            "label": self.label,
            "knobs": asdict(self.knobs),
            "table": self.table.to_json() if self.table else None,
        }
        if self.schedules:
            content["schedules"] = [s.to_json() for s in self.schedules]
        return content

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Inverse of `to_json`.

        Raises:
            WireError: the value does not have the plan's form.
        """
        try:
            table = data["table"]
            return cls(
                label=str(data["label"]),
                knobs=Knobs(**data["knobs"]),
                table=TimingTable.from_json(table) if table is not None else None,
                schedules=tuple(Schedule.from_json(s) for s in data.get("schedules", ())),
            )
        except (KeyError, TypeError, AttributeError) as err:
            raise WireError(f"plan: not of the expected form ({err!r})") from err


BASELINE = Plan("as it was", Knobs(scheduling=False))
"""Do nothing: the schedule the job had without loopopt."""
