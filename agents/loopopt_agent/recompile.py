"""Switching the job to a plan, and making sure that all ranks end with the same order of collectives.

Every graph with collectives that Inductor compiles while a plan is in force passes `PlanSession.compile`:

1. the graph is copied, then compiled under the plan;
2. the order of collectives is read from the generated code (what comes after the overlap scheduler may still
   move them), and all ranks compare its hash, before any of them runs it;
3. if one differs, failed, ran too long or does not answer, every rank compiles the copy without the plan.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from loopopt.graphs import Graph
from loopopt.plans import Plan
from loopopt_agent import torch_api
from loopopt_agent.agreement import Board
from loopopt_agent.estimator import TableEstimator
from loopopt_agent.faults import Faults
from loopopt_agent.torch_graph import read_graph
from loopopt_agent.torch_rewrite import write_schedule

SCHEDULING_LIMIT_S = 120.0
"""One graph's scheduling pass may take this long; longer is infeasible, not fatal."""
FIRST_LIMIT_S = 600.0
"""How long a rank waits for the others' compile at the agreed step."""
LATE_LIMIT_S = 60.0
"""The same for a graph compiled at some later step (dynamic shapes)."""
HOST_GB_PER_S = 20.0
"""Memory bandwidth for torch's roofline model on CPU: any fixed value, the same on all ranks."""

_OFFSET = re.compile(r"(reinterpret_tensor\(\w+, \([^)]*\), \([^)]*\), )[^)]+\)")
_GROUP = re.compile(r"'([^']*)'")
_BUFFER = re.compile(r"\b(buf|arg|primals_|tangents_)\w*")


