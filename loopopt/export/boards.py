"""The dashboards: all jobs at a glance, one job in depth, and whether the loop itself is well."""

from __future__ import annotations

from typing import Final

from loopopt.export.panels import Board, Mark, Panel, Variable
from loopopt.export.queries import Queries

_EXPOSED: Final = "loopopt_exposed_communication_seconds_total"
_BUILD: Final = "loopopt_build_info"
_RANK: Final = 'rank=~"$rank"'
_WINDOW: Final = Variable("window", "Traced over", "10m,30m,1h,6h", chosen="30m")
_OF_JOB: Final = Queries(selector='instance=~"$instance"', window="$window")
_ONE_JOB: Final = (
    Variable("job", "Training job", f"label_values({_BUILD}, training_job)"),
    Variable("instance", "Node", f'label_values({_BUILD}{{training_job=~"$job"}}, instance)', several=True),
)


def boards() -> tuple[Board, ...]:
    """All dashboards."""
    return (_fleet(), _job(), _loop())


def _fleet() -> Board:
    q = Queries(window="$window")
    ranks = q.metric("loopopt_registered_ranks", 'state=~"live|observe"')
    not_there = q.metric("loopopt_registered_ranks", 'state=~"lost|disarmed"')
    all_ranks = q.of_training_job(f"sum without (state) ({ranks})")
    lost = f"{q.job_share(_EXPOSED)} * {all_ranks}"
    return Board(
        "fleet",
        "loopopt-fleet",
        "loopopt: all jobs",
        "How much time all training jobs lose to exposed communication, and where.",
        (
            Panel(
                "Jobs",
                "Training jobs that a daemon serves now.",
                ((f'count(group by (training_job) ({_BUILD}{{training_job=~"$job"}}))', "jobs"),),
                "none",
                "stat",
                6,
            ),
            Panel("Ranks", "Ranks of these jobs that train.", ((f"sum({all_ranks})", "ranks"),), "none", "stat", 6),
            Panel(
                "Ranks lost to waiting",
                "So many ranks' worth of time goes into communication that nothing hides: the sum over jobs of the "
                "exposed share times ranks. Lower is better.",
                ((f"sum({lost})", "ranks"),),
                "none",
                "stat",
                6,
            ),
            Panel(
                "Exposed communication",
                "Share of all ranks' time in which they communicate and do not compute. Lower is better.",
                ((f"sum({lost}) / sum({all_ranks})", "all jobs"),),
                "percentunit",
                "stat",
                6,
            ),
            Panel(
                "Exposed communication by job",
                "Share of step time in which ranks communicate and do not compute. The highest line with the most "
                "ranks is where to look first.",
                ((q.job_share(_EXPOSED), "{{training_job}}"),),
                "percentunit",
            ),
            Panel(
                "Ranks lost to waiting by job",
                "The exposed share times the job's ranks: what the job's exposed communication costs the cluster.",
                ((lost, "{{training_job}}"),),
                "none",
                stacked=True,
            ),
            Panel(
                "Step time saved by job",
                "Against the job as it was without loopopt. Below 0 for long: see the runbook.",
                ((q.of_training_job(q.realised_gain(), how="max"), "{{training_job}}"),),
                "percentunit",
            ),
            Panel(
                "Ranks not there by job",
                "Ranks that are lost, or whose agent has disarmed itself. 0 is good.",
                ((q.of_training_job(not_there, "state"), "{{training_job}} {{state}}"),),
                "none",
            ),
            Panel(
                "Nodes",
                "Every daemon, the job it serves, and its software.",
                ((f'{_BUILD}{{training_job=~"$job"}}', ""),),
                "none",
                "table",
                24,
            ),
        ),
        (Variable("job", "Training job", f"label_values({_BUILD}, training_job)", several=True), _WINDOW),
    )


