"""What a scrape shows for what the job did."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from exported_job import JOB, fleet
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from loopopt.export import STEP_BUCKETS_US, CounterValue, HistogramValue, Snapshot
from loopopt.export.catalogue import CATALOGUE, COLLECTIVES, MAX_GROUPS, MAX_RANKS
from loopopt.export.collector import SnapshotCollector

GOLDEN = Path(__file__).with_name("metrics.golden.txt")
EMPTY = Snapshot(version="0.1.0")


def registry_of(snapshot: Snapshot) -> CollectorRegistry:
    """A fresh registry that exports one snapshot."""
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: snapshot))
    return registry


def test_the_page_is_as_published() -> None:
    """The whole page of a known job, to the byte."""
    assert generate_latest(registry_of(JOB)).decode() == GOLDEN.read_text()


def test_microseconds_become_seconds() -> None:
    """Times are divided by a million, everything else is left as it is."""
    registry = registry_of(JOB)
    by = {"collective": "all_gather", "group": "0"}
    expected = {
        ("loopopt_sampled_seconds_total", ()): 12.5,
        ("loopopt_sampled_steps_total", ()): 32.0,
        ("loopopt_exposed_communication_seconds_total", tuple(by.items())): 1.5,
        ("loopopt_baseline_step_seconds", ()): 0.392,
        ("loopopt_predicted_step_seconds", ()): 0.3105,
        ("loopopt_agent_seconds_total", ()): 0.0012,
        ("loopopt_trace_bytes_total", ()): 123456.0,
        ("loopopt_trace_last_success_timestamp_seconds", ()): 1_760_000_000.5,
        ("loopopt_step_duration_seconds_sum", ()): 702.0,
        ("loopopt_registered_ranks", (("state", "lost"),)): 1.0,
    }
    actual = {key: registry.get_sample_value(key[0], dict(key[1])) for key in expected}
    assert actual == expected


def test_every_metric_is_exported_from_the_start() -> None:
    """Before anything happened every family is on the page and every countable series is 0."""
    families = {family.name: family for family in registry_of(EMPTY).collect()}
    assert set(families) == {metric.name.removesuffix("_total") for metric in CATALOGUE}
    for metric in CATALOGUE:
        samples = families[metric.name.removesuffix("_total")].samples
        if metric.kind != "gauge" and (not metric.labels or metric.known):
            assert samples
            assert {sample.value for sample in samples} == {0.0}


@pytest.mark.parametrize(
    "name",
    [
        "loopopt_baseline_step_seconds",
        "loopopt_current_step_seconds",
        "loopopt_predicted_step_seconds",
        "loopopt_trace_last_success_timestamp_seconds",
    ],
)
def test_unknown_is_not_zero(name: str) -> None:
    """A gauge that was never measured has no sample."""
    assert registry_of(EMPTY).get_sample_value(name) is None
    assert registry_of(JOB).get_sample_value(name) is not None


def test_histogram_buckets_are_cumulative() -> None:
    """Buckets count all observations up to their bound, from 1 ms to 10 min, and the last one counts all."""
    registry = registry_of(JOB)

    def bucket(le: str) -> float | None:
        return registry.get_sample_value("loopopt_step_duration_seconds_bucket", {"le": le})

    assert [bucket(le) for le in ("0.001", "0.2", "0.3", "0.5", "600.0", "+Inf")] == [0, 0, 5, 8, 8, 9]
    assert registry.get_sample_value("loopopt_step_duration_seconds_count") == 9
    assert list(STEP_BUCKETS_US) == sorted(set(STEP_BUCKETS_US))
    assert (STEP_BUCKETS_US[0], STEP_BUCKETS_US[-1]) == (1e3, 600e6)


def test_buckets_of_another_release_are_left_out() -> None:
    """Counts that were kept with other bounds are never shown under these."""
    old = replace(JOB, histograms=(HistogramValue("step_us", (1.0, 2.0), (4, 5, 6), 70.0),))
    assert registry_of(old).get_sample_value("loopopt_step_duration_seconds_count") == 0


def test_unknown_label_values_are_other() -> None:
    """Collectives and reasons outside the fixed sets add up under "other"; a group the trace lacks is "unknown"."""
    counters = (
        CounterValue("communication_us", 1e6, {"collective": "x", "group": "g"}),
        CounterValue("communication_us", 2e6, {"collective": "y", "group": "g"}),
        CounterValue("communication_us", 4e6, {"collective": "all_reduce"}),
        CounterValue("trace_failures", 1.0, {"reason": "x"}),
        CounterValue("trace_failures", 1.0, {}),
    )
    registry = registry_of(replace(EMPTY, counters=counters))
    name = "loopopt_communication_seconds_total"
    assert registry.get_sample_value(name, {"collective": "other", "group": "g"}) == 3.0
    assert registry.get_sample_value(name, {"collective": "all_reduce", "group": "unknown"}) == 4.0
    assert registry.get_sample_value("loopopt_trace_failures_total", {"reason": "other"}) == 2.0


def _groups(count: int) -> tuple[CounterValue, ...]:
    return tuple(
        CounterValue("exposed_us", 1e6, {"collective": "all_reduce", "group": f"g{count - i:04}"}) for i in range(count)
    )


def test_groups_are_bounded_and_none_is_lost() -> None:
    """Beyond the bound groups add up under "other", and the sum over labels stays right."""
    (family,) = (
        f
        for f in registry_of(replace(EMPTY, counters=_groups(MAX_GROUPS + 36))).collect()
        if f.name == "loopopt_exposed_communication_seconds"
    )
    assert len(family.samples) == MAX_GROUPS + 1
    assert sum(sample.value for sample in family.samples) == MAX_GROUPS + 36
    assert {s.labels["group"]: s.value for s in family.samples}["other"] == 36


def test_a_series_never_moves_to_other() -> None:
    """Groups that come later take nothing from those before, in this process and in one started anew."""
    everything = _groups(MAX_GROUPS + 36)
    current = replace(EMPTY, counters=everything[:MAX_GROUPS])
    registry = CollectorRegistry()
    registry.register(SnapshotCollector(lambda: current))
    first = everything[0].labels
    name = "loopopt_exposed_communication_seconds_total"
    assert registry.get_sample_value(name, dict(first)) == 1.0
    current = replace(EMPTY, counters=everything)
    assert registry.get_sample_value(name, dict(first)) == 1.0
    assert registry_of(current).get_sample_value(name, dict(first)) == 1.0


@given(
    texts=st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=80), min_size=4, max_size=4),
    value=st.floats(min_value=0, max_value=1e18),
)
def test_any_text_makes_a_page_that_parses(texts: list[str], value: float) -> None:
    """Whatever a job calls its plans and groups, the page stays well formed, and says what was put in."""
    plan, label, kind, group = texts
    snapshot = replace(
        EMPTY,
        plan_id=plan,
        plan_label=label,
        counters=(CounterValue("exposed_us", value, {"collective": kind, "group": group}),),
    )
    page = generate_openmetrics(registry_of(snapshot)).decode()
    families = {family.name: family for family in text_string_to_metric_families(page)}
    (exposed,) = families["loopopt_exposed_communication_seconds"].samples
    assert exposed.value == value / 1e6
    if plan:
        (shown,) = families["loopopt_plan_info"].samples
        assert shown.labels == {"plan": plan, "label": label}


def test_promtool_finds_nothing_to_blame() -> None:
    """Prometheus' own linter accepts the page."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH (it comes with Prometheus)")
    done = subprocess.run([promtool, "check", "metrics"], input=GOLDEN.read_bytes(), capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_512_ranks_and_64_groups_stay_within_bounds() -> None:
    """However many ranks and groups come, there are at most so many series, and none of their time is lost."""
    snapshot = fleet(ranks=700, groups=100)
    samples = [sample for family in registry_of(snapshot).collect() for sample in family.samples]
    labelled = [sample for sample in samples if "group" in sample.labels]
    by_rank = [sample for sample in samples if "rank" in sample.labels]
    assert len({sample.labels["group"] for sample in labelled}) == MAX_GROUPS + 1
    assert len({sample.labels["rank"] for sample in by_rank}) == MAX_RANKS + 1
    assert len(labelled) <= 2 * (MAX_GROUPS + 1) * (len(COLLECTIVES) + 1)
    assert len(by_rank) == 3 * (MAX_RANKS + 1)
    assert sum(s.value for s in by_rank if s.name == "loopopt_rank_skew_seconds_total") == pytest.approx(700)


def test_a_scrape_costs_what_its_series_cost() -> None:
    """Ten times the ranks and groups are not more than a generous thirty times the work."""
    small, large = (registry_of(fleet(ranks, groups)) for ranks, groups in ((51, 6), (512, 64)))

    def cost(registry: CollectorRegistry) -> float:
        begin = time.process_time()
        for _ in range(3):
            generate_latest(registry)
        return time.process_time() - begin

    assert min(cost(large) for _ in range(3)) < 30 * min(cost(small) for _ in range(3))