class PlanSession:
    """One plan in force on this rank.

    Attributes:
        plan: the plan.
        infeasible: why the plan cannot be used; empty while it can.
        graphs: graphs with collectives compiled under it.
        estimator: counts how often the scheduler asked.
        read: the graphs compiled under it as the planner sees them, by signature (rank 0 only).
        unread: why one could not be read; empty while all could.
        rewritten: graphs that one of the plan's own schedules was written to.
    """

    def __init__(self, plan: Plan, epoch: int, board: Board, faults: Faults) -> None:
        self.plan = plan
        self.epoch = epoch
        self.infeasible = ""
        self.graphs = 0
        self.settled = False
        self.read: dict[str, Graph] = {}
        self.unread = ""
        self.rewritten = 0
        self._schedules = {s.signature: s for s in plan.schedules}
        self.estimator = TableEstimator(plan.table) if plan.table is not None else None
        self._board = board
        self._faults = faults
        self._orders: list[str] = []
        self._shapes: set[str] = set()
        self._asked = 0
        self._settings = torch_api.plan_settings(plan.knobs, self.estimator)

    @property
    def order_digest(self) -> str:
        """Hash over the collective orders of all graphs so far."""
        return hashlib.sha256("\n".join(self._orders).encode()).hexdigest()[:16] if self._orders else ""

    @property
    def why_unused(self) -> str:
        """Empty if the plan has really been used on this rank, else why not."""
        if self.graphs == 0:
            return "no graph with collectives was compiled in the step after the switch"
        if self.plan.schedules:
            return "" if self.rewritten else "none of the graphs compiled is one that the plan has a schedule for"
        if self.estimator is not None and self.estimator.calls == 0:
            return "the scheduler never asked for a measured duration"
        return ""

    def compile(self, original: Any, gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """Compile one graph, under the plan if all ranks agree on the outcome."""
        if self.infeasible or not torch_api.has_collectives(gm):
            return original(gm, example_inputs, *args, **kwargs)
        with torch_api.undoable_compile() as undo:
            return self._compile_or_undo(undo, original, gm, example_inputs, *args, **kwargs)

    def _compile_or_undo(
        self, undo: Callable[[], None], original: Any, gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        untouched = torch_api.copy_graph_module(gm)
        compiled: Any = None
        order: tuple[torch_api.CollectiveCall, ...] = ()
        try:
            self._faults.hit("compile")
            with (
                torch_api.scheduling(HOST_GB_PER_S, SCHEDULING_LIMIT_S, self._own_pass(kwargs)),
                torch_api.inductor_settings(self._settings),
            ):
                compiled = original(gm, example_inputs, *args, **kwargs)
            order = torch_api.collective_order(compiled)
            mine = _digest(order)
            if self._faults.wants("order"):
                mine = "0" * len(mine)
        except Exception as err:  # noqa: BLE001  (whatever the scheduler did: this plan is infeasible, the job goes on)
            mine = f"error: {type(err).__name__}: {str(err).splitlines()[0][:200] if str(err) else ''}"
        question = f"{self.epoch}/{self._asked}"
        self._asked += 1
        verdict = self._board.settle(question, mine, LATE_LIMIT_S if self.settled else FIRST_LIMIT_S)
        if verdict == "ok" or self._is_known(verdict, order):
            self.graphs += 1
            self._orders.append(mine)
            self._shapes.add(_shape(order))
            return compiled
        self.infeasible = verdict.removeprefix("no: ")
        undo()
        return original(untouched, example_inputs, *args, **kwargs)

    def _own_pass(self, kwargs: dict[str, Any]) -> Callable[[Any], bool]:
        """Reads a graph for the planner; if the plan has a schedule for it, writes that: then it returns True."""
        kind = "backward" if kwargs.get("is_backward") else "inference" if kwargs.get("is_inference") else "forward"

        def own_pass(gm: Any) -> bool:
            if not self._schedules and self._board.rank != 0:
                return False
            try:
                graph = read_graph(gm, kind)
            except Exception as err:
                if self._schedules:
                    raise
                self.unread = f"{type(err).__name__}: {err}"  # the plan does not need it: it is for what-ifs
                return False
            if self._board.rank == 0:
                self.read[graph.signature] = graph
            schedule = self._schedules.get(graph.signature)
            if schedule is None:
                return False
            write_schedule(gm, graph, schedule)
            self.rewritten += 1
            return True

        return own_pass

    def _is_known(self, verdict: str, order: tuple[torch_api.CollectiveCall, ...]) -> bool:
        """A graph that only some ranks had to compile again (shapes that differ by rank).

        The others run a graph they have, in an order all agreed on. If ours has that same order, it fits
        theirs, and the unscheduled one would not.
        """
        return self.settled and "no answer" in verdict and bool(order) and _shape(order) in self._shapes


def comparable(order: tuple[torch_api.CollectiveCall, ...]) -> str:
    """The order as all ranks must see it: one line per collective.

    Two things differ between ranks that do the same: the offset of a rank's own slice in a bucket, and the names
    of process groups that are siblings (the rows of a mesh), which are numbered here as they appear.
    """
    groups: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return groups.setdefault(match.group(1), f"group{len(groups)}")

    def arguments(call: torch_api.CollectiveCall) -> str:
        return _GROUP.sub(number, _OFFSET.sub(r"\1*)", call.arguments))

    return "\n".join(f"{call.op}({arguments(call)})" for call in order)


def _digest(order: tuple[torch_api.CollectiveCall, ...]) -> str:
    return hashlib.sha256(comparable(order).encode()).hexdigest()[:16]


def _shape(order: tuple[torch_api.CollectiveCall, ...]) -> str:
    """The order without buffer names: which collectives, on which groups."""
    return _BUFFER.sub("*", comparable(order))


class Switch:
    """Puts plans into force at step boundaries and takes them out again."""

    def __init__(self, board: Board, faults: Faults) -> None:
        self._board = board
        self._rank = board.rank
        self._faults = faults
        self._epoch = 0
        self._original_tag: str | None = None
        self._restore: list[Any] = []
        self.session: PlanSession | None = None
        self.began_ns = 0

    @property
    def plan_id(self) -> str:
        """Id of the plan in force."""
        return self.session.plan.plan_id if self.session is not None else "as-it-was"

    def to(self, plan: Plan, nonce: str) -> None:
        """From the next call on, compiled code is compiled again under this plan.

        All ranks call this at the same boundary with the same plan and nonce.
        """
        self._faults.hit("apply")
        self._epoch += 1
        self.began_ns = time.perf_counter_ns()
        if not plan.knobs.scheduling:
            self.restore()
            return
        session = PlanSession(plan, self._epoch, self._board, self._faults)
        if not self._restore:
            self._restore.append(torch_api.install_compile_guard(self._compile))
            if torch_api.uses_gloo():
                self._restore.append(torch_api.replace_gloo_all_gather())
        # The plan id alone would not do. With the nonce no earlier run's code is found, so that every rank compiles
        # and none is left alone with the question whether the orders agree; with the rank no rank loads code that
        # has another's number in it (bucketing bakes the rank into slices, and the cache key does not know).
        former = torch_api.set_cache_key_tag(f"loopopt-{plan.plan_id}-{nonce}-rank{self._rank}")
        if self._original_tag is None:
            self._original_tag = former
        self.session = session
        torch_api.reset_compiler()

    def restore(self) -> None:
        """Everything as it was before the first plan."""
        self.session = None
        for undo in reversed(self._restore):
            undo()
        self._restore.clear()
        if self._original_tag is not None:
            torch_api.set_cache_key_tag(self._original_tag)
            self._original_tag = None
        torch_api.reset_compiler()

    def _compile(self, original: Any, gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        session = self.session
        if session is None:
            return original(gm, example_inputs, *args, **kwargs)
        return session.compile(original, gm, example_inputs, *args, **kwargs)
