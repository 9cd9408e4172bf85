"""The agent of one rank: what happens at each step boundary, and the door nothing escapes through."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import statistics
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from loopopt import wire
from loopopt.errors import LoopoptError, UnsupportedError
from loopopt.plans import BASELINE, Plan
from loopopt_agent import torch_api
from loopopt_agent.agreement import AgreementLost, Board, Decision
from loopopt_agent.capture import Capturer
from loopopt_agent.client import Client
from loopopt_agent.faults import Faults
from loopopt_agent.mailbox import Mailbox
from loopopt_agent.recompile import PlanSession, Switch

DECISION_SPACING_S = 1.0
"""Boundaries are about this far apart, so that reading one costs nothing against the steps between."""
_MOST_STEPS_APART = 1000
_OFFER_LIMIT_S = 120.0
_COMPILED_AFTER_STEPS = 3
_REPORT_EVERY_S = 1.0
_NOT_COMPILED = "the job is not compiled (no torch.compile seen so far): nothing to reschedule"


class Agent:
    """All state of the agent in one rank. Created at the first step of an initialised process group.

    `on_step` runs in the training thread at the end of every step. It never raises: the first internal error
    disarms the agent, poisons the board so that no other rank waits for this one, and says so once.
    """

    def __init__(self, job_dir: Path, job: str, faults: Faults) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.job_dir = job_dir
        self.job = job
        self.armed = True
        self._faults = faults
        self._attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self._features = torch_api.probes()
        self._mode, self._reason = "closed_loop", torch_api.why_observe_only(self._features)
        if self._reason:
            self._mode = "observe"
        store = dist.PrefixStore(f"loopopt/{self._attempt}", torch_api.default_store())
        self._board = Board(store, self.rank, self.world_size)
        self._switch = Switch(self._board, faults)
        self._commands: queue.SimpleQueue[wire.Message] = queue.SimpleQueue()
        self.client = Client(
            job_dir / wire.SOCKET_NAME, self._hello, self._heartbeat, self._on_message, self._client_died
        )
        self._mailbox = Mailbox(self.rank, lambda: torch_api.own_connection(store), self.client.send, self._say)
        self._leader = ""
        self._capturer = Capturer(self.rank, job_dir / wire.TRACE_DIR_NAME, self.client.send, faults)
        self._step = 0
        self._boundary = 2
        self._last_ns = 0
        self._recent: deque[float] = deque(maxlen=21)
        self._agent_ns = 0
        self._pending: list[float] = []
        self._pending_first = 0
        self._pending_key = ("as-it-was", "plain")
        self._next_report_ns = 0
        self._switched_at = -1
        self._offer: tuple[str, Plan, float] | None = None
        self._offered: Plan | None = None
        self._write_presence()
        self.client.start()

    # ------------------------------------------------------------ the training thread

    def on_step(self) -> None:
        """A training step has ended. Never raises."""
        if not self.armed:
            return
        began = time.perf_counter_ns()
        try:
            self._after_step(began)
        except Exception as err:  # noqa: BLE001  (the door to the training loop: nothing of ours may pass it)
            self.disarm(f"{type(err).__name__}: {err}")
        ended = time.perf_counter_ns()
        if self._last_ns:
            # A switch or a window is paid for by that step and reported as such; what is left is the idle cost.
            self._agent_ns += ended - began
        self._last_ns = ended

    def _after_step(self, now_ns: int) -> None:
        self._faults.hit("step")
        self._step += 1
        step = self._step
        if self._last_ns:
            self._note_duration(step - 1, (now_ns - self._last_ns) / 1000, now_ns)
        if step == _COMPILED_AFTER_STEPS:
            self._look_whether_compiled()
        if self._switched_at >= 0 and step > self._switched_at:
            self._report_switch(step)
        if self._capturer.is_open:
            self._capturer.on_boundary(step)
        if not dist.is_initialized():
            self.disarm("the job destroyed its process group")
            return
        if step == 1 and self.rank == 0:
            self._leader = socket.gethostname()
            self._board.lead(self._leader)
            self._board.decide(self._boundary, Decision("none", self._boundary + 1))
        elif step == self._boundary:
            self._at_boundary(step)

    def _at_boundary(self, step: int) -> None:
        self._faults.hit("decision")
        if self._reason == _NOT_COMPILED:
            self._look_whether_compiled()
        decision = self._board.read(step)
        if not self._leader:
            self._leader = self._board.leader()
        self._act(decision, step)
        self._boundary = decision.following
        if self.rank == 0:
            self._board.decide(self._boundary, self._next_decision(self._boundary))

    def _next_decision(self, boundary: int) -> Decision:
        following = boundary + self._spacing()
        if self._offer is not None:
            return self._judge_offer(following)
        with contextlib.suppress(queue.Empty):
            command = self._commands.get_nowait()
            if isinstance(command, wire.Capture):
                details: dict[str, Any] = {"window_id": command.window_id, "steps": max(1, command.steps)}
                return Decision("capture", max(following, boundary + 1), details)
            if isinstance(command, wire.Apply):
                return self._make_offer(Plan.from_json(command.plan), following)
            if isinstance(command, wire.Release):
                return Decision("release", following, {"restore": command.restore})
        return Decision("none", following)

    def _make_offer(self, plan: Plan, following: int) -> Decision:
        content = json.dumps(plan.to_json())
        name = f"{plan.plan_id}/{os.urandom(4).hex()}"
        self._board.publish(name, content)
        self._offer = (name, plan, time.monotonic() + _OFFER_LIMIT_S)
        return Decision("offer", following, {"name": name})

    def _judge_offer(self, following: int) -> Decision:
        assert self._offer is not None
        name, plan, deadline = self._offer
        answers = self._board.answers(name)
        if answers is None and time.monotonic() < deadline:
            return Decision("none", following)
        self._offer = None
        bad = [f"rank {r}: {a}" for r, a in enumerate(answers or []) if a != "ok"]
        if answers is not None and not bad:
            return Decision("apply", following, {"name": name})
        reason = bad[0] if bad else "not all ranks acknowledged the plan"
        self.client.send(
            wire.PlanResult(rank=self.rank, plan_id=plan.plan_id, step=self._step, outcome="infeasible", reason=reason)
        )
        return Decision("none", following)

    def _act(self, decision: Decision, step: int) -> None:
        details = decision.details
        if decision.action == "capture":
            self._flush_report()
            self._capturer.open(details["window_id"], step, int(details["steps"]), self._switch.plan_id)
        elif decision.action == "offer":
            self._consider(details["name"])
        elif decision.action == "apply":
            plan = self._offered
            if plan is None or not details["name"].startswith(plan.plan_id):
                raise LoopoptError(f"told to apply {details['name']!r}, which this rank was never offered")
            self._apply(plan, details["name"].partition("/")[2], step)
        elif decision.action == "release" and details.get("restore") and self._switch.session is not None:
            self._apply(BASELINE, "", step)

    def _consider(self, name: str) -> None:
        """Fetch an offered plan, check it, and answer: any doubt of any rank keeps all from it."""
        self._offered = None
        try:
            self._faults.hit("offer")
            plan = Plan.from_json(json.loads(self._board.fetch(name)))
            if not name.startswith(plan.plan_id + "/"):
                raise LoopoptError(f"the content offered as {name!r} is plan {plan.plan_id}")
            if plan.knobs.scheduling:
                if self._mode != "closed_loop":
                    raise UnsupportedError(self._reason)
                torch_api.plan_settings(plan.knobs, None)
            answer = "ok"
            self._offered = plan
        except (LoopoptError, ValueError, RuntimeError) as err:
            answer = f"{type(err).__name__}: {err}"
        self._board.acknowledge(name, answer)

    def _apply(self, plan: Plan, nonce: str, step: int) -> None:
        if self._capturer.is_open:
            self._capturer.abandon("switch: the plan changed inside the window")
        self._flush_report()
        self._switch.to(plan, nonce)
        self._switched_at = step

    def _report_switch(self, step: int) -> None:
        """The first step after a switch is over: say what became of it."""
        self._switched_at = -1
        self._faults.hit("result")
        session = self._switch.session
        stall_us = (time.perf_counter_ns() - self._switch.began_ns) / 1000
        if session is None:
            self._send_result("as-it-was", step, "applied", "", stall_us)
            return
        session.settled = True
        self._publish_graphs(session)
        estimator = session.estimator
        outcome, reason = "applied", ""
        if session.infeasible:
            outcome, reason = "infeasible", session.infeasible
        elif session.why_unused:
            outcome, reason = "unused", session.why_unused
        self._send_result(
            session.plan.plan_id,
            step,
            outcome,
            reason,
            stall_us,
            graphs=session.graphs,
            estimator_calls=estimator.calls if estimator else 0,
            estimator_hits=estimator.hits if estimator else 0,
            order_digest=session.order_digest,
        )
        if outcome != "applied":
            # All ranks heard the same verdict, so all go back at this same boundary.
            self._flush_report()
            self._switch.restore()
            self._pending_key = (self._switch.plan_id, "compiling")

    def _publish_graphs(self, session: PlanSession) -> None:
        """Rank 0 leaves the graphs it compiled for `loopopt plan simulate`; a full disk does not matter."""
        if session.unread:
            self._say(f"a compiled graph could not be read for the planner: {session.unread}")
        for signature, graph in session.read.items():
            path = self.job_dir / wire.GRAPH_DIR_NAME / f"{signature}.json"
            if not os.path.exists(path):  # unlike the method it raises nothing, whatever is wrong with the folder
                _leave(path, graph.to_json())

    def _send_result(
        self, plan_id: str, step: int, outcome: str, reason: str, compile_us: float, **counts: Any
    ) -> None:
        self.client.send(
            wire.PlanResult(
                rank=self.rank,
                plan_id=plan_id,
                step=step,
                outcome=outcome,
                reason=reason,
                compile_us=compile_us,
                **counts,
            )
        )

    # ------------------------------------------------------------ step times

    def _note_duration(self, step: int, duration_us: float, now_ns: int) -> None:
        if self._switched_at >= 0:
            kind = "compiling"
        elif self._capturer.is_open:
            kind = "traced"
        else:
            kind = "plain"
            self._recent.append(duration_us)
        key = (self._switch.plan_id, kind)
        if key != self._pending_key:
            self._flush_report()
            self._pending_key = key
        if not self._pending:
            self._pending_first = step
        self._pending.append(duration_us)
        if now_ns >= self._next_report_ns:
            self._flush_report()
            self._next_report_ns = now_ns + int(_REPORT_EVERY_S * 1e9)

    def _flush_report(self) -> None:
        if not self._pending:
            return
        durations, self._pending = self._pending, []
        self.client.send(
            wire.Steps(
                rank=self.rank,
                first_step=self._pending_first,
                durations_us=durations,
                plan_id=self._pending_key[0],
                kind=self._pending_key[1],
                peak_memory_bytes=torch_api.peak_memory_bytes(),
            )
        )

    def _spacing(self) -> int:
        if len(self._recent) < 3:
            return 1
        step_us = statistics.median(self._recent)
        return min(_MOST_STEPS_APART, max(1, math.ceil(DECISION_SPACING_S * 1e6 / max(step_us, 1.0))))

    def _look_whether_compiled(self) -> None:
        compiled = torch_api.graphs_compiled() > 0
        if self._mode == "closed_loop" and not compiled:
            self._mode, self._reason = "observe", _NOT_COMPILED
        elif self._reason == _NOT_COMPILED and compiled:
            self._mode, self._reason = "closed_loop", ""  # a job that warms up uncompiled

    # ------------------------------------------------------------ other threads

    def _hello(self) -> wire.Hello:
        return wire.Hello(
            job=self.job,
            rank=self.rank,
            local_rank=int(os.environ.get("LOCAL_RANK", str(self.rank))),
            world_size=self.world_size,
            pid=os.getpid(),
            host=socket.gethostname(),
            torch=torch.__version__,
            backend=str(dist.get_backend()) if dist.is_initialized() else "",
            device="cuda" if torch.cuda.is_available() else "cpu",
            attempt=self._attempt,
            mode=self._mode,
            reason=self._reason,
            step=self._step,
            active_plan=self._switch.plan_id,
            features=self._features,
            leader=self._leader,
        )

    def _heartbeat(self) -> wire.Heartbeat:
        self._faults.hit("client")
        return wire.Heartbeat(
            rank=self.rank,
            step=self._step,
            agent_us=self._agent_ns / 1000,
            compiled=torch_api.graphs_compiled() > 0,
            mode=self._mode,
            reason=self._reason,
            leader=self._leader,
        )

    def _on_message(self, message: wire.Message) -> None:
        if isinstance(message, wire.Post | wire.Fetch):
            self._mailbox.order(message)
        else:
            self._commands.put(message)

    def _client_died(self, err: BaseException) -> None:
        self._say(f"lost the line to the daemon for good: {err!r}")

    def _say(self, text: str) -> None:
        print(f"loopopt[rank {self.rank}]: {text}", file=sys.stderr, flush=True)

    # ------------------------------------------------------------ the end

    def disarm(self, reason: str) -> None:
        """Do nothing more. The plan in force stays: the other ranks run it too."""
        if not self.armed:
            return
        self.armed = False
        print(f"loopopt[rank {self.rank}]: disarmed, training goes on: {reason}", file=sys.stderr, flush=True)
        with _whatever_happens():
            if dist.is_initialized():
                self._board.poison(reason)
        with _whatever_happens():
            self._capturer.abandon("disarmed")
        with _whatever_happens():
            self.client.send(wire.Disarmed(rank=self.rank, reason=reason))

    def at_exit(self) -> None:
        """The process ends: write what is being written, say goodbye."""
        with _whatever_happens():
            self._capturer.abandon("exit: the job ended inside the window")
            self._capturer.finish(timeout_s=10.0)
            self._mailbox.close()
            if self.armed:
                self._flush_report()
                self.client.send(wire.Goodbye(rank=self.rank, step=self._step))
            self.client.close()
        with _whatever_happens():
            self._presence_path().unlink(missing_ok=True)

    def _presence_path(self) -> Path:
        return self.job_dir / wire.RANKS_DIR_NAME / f"{self.rank}.{os.getpid()}.json"

    def _write_presence(self) -> None:
        """Leave a note by which `loopopt attach` finds the job."""
        body = {
            "rank": self.rank,
            "pid": os.getpid(),
            "world_size": self.world_size,
            "job": self.job,
            "host": socket.gethostname(),
            "torch": torch.__version__,
            "mode": self._mode,
            "reason": self._reason,
        }
        _leave(self._presence_path(), body)


def _leave(path: Path, content: dict[str, Any]) -> None:
    """Write JSON into the job's directory, whole or not at all; a full or read-only disk does not matter here."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(content), encoding="utf-8")
        os.replace(partial, path)


class _whatever_happens(contextlib.suppress):  # noqa: N801  (reads as a word)
    """For the last words of an agent that is giving up: their failing changes nothing."""

    def __init__(self) -> None:
        super().__init__(Exception, AgreementLost)
