"""The store as the daemon uses it: a full or read-only disk is noted once and the loop goes on in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from loopopt.control import Trial, spread
from loopopt.errors import StoreError
from loopopt.export import STEP_BUCKETS_US, CounterValue, HistogramValue
from loopopt.store import Store, TrialRow, Verdict, WindowRow


class Memory:
    """Writes to the store; after a failure, to memory only.

    Args:
        path: the SQLite file.
        note: called with what a person should know.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self._note = note
        self._store: Store | None = None
        self._said = ""
        self.trials: dict[str, TrialRow] = {}
        self._base: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        try:
            self._store = Store.open(path)
            for text in self._store.notes:
                note(text)
        except StoreError as err:
            note(f"nothing is kept on disk: {err}")

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    def _try(self, write: Callable[[Store], object]) -> None:
        if self._store is None:
            return
        try:
            write(self._store)
        except StoreError as err:
            if str(err) != self._said:
                self._said = str(err)
                self._note(f"not kept on disk: {err}")

    def load(self) -> dict[str, Any] | None:
        """The loop's state."""
        try:
            return self._store.get_state("loop") if self._store is not None else None
        except StoreError as err:
            self._note(f"the former state cannot be read: {err}")
            return None

    def save(self, state: dict[str, Any]) -> None:
        """Keep the loop's state."""
        self._try(lambda store: store.set_state("loop", state))

    def fingerprint(self, found: dict[str, str]) -> None:
        """Keep what the job's durations belong to: a table rebuilt from its traces needs it."""
        self._try(lambda store: store.set_state("fingerprint", found))

    def window(self, row: WindowRow) -> None:
        """Keep a measured window."""
        self._try(lambda store: store.add_window(row))
        self._try(
            lambda store: store.set_state("windows", {**(store.get_state("windows") or {}), row.plan_id: row.window_id})
        )

    def windows(self, n: int, of_plans: Iterable[str] = ()) -> list[dict[str, Any]]:
        """The latest windows, oldest first; and before them the last one of each of these plans, however old."""
        if self._store is None:
            return []
        try:
            rows = list(self._store.latest_windows(n))
            last = self._store.get_state("windows") or {}
            for plan_id in {p for p in of_plans if p in last} - {r.plan_id for r in rows}:
                older = self._store.window(last[plan_id])
                rows += [older] if older is not None else []
        except StoreError:
            return []
        return [
            {
                "window_id": r.window_id,
                "plan_id": r.plan_id,
                "first_step": r.first_step,
                "steps": r.steps,
                "created_s": r.created_s,
                "measurement": r.measurement_json,
            }
            for r in reversed(rows)
        ]

    def table(self, digest: str, content: dict[str, Any], now_s: float) -> None:
        """Keep a timing table."""
        self._try(lambda store: store.put_table(digest, content, now_s))

    def latest_table(self) -> tuple[str, dict[str, Any]] | None:
        """The newest timing table."""
        try:
            return self._store.latest_table() if self._store is not None else None
        except StoreError:
            return None

    def steps(self, rank: int, first: int, plan_id: str, kind: str, durations_us: list[float], attempt: int) -> None:
        """Keep step times; plain ones of rank 0 go into the histogram."""
        self._try(lambda store: store.add_steps(rank, first, plan_id, kind, durations_us, attempt))
        if rank == 0 and kind == "plain":
            self._try(lambda store: store.observe("step_us", durations_us, STEP_BUCKETS_US))

    def count(self, name: str, by: float = 1.0, labels: dict[str, str] | None = None) -> None:
        """Raise a counter."""
        if self._store is None:
            key = (name, tuple(sorted((labels or {}).items())))
            self._base[key] = self._base.get(key, 0.0) + by
        self._try(lambda store: store.increment(name, labels, by))

    def counters(self) -> tuple[CounterValue, ...]:
        """All counters."""
        if self._store is None:
            return tuple(CounterValue(name, value, dict(labels)) for (name, labels), value in self._base.items())
        try:
            return tuple(CounterValue(r.name, r.value, r.labels) for r in self._store.counters())
        except StoreError:
            return ()

    def histograms(self) -> tuple[HistogramValue, ...]:
        """All histograms."""
        if self._store is None:
            return ()
        try:
            rows = self._store.histograms()
        except StoreError:
            return ()
        return tuple(HistogramValue(r.name, r.bounds, r.counts, r.total) for r in rows)

    def predicted_step_us(self, plan_id: str) -> float | None:
        """What the latest trial of a plan was expected to take per step; None if it was not traced."""
        rows = [row for row in tuple(self.trials.values()) if row.plan_id == plan_id]
        return rows[-1].predicted_step_us if rows else None

    def _predicted(self, trial: Trial) -> float | None:
        """The baseline's step time, less the communication that is exposed no longer."""
        first = f"{trial.trial_id.partition('.')[0]}.0"
        if trial.exposed_us is None or trial.trial_id == first:
            return _median(trial.samples) if trial.exposed_us is not None else None
        baseline = self.trials.get(first)
        if baseline is None or baseline.median_step_us is None or baseline.exposed_us is None:
            return None
        return baseline.median_step_us - baseline.exposed_us + trial.exposed_us

    def trial(self, trial: Trial) -> None:
        """Keep a trial, new or changed."""
        samples = trial.samples
        verdict = cast(Verdict, trial.verdict)
        row = TrialRow(
            trial_id=trial.trial_id,
            plan_id=trial.plan.plan_id,
            label=trial.plan.label,
            knobs=asdict(trial.plan.knobs),
            table_digest=trial.plan.table.digest if trial.plan.table else None,
            started_s=trial.started_s,
            ended_s=trial.ended_s,
            verdict=verdict,
            reason=trial.reason,
            median_step_us=_median(samples),
            spread_us=spread(samples) if samples else None,
            samples=len(samples),
            gain=trial.gain.value if trial.gain else None,
            gain_low=trial.gain.low if trial.gain else None,
            gain_high=trial.gain.high if trial.gain else None,
            predicted_step_us=self._predicted(trial),
            compile_us=trial.compile_us,
            exposed_us=trial.exposed_us,
            communication_us=trial.communication_us,
        )
        known = trial.trial_id in self.trials
        self.trials[trial.trial_id] = row
        self._try(lambda store: store.update_trial(row) if known else store.add_trial(row))

    def load_trials(self) -> None:
        """Trials of earlier daemons of this job; one that was cut off by a daemon's end is given up."""
        try:
            for row in self._store.trials() if self._store is not None else ():
                self.trials[row.trial_id] = row
        except StoreError as err:
            self._note(f"the history of trials cannot be read: {err}")
        for row in [r for r in self.trials.values() if r.verdict == "running"]:
            ended = replace(row, verdict="unused", reason="given up: the daemon ended before it was decided")
            self.trials[row.trial_id] = ended
            self._try(lambda store, ended=ended: store.update_trial(ended))  # type: ignore[misc]

    def prune(self, max_bytes: int, max_windows: int) -> None:
        """Keep the file small."""
        self._try(lambda store: store.prune(max_bytes, max_windows))


def _median(samples: list[float]) -> float | None:
    import statistics

    return statistics.median(samples) if samples else None
