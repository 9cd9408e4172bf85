"""A training job made of numbers: ranks that step, trace and switch as the loop tells them, on a clock of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from loopopt.config import LoopConfig
from loopopt.control import Action, Loop, Note, Propose, SendApply, SendCapture, SendRelease
from loopopt.measurement import Breakdown, RankMeasurement, WindowMeasurement
from loopopt.plan import propose
from loopopt.plans import BASELINE, Plan
from loopopt.timing import CollectiveCurve, Duration, TimingTable

_CURVE = CollectiveCurve("all_gather", "0", 2, (1000, 2000), (Duration(9, 50.0, 1.0), Duration(9, 90.0, 2.0)))
TABLE = TimingTable((_CURVE,))

LATENCY_STEPS = 2
"""Steps between an order and the boundary at which all ranks carry it out."""


class FakeJob:
    """The job, the planner and the daemon's bookkeeping around a `Loop`.

    Args:
        speeds: step time in microseconds by plan label; "as it was" must be among them.
        infeasible: labels of plans that cannot be compiled.
        exposed_us: exposed communication per step, whatever the plan.
        noise: relative standard deviation of a step.
    """

    def __init__(
        self,
        speeds: dict[str, float],
        *,
        infeasible: frozenset[str] = frozenset(),
        exposed_us: float = 30_000.0,
        noise: float = 0.01,
        config: LoopConfig | None = None,
        ranks: tuple[int, ...] = (0, 1),
    ) -> None:
        self.speeds = speeds
        self.infeasible = infeasible
        self.exposed_us = exposed_us
        self.noise = noise
        self.config = config or LoopConfig()
        self.ranks = ranks
        self.now_s = 1_000_000.0
        self.step = 10
        self.attempt = 0
        self.plan: Plan = BASELINE
        self.saved: dict[str, Any] | None = None
        self.loop = Loop(self.config)
        self.windows_open = 0
        self.most_windows_open = 0
        self.traced_us = 0.0
        self.windows_asked: list[str] = []
        self.applied: list[str] = []
        self.released: list[bool] = []
        self.notes: list[str] = []
        self.phases: list[str] = []
        self._random = random.Random(7)
        self._due: list[tuple[int, Callable[[], None]]] = []

    # ------------------------------------------------------------ what a test does to it

    def register(self, observe: str = "") -> None:
        """All ranks have said hello."""
        self.carry_out(
            self.loop.on_ranks(self.ranks, self.plan.plan_id, observe, self.now_s, f"attempt {self.attempt}")
        )

    def kill_daemon(self) -> None:
        """kill -9: what the loop had in memory is gone, orders under way are carried out by the agents alone."""
        for _, action in self._due:
            action()
        self._due.clear()
        self.loop = Loop(self.config, self.saved)
        self.windows_open = 0
        self.register()

    def restart(self) -> None:
        """The launcher starts all ranks again: the former plan is gone with the processes."""
        self._due.clear()
        self.windows_open = 0
        self.carry_out(self.loop.on_lost("rank 1 is gone", self.now_s))
        self.plan = BASELINE
        self.attempt += 1
        self.step = 10
        self.register()

    def run_until(self, phase: str, limit: int = 2000) -> None:
        """Train until the loop is in this phase."""
        for _ in range(limit):
            if self.loop.phase == phase:
                return
            self.run(1)
        raise AssertionError(f"never came to {phase!r}; it is in {self.loop.phase!r}: {self.notes[-3:]}")

    def run(self, steps: int) -> None:
        """Train."""
        for _ in range(steps):
            base = self.speeds[self.plan.label] * (1 + self._random.gauss(0, self.noise))
            self.now_s += base / 1e6
            if self.windows_open:
                self.traced_us += base
            else:
                for rank in self.ranks:
                    # The slowest rank decides: the others are a little faster.
                    self.loop.on_steps(rank, self.step, [base * (1 - 0.01 * rank)], self.plan.plan_id, self.now_s)
            self.step += 1
            for due in [d for d in self._due if d[0] <= self.step]:
                self._due.remove(due)
                due[1]()
            self.carry_out(self.loop.tick(self.now_s))

    @property
    def verdicts(self) -> dict[str, str]:
        """Label -> verdict of the present round."""
        return {t.plan.label: t.verdict for t in self.loop.trials}

    # ------------------------------------------------------------ what the daemon does

    def carry_out(self, actions: list[Action]) -> None:
        """The actions, as the daemon would carry them out."""
        for action in actions:
            if isinstance(action, Note):
                self.notes.append(action.text)
            elif isinstance(action, SendCapture):
                self._capture(action)
            elif isinstance(action, SendApply):
                plan = action.plan
                self._due.append((self.step + LATENCY_STEPS, lambda plan=plan: self._apply(plan)))  # type: ignore[misc]
            elif isinstance(action, SendRelease):
                self.released.append(action.restore)
            elif isinstance(action, Propose):
                proposal = propose(
                    action.measured.table,
                    step_us=action.step_us,
                    exposed_us=action.exposed_us,
                    min_exposed_share=self.config.min_exposed_share,
                    memory_increase_gb=self.config.memory_increase_gb,
                    max_trials=self.config.max_trials,
                )
                self.carry_out(self.loop.on_proposal(proposal.plans, proposal.reason, self.now_s))
        if actions:
            self.saved = self.loop.state
        if not self.phases or self.phases[-1] != self.loop.phase:
            self.phases.append(self.loop.phase)

    def _capture(self, order: SendCapture) -> None:
        self.windows_asked.append(order.window_id)
        first = self.step + LATENCY_STEPS

        def opened() -> None:
            self.windows_open += 1
            self.most_windows_open = max(self.most_windows_open, self.windows_open)

        def closed() -> None:
            self.windows_open = max(0, self.windows_open - 1)
            self.loop.on_window_cost(0.1 * order.steps * self.speeds[self.plan.label], self.now_s)
            self.carry_out(self.loop.on_measured(order.window_id, self.measurement(order.steps), "", self.now_s))

        self._due += [(first, opened), (first + order.steps, closed)]

    def _apply(self, plan: Plan) -> None:
        self.applied.append(plan.label)
        bad = plan.label in self.infeasible
        self.plan = BASELINE if bad else plan
        outcome, reason = ("infeasible", "rank 1: compile error") if bad else ("applied", "")
        self.step += 1  # the step with the compilation in it
        self.now_s += 3.0
        for rank in self.ranks:
            self.carry_out(self.loop.on_plan_result(rank, plan.plan_id, outcome, reason, 3e6, self.step, self.now_s))

    def measurement(self, steps: int) -> WindowMeasurement:
        """What a window of this job shows."""
        span = self.speeds[self.plan.label]
        one = Breakdown(span, span - self.exposed_us, self.exposed_us * 1.5, self.exposed_us, 0.0, 0.0, 0.0)
        ranks = tuple(RankMeasurement(rank, one, (one,) * steps) for rank in self.ranks)
        return WindowMeasurement(ranks, TABLE, matched=4)