def _job() -> Board:
    q = _OF_JOB
    return Board(
        "job",
        "loopopt-job",
        "loopopt: one job",
        "Where one job's step time goes, what the loop changed, and what came of it.",
        (
            Panel(
                "Plan",
                "The schedule the job runs now.",
                ((q.metric("loopopt_plan_info"), "{{label}} ({{plan}})"),),
                "none",
                "stat",
                6,
                text="name",
            ),
            Panel(
                "Step time saved",
                "Against the job as it was without loopopt, by the medians last measured.",
                ((q.realised_gain(), "{{instance}}"),),
                "percentunit",
                "stat",
                6,
            ),
            Panel(
                "Exposed communication",
                "Share of step time in which ranks communicate and do not compute. Lower is better.",
                ((q.share_of_sampled(_EXPOSED), "{{instance}}"),),
                "percentunit",
                "stat",
                6,
            ),
            Panel(
                "Ranks",
                "Ranks registered with each node's daemon, by state.",
                ((q.metric("loopopt_registered_ranks"), "{{state}}"),),
                "none",
                "stat",
                6,
                text="value_and_name",
            ),
            Panel(
                "Exposed communication over time",
                "Share of step time in which ranks communicate and do not compute. It should fall at a mark that "
                "says recompiled, and stay down.",
                ((q.share_of_sampled(_EXPOSED), "{{instance}}"),),
                "percentunit",
            ),
            Panel(
                "Step time",
                "Measured medians, what traces let expect, and the median of all steps of the last 5 minutes. Marks: "
                "recompiled (blue), plan taken back (orange), recompilation failed (red).",
                (
                    (q.metric("loopopt_current_step_seconds"), "now {{instance}}"),
                    (q.metric("loopopt_baseline_step_seconds"), "as it was {{instance}}"),
                    (q.metric("loopopt_predicted_step_seconds"), "expected {{instance}}"),
                    (q.step_quantile(0.5), "all steps {{instance}}"),
                ),
                "s",
            ),
            Panel(
                "Where the step goes",
                "Shares of traced time. Hidden communication runs behind compute and is part of both.",
                (
                    (q.share_of_sampled("loopopt_compute_seconds_total"), "compute {{instance}}"),
                    (q.share_of_sampled(_EXPOSED), "exposed communication {{instance}}"),
                    (q.hidden_share(), "hidden communication {{instance}}"),
                ),
                "percentunit",
            ),
            Panel(
                "Communication hidden by compute",
                "Share of communication that compute hides. Higher is better.",
                ((q.overlap(), "{{instance}}"),),
                "percentunit",
            ),
            Panel(
                "Exposed communication by collective",
                "Which kind of collective the ranks wait for.",
                ((q.exposed_share_by_collective(), "{{collective}} {{instance}}"),),
                "percentunit",
                stacked=True,
            ),
            Panel(
                "Exposed communication by group",
                "Which process group the ranks wait in: the sharded, the replicated or the tensor-parallel dimension.",
                ((q.exposed_share_by_group(), "{{group}} {{instance}}"),),
                "percentunit",
                stacked=True,
            ),
            Panel(
                "Exposed communication by rank",
                "One line far from the others: that rank's node, link or share of the work differs.",
                ((q.share_of_rank("loopopt_rank_exposed_communication_seconds_total", _RANK), "rank {{rank}}"),),
                "percentunit",
            ),
            Panel(
                "Waiting for slower ranks",
                "Time collectives waited for ranks that arrived later, as a share of traced time. No schedule "
                "removes it.",
                ((q.share_of_sampled("loopopt_skew_seconds_total"), "{{instance}}"),),
                "percentunit",
            ),
            Panel(
                "Waiting for slower ranks, by rank",
                "How much of its time each rank waits for later ones. The late rank has the lowest line.",
                ((q.share_of_rank("loopopt_rank_skew_seconds_total", _RANK), "rank {{rank}}"),),
                "percentunit",
            ),
            Panel(
                "Late ranks",
                "How much less a rank waits than the one that waits most. Near 0: in step. High: the others wait "
                "for this rank.",
                ((q.lateness(_RANK), "rank {{rank}}"),),
                "percentunit",
            ),
            Panel(
                "Expected against realised",
                "Step time saved as traces let expect it, and as measured. Realised far below expected: hiding the "
                "communication slows the compute it hides behind.",
                ((q.expected_gain(), "expected {{instance}}"), (q.realised_gain(), "realised {{instance}}")),
                "percentunit",
            ),
            Panel(
                "What the loop did",
                "Recompilations, those that failed, and plans taken back, since the job began.",
                (
                    (q.metric("loopopt_recompiles_total"), "recompiled {{instance}}"),
                    (q.metric("loopopt_recompile_failures_total"), "failed {{instance}}"),
                    (q.metric("loopopt_rollbacks_total"), "taken back {{instance}}"),
                ),
                "none",
            ),
            Panel(
                "Stalls of recompilations",
                "Time training stood still for recompilations, since the job began.",
                ((q.metric("loopopt_recompile_seconds_total"), "{{instance}}"),),
                "s",
            ),
            Panel(
                "Steps until the stalls have paid",
                "Steps at the present gain that pay for all stalls so far. Infinite: the present plan saves nothing.",
                ((q.payback_steps(), "{{instance}}"),),
                "none",
            ),
            Panel(
                "Time saved",
                "Seconds of training saved in each second, at the present gain.",
                ((q.saved_seconds_per_second(), "{{instance}}"),),
                "percentunit",
            ),
        ),
        (
            *_ONE_JOB,
            Variable(
                "rank",
                "Rank",
                'label_values(loopopt_rank_sampled_seconds_total{instance=~"$instance"}, rank)',
                several=True,
            ),
            _WINDOW,
        ),
        tuple(
            Mark(title, color, f"changes({q.metric(name)}[$__rate_interval]) > 0")
            for title, color, name in (
                ("recompiled", "blue", "loopopt_recompiles_total"),
                ("plan taken back", "orange", "loopopt_rollbacks_total"),
                ("recompilation failed", "red", "loopopt_recompile_failures_total"),
            )
        ),
    )


