"""A job in the middle of its life, for the exporter's tests."""

from __future__ import annotations

from loopopt.export import STEP_BUCKETS_US, CounterValue, HistogramValue, Snapshot

_SEEN = {300_000.0: 5, 500_000.0: 3}
STEP_COUNTS = (*(_SEEN.get(bound, 0) for bound in STEP_BUCKETS_US), 1)

JOB = Snapshot(
    version="0.1.0",
    training_job="demo",
    torch="2.13.0",
    backend="gloo",
    ranks={"live": 2, "lost": 1},
    phase="watching",
    plan_id="0123456789ab",
    plan_label='schedule + "bucket"',
    baseline_step_us=392_000.0,
    current_step_us=327_000.0,
    predicted_step_us=310_500.0,
    trace_last_success_s=1_760_000_000.5,
    counters=(
        CounterValue("sampled_us", 12_500_000.0),
        CounterValue("sampled_steps", 32.0),
        CounterValue("compute_us", 8_000_000.0),
        CounterValue("communication_us", 5_000_000.0, {"collective": "all_gather", "group": "0"}),
        CounterValue("communication_us", 1_000_000.0, {"collective": "reduce_scatter", "group": "0"}),
        CounterValue("communication_us", 250_000.0, {"collective": "my_kernel", "group": ""}),
        CounterValue("exposed_us", 1_500_000.0, {"collective": "all_gather", "group": "0"}),
        CounterValue("exposed_us", 300_000.0, {"collective": "reduce_scatter", "group": "0"}),
        CounterValue("skew_us", 40_000.0),
        CounterValue("rank_sampled_us", 6_250_000.0, {"rank": "0"}),
        CounterValue("rank_sampled_us", 6_250_000.0, {"rank": "1"}),
        CounterValue("rank_exposed_us", 1_000_000.0, {"rank": "0"}),
        CounterValue("rank_exposed_us", 800_000.0, {"rank": "1"}),
        CounterValue("rank_skew_us", 40_000.0, {"rank": "0"}),
        CounterValue("rank_skew_us", 0.0, {"rank": "1"}),
        CounterValue("trace_requests", 5.0),
        CounterValue("trace_failures", 1.0, {"reason": "user_profiler"}),
        CounterValue("trace_failures", 2.0, {"reason": "never heard of"}),
        CounterValue("trace_bytes", 123_456.0),
        CounterValue("recompiles", 3.0),
        CounterValue("recompile_us", 21_000_000.0),
        CounterValue("rollbacks", 1.0),
        CounterValue("agent_us", 1_200.0),
        CounterValue("a counter of another release", 7.0),
    ),
    histograms=(HistogramValue("step_us", STEP_BUCKETS_US, STEP_COUNTS, 702_000_000.0),),
)


def fleet(ranks: int, groups: int) -> Snapshot:
    """One endpoint for so many ranks, each group with four kinds of collectives."""
    kinds = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
    by_group = [{"collective": kind, "group": f"mesh_{g}"} for g in range(groups) for kind in kinds]
    counters = [CounterValue(key, 1e6, labels) for key in ("communication_us", "exposed_us") for labels in by_group]
    by_rank = ("rank_sampled_us", "rank_exposed_us", "rank_skew_us")
    counters += [CounterValue(key, 1e6, {"rank": str(rank)}) for rank in range(ranks) for key in by_rank]
    return Snapshot(version="0.1.0", training_job="fleet", ranks={"live": ranks}, counters=tuple(counters))
