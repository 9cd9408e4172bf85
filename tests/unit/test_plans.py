"""Plans and their ids."""

from __future__ import annotations

import dataclasses
import json

import pytest

from loopopt.errors import WireError
from loopopt.graphs import Schedule
from loopopt.plans import BASELINE, Knobs, Plan
from loopopt.timing import Duration, TimingTable

TABLE = TimingTable((), {"aten::mm|[[2,2]]|float32": Duration(3, 5.0, 0.5)})


def test_the_plan_id_is_the_same_on_every_machine() -> None:
    """A frozen id: should it change, running jobs and stored states no longer know their plans."""
    assert Plan("any label", Knobs(scheduling=True, collective_bucketing=True)).plan_id == "0e9646615241"


def test_the_label_does_not_count_but_every_knob_and_the_table_do() -> None:
    """Same settings and same numbers, same plan."""
    plain = Plan("a", Knobs(scheduling=True))
    assert Plan("b", Knobs(scheduling=True)).plan_id == plain.plan_id
    assert Plan("a", Knobs(scheduling=True), TABLE).plan_id != plain.plan_id
    ids = {plain.plan_id}
    changed = [f.name for f in dataclasses.fields(Knobs) if f.name != "scheduling"]
    for name in changed:
        value = "custom_ops" if name == "bucket_mode" else 1
        ids.add(Plan("a", dataclasses.replace(plain.knobs, **{name: value})).plan_id)
    assert len(ids) == len(changed) + 1


def test_doing_nothing_is_one_plan_whatever_else_is_set() -> None:
    """Without scheduling the other knobs have no effect."""
    assert BASELINE.plan_id == "as-it-was"
    assert Plan("x", Knobs(scheduling=False, bucket_cap_mb=3.0), TABLE).plan_id == "as-it-was"


@pytest.mark.parametrize("plan", [BASELINE, Plan("with table", Knobs(scheduling=True, max_coll_distance=5), TABLE)])
def test_a_plan_survives_its_json(plan: Plan) -> None:
    """It travels to rank 0 over the socket and to the others through the job's store."""
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert again.plan_id == plan.plan_id


@pytest.mark.parametrize(
    "broken", [{}, {"label": "x", "knobs": {"no_such_knob": 1}, "table": None}, {"label": "x", "knobs": 3, "table": {}}]
)
def test_a_malformed_plan_is_refused(broken: dict[str, object]) -> None:
    """An agent of another release must not guess what a knob means."""
    with pytest.raises(WireError, match="plan"):
        Plan.from_json(broken)


def test_schedules_are_part_of_a_plan() -> None:
    plan = Plan("own", Knobs(scheduling=True), None, (Schedule("s1", (0, 2, 1), ((0, 2),)),))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.plan_id != Plan("own", Knobs(scheduling=True), None).plan_id
    assert "schedules" not in Plan("own", Knobs(scheduling=True), None).to_json()