def _loop() -> Board:
    q = _OF_JOB
    last = q.metric("loopopt_trace_last_success_timestamp_seconds")
    return Board(
        "loop",
        "loopopt-loop",
        "loopopt: health of the loop",
        "Whether loopopt itself is well: what it does, what fails, what it costs.",
        (
            Panel(
                "Now",
                "What the loop is doing.",
                ((f"{q.metric('loopopt_loop_phase')} == 1", "{{phase}}"),),
                "none",
                "stat",
                6,
                text="name",
            ),
            Panel(
                "Since the last measurement",
                "Time since a trace window was last measured.",
                ((f"time() - {last}", "{{instance}}"),),
                "s",
                "stat",
                6,
            ),
            Panel(
                "Cost of the agent",
                "The agent's share of the training threads' time. Below 0.1 % is normal, above 1 % is not.",
                ((q.agent_share(), "{{instance}}"),),
                "percentunit",
                "stat",
                6,
            ),
            Panel(
                "Messages refused",
                "Malformed messages, or messages of other users, on the agents' socket. 0 is good.",
                ((q.metric("loopopt_messages_refused_total"), "{{instance}}"),),
                "none",
                "stat",
                6,
            ),
            Panel(
                "What the loop did over time",
                "1 in the phase the loop was in. Long in capturing, measuring or applying: it is stuck.",
                ((q.metric("loopopt_loop_phase"), "{{phase}} {{instance}}"),),
                "none",
                "state-timeline",
                24,
            ),
            Panel(
                "Ranks by state",
                "Live ranks take part; observed ones are traced and never changed; lost ones are gone; disarmed ones "
                "gave up after an error of loopopt.",
                ((q.metric("loopopt_registered_ranks"), "{{state}} {{instance}}"),),
                "none",
            ),
            Panel(
                "Trace windows",
                "Windows asked for, since the job began.",
                ((q.metric("loopopt_trace_requests_total"), "asked for {{instance}}"),),
                "none",
            ),
            Panel(
                "Trace windows that failed",
                "Windows that gave no measurement, by reason, since the job began.",
                ((q.metric("loopopt_trace_failures_total"), "{{reason}} {{instance}}"),),
                "none",
            ),
            Panel(
                "Traced steps",
                "Whole steps traced in the chosen time, summed over ranks.",
                ((f"increase({q.metric('loopopt_sampled_steps_total')}[$window])", "{{instance}}"),),
                "none",
            ),
            Panel(
                "Trace files read",
                "Bytes of trace files per second. Grows with ranks and with kernels per step.",
                ((q.rate("loopopt_trace_bytes_total"), "{{instance}}"),),
                "Bps",
            ),
            Panel(
                "Recompilations that failed",
                "Some rank could not compile or agree; all ranks then ran the unscheduled graph. Since the job began.",
                ((q.metric("loopopt_recompile_failures_total"), "{{instance}}"),),
                "none",
            ),
            Panel(
                "Cost of the agent over time",
                "The agent's share of the training threads' time.",
                ((q.agent_share(), "{{instance}}"),),
                "percentunit",
            ),
        ),
        (*_ONE_JOB, _WINDOW),
    )
