"""PromQL over the catalogue's names, shared by the recording rules and the dashboard.

Ratios are made here and not exported: a ratio of two counters can be taken over any time, an exported one cannot.
Traces are short and rare, so rates of traced time need long windows; in the first of them a labelled
counter misses the amount it appeared with.
"""

from __future__ import annotations

from dataclasses import dataclass

from loopopt.export.catalogue import BY_NAME


@dataclass(frozen=True, slots=True)
class Queries:
    """Query texts for one selection of jobs.

    Attributes:
        selector: label matchers put on every metric, "" for all.
        window: range of rates over traced time.
    """

    selector: str = ""
    window: str = "30m"

    def metric(self, name: str, matchers: str = "") -> str:
        """A metric of the catalogue with the selector (`KeyError` if the catalogue lacks it)."""
        inside = ",".join(part for part in (self.selector, matchers) if part)
        return f"{BY_NAME[name].name}{{{inside}}}" if inside else BY_NAME[name].name

    def rate(self, name: str, window: str | None = None) -> str:
        """Rate of a counter."""
        return f"rate({self.metric(name)}[{window or self.window}])"

    def share_of_sampled(self, name: str) -> str:
        """A traced time as a share of all traced time, labels of its own summed away."""
        return f"{self._total(name)} / ({self.rate('loopopt_sampled_seconds_total')} > 0)"

    def exposed_share_by_collective(self) -> str:
        """Exposed communication of each kind of collective as a share of traced time."""
        return self._exposed_share(by="collective", over="group")

    def overlap(self) -> str:
        """Share of communication that compute hides."""
        exposed = self._total("loopopt_exposed_communication_seconds_total")
        return f"1 - {exposed} / ({self._total('loopopt_communication_seconds_total')} > 0)"

    def hidden_share(self) -> str:
        """Hidden communication as a share of traced time."""
        communication = self._total("loopopt_communication_seconds_total")
        exposed = self._total("loopopt_exposed_communication_seconds_total")
        return f"({communication} - {exposed}) / ({self.rate('loopopt_sampled_seconds_total')} > 0)"

    def realised_gain(self) -> str:
        """Share of the baseline's step time saved."""
        current = self.metric("loopopt_current_step_seconds")
        return f"1 - {current} / ({self.metric('loopopt_baseline_step_seconds')} > 0)"

    def prediction_error(self) -> str:
        """How far the foretold step time was off, as a share of the measured one."""
        predicted = self.metric("loopopt_predicted_step_seconds")
        return f"{predicted} / ({self.metric('loopopt_current_step_seconds')} > 0) - 1"

    def payback_steps(self) -> str:
        """Steps at the present gain that pay for all recompilations so far; infinite without a gain."""
        return f"{self.metric('loopopt_recompile_seconds_total')} / clamp_min({self._saved_per_step()}, 0)"

    def saved_seconds_per_second(self, window: str = "5m") -> str:
        """Time of training saved per second at the present gain."""
        return f"({self._saved_per_step()}) * rate({self._of_histogram('count')}[{window}])"

    def expected_gain(self) -> str:
        """Share of the baseline's step time that should be saved, by the exposed communication in traces."""
        predicted = self.metric("loopopt_predicted_step_seconds")
        return f"1 - {predicted} / ({self.metric('loopopt_baseline_step_seconds')} > 0)"

    def exposed_share_by_group(self) -> str:
        """Exposed communication of each process group as a share of traced time."""
        return self._exposed_share(by="group", over="collective")

    def share_of_rank(self, name: str, matchers: str = "") -> str:
        """A traced time of each rank as a share of that rank's traced time."""
        mine = f"rate({self.metric(name, matchers)}[{self.window}])"
        sampled = f"rate({self.metric('loopopt_rank_sampled_seconds_total', matchers)}[{self.window}])"
        return f"{mine} / ({sampled} > 0)"

    def lateness(self, matchers: str = "") -> str:
        """How much less each rank waits than the rank that waits most: near 0 in step, high for a late rank."""
        waits = self.share_of_rank("loopopt_rank_skew_seconds_total")
        mine = self.share_of_rank("loopopt_rank_skew_seconds_total", matchers)
        return f"max by (job) ({waits}) - on (job) group_right () ({mine})"

    def of_training_job(self, expr: str, keep: str = "", how: str = "sum") -> str:
        """Values by instance, put together by the training job the instances serve."""
        build = BY_NAME["loopopt_build_info"].name
        chosen = f'{build}{{training_job=~"$job"}}'
        by = f"training_job, {keep}" if keep else "training_job"
        return f"{how} by ({by}) (({expr}) * on (job, instance) group_left (training_job) {chosen})"

    def job_share(self, name: str) -> str:
        """A traced time as a share of all traced time, by training job."""
        mine = self.of_training_job(self._total(name))
        return f"{mine} / ({self.of_training_job(self.rate('loopopt_sampled_seconds_total'))} > 0)"

    def agent_share(self, window: str = "5m") -> str:
        """Share of the training threads' time the agent takes."""
        ranks = self.metric("loopopt_registered_ranks", 'state=~"live|observe"')
        return f"{self.rate('loopopt_agent_seconds_total', window)} / (sum without (state) ({ranks}) > 0)"

    def step_quantile(self, quantile: float, window: str = "5m") -> str:
        """Quantile of the step time over the last while."""
        return f"histogram_quantile({quantile:g}, rate({self._of_histogram('bucket')}[{window}]))"

    def _exposed_share(self, by: str, over: str) -> str:
        exposed = f"sum without ({over}) ({self.rate('loopopt_exposed_communication_seconds_total')})"
        sampled = self.rate("loopopt_sampled_seconds_total")
        return f"{exposed} / ignoring ({by}) group_left () ({sampled} > 0)"

    def _saved_per_step(self) -> str:
        return f"{self.metric('loopopt_baseline_step_seconds')} - {self.metric('loopopt_current_step_seconds')}"

    def _of_histogram(self, part: str) -> str:
        """The series of step times that end in `_bucket` or `_count`."""
        return self.metric("loopopt_step_duration_seconds").replace("_seconds", f"_seconds_{part}", 1)

    def _total(self, name: str) -> str:
        rate = self.rate(name)
        labels = BY_NAME[name].labels
        return f"sum without ({', '.join(labels)}) ({rate})" if labels else rate
