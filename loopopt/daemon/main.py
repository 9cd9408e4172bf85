"""One daemon per job and node: serves the agents, drives the loop, exports metrics, answers the command line."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import loopopt
from loopopt import wire
from loopopt.config import LoopConfig
from loopopt.control import Action, Loop, Note, Propose, SendApply, SendCapture, SendRelease
from loopopt.daemon.following import Follower
from loopopt.daemon.measuring import measure_in_child
from loopopt.daemon.memory import Memory
from loopopt.daemon.nodes import Nodes, Window, report_from_text, report_topic, shares_to_text, shares_topic
from loopopt.daemon.ranks import Registry
from loopopt.errors import DaemonError, LoopoptError, WireError
from loopopt.export import MetricsServer, Snapshot, read_web_config, start_server, window_counters
from loopopt.measure import measurement_from_json
from loopopt.measurement import WindowMeasurement
from loopopt.plan import propose
from loopopt.plans import BASELINE
from loopopt.store import WindowRow, prune_traces
from loopopt.timing import TimingTable

log = logging.getLogger("loopopt.daemon")

_TICK_S = 1.0
"""The loop looks at the clock this often; it also looks after every message."""
_STORE_MAX_BYTES = 200_000_000
_STORE_MAX_WINDOWS = 500
_GRACE_S = 20.0
"""The daemon ends so long after the last rank has said goodbye."""
_LOST_GRACE_S = 900.0
"""... or has been lost without a word: torchrun may start it again."""
_RESTORE_S = 60.0


class Daemon:
    """All live state of one daemon."""

    def __init__(self, job_dir: Path, config: LoopConfig) -> None:
        self.job_dir = job_dir
        self.config = config
        self.notes: deque[str] = deque(maxlen=100)
        self.memory = Memory(job_dir / wire.STATE_NAME, self.note)
        self.memory.load_trials()
        self.loop = Loop(config, self.memory.load())
        self._before = self._table_before()
        self.registry = Registry()
        self.metrics: MetricsServer | None = None
        self.finished = asyncio.Event()
        self._news = asyncio.Event()
        self._nodes = Nodes()
        self._follower = Follower(job_dir, config, self.memory, self.registry, self.note)
        self._windows: dict[str, Window] = {}
        self._measured: dict[str, dict[str, Any]] = {}
        self._measuring: set[asyncio.Task[None]] = set()
        self._last_success_s: float | None = None
        self._step_us: float = 0.0
        self._traced_us: dict[int, float] = {}

    def _table_before(self) -> TimingTable:
        latest = self.memory.latest_table()
        try:
            return TimingTable.from_json(latest[1]) if latest else TimingTable()
        except LoopoptError as err:
            self.note(f"the timing table kept before cannot be used: {err}")
            return TimingTable()

    def note(self, text: str) -> None:
        """Say something to a person, in the log and in the status."""
        log.info("%s", text)
        self.notes.append(f"{time.strftime('%H:%M:%S')} {text}")

    def finish(self) -> None:
        """End in good order."""
        self.finished.set()
        self._news.set()

    # ------------------------------------------------------------ agents

    async def serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of one rank. A bad message ends the connection, nothing else."""
        try:
            if not _same_user(writer):
                raise WireError("the peer is another user's process")
            while line := await reader.readline():
                self._on_message(wire.decode(line), writer)
                self._news.set()
        except (WireError, ValueError) as err:
            self.note(f"a connection was dropped: {err}")
            self.memory.count("messages_refused")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the rank is gone; the registry says so below
        finally:
            rank = self.registry.drop(writer)
            writer.close()
            if rank is not None and not rank.ended and not rank.disarmed and self.loop.phase != "released":
                self.carry_out(self.loop.on_lost(f"rank {rank.hello.rank} is gone", time.time()))

    def _on_message(self, message: wire.Message, writer: asyncio.StreamWriter) -> None:
        now = time.time()
        if isinstance(message, wire.Hello):
            fresh = self.registry.hello(message, writer, now)
            writer.write(wire.encode(wire.Welcome(pid=os.getpid(), loopopt=loopopt.__version__)))
            if fresh:
                self.note(f"rank {message.rank} registered (pid {message.pid}, attempt {message.attempt})")
                if self.loop.phase not in ("waiting", "released"):
                    self.carry_out(self.loop.on_lost(f"rank {message.rank} was started again", now))
            return
        rank = next((r for r in self.registry.ranks.values() if r.writer is writer), None)
        if rank is None:
            raise WireError(f"{message.TYPE} before hello")
        rank.seen_s = now
        number = rank.hello.rank
        if getattr(message, "rank", number) != number:
            raise WireError(f"{message.TYPE} of rank {getattr(message, 'rank', None)} from rank {number}")
        if isinstance(message, wire.Steps):
            rank.plan_id = message.plan_id
            rank.step = max(rank.step, message.first_step + len(message.durations_us))
            self.memory.steps(
                number, message.first_step, message.plan_id, message.kind, message.durations_us, rank.hello.attempt
            )
            if message.kind == "plain":
                self.loop.on_steps(number, message.first_step, message.durations_us, message.plan_id, now)
            elif message.kind == "traced":
                self._traced_us[number] = sum(message.durations_us) / len(message.durations_us)
        elif isinstance(message, wire.Heartbeat):
            rank.step = max(rank.step, message.step)
            self.memory.count("agent_us", max(0.0, message.agent_us - rank.agent_us))
            rank.agent_us = message.agent_us
            rank.mode, rank.reason = message.mode, message.reason
            rank.leader = message.leader or rank.leader
            if message.mode == "observe":
                self.carry_out(self.loop.on_observe(message.reason, now))
            elif self.loop.phase == "observing" and not self.registry.why_observe():
                self.carry_out(self.loop.on_lost("the loop can be closed now", now))
        elif isinstance(message, wire.WindowDone):
            self._on_window_done(message)
        elif isinstance(message, wire.Posted):
            self._on_posted(message, now)
        elif isinstance(message, wire.PlanResult):
            self._on_plan_result(message, now)
        elif isinstance(message, wire.Disarmed):
            rank.disarmed = message.reason or "no reason given"
            self.note(f"rank {number} has disarmed itself: {rank.disarmed}")
            self.carry_out(self.loop.on_observe(self.registry.why_observe(), now, traceable=False))
        elif isinstance(message, wire.Goodbye):
            rank.ended = True

    def _on_plan_result(self, message: wire.PlanResult, now: float) -> None:
        if message.rank == 0 and message.compile_us > 0:
            self.memory.count("recompiles")
            self.memory.count("recompile_us", message.compile_us)
        if message.rank == 0 and message.outcome != "applied":
            self.memory.count("recompile_failures")
        before = self.loop.rollbacks
        self.carry_out(
            self.loop.on_plan_result(
                message.rank, message.plan_id, message.outcome, message.reason, message.compile_us, message.step, now
            )
        )
        self._count_rollbacks(before)

    def _count_rollbacks(self, before: int) -> None:
        if self.loop.rollbacks > before:
            self.memory.count("rollbacks", self.loop.rollbacks - before)

    # ------------------------------------------------------------ windows

    def _on_window_done(self, message: wire.WindowDone) -> None:
        if self.registry.follows(time.time()):
            self._follower.on_window_done(message, self.metrics.port if self.metrics else 0)
            return
        window = self._windows.get(message.window_id)
        if window is None:
            return
        window.plan_id = message.plan_id
        window.answers[message.rank] = message
        if not window.topic and self.registry.elsewhere and not message.error:
            window.topic = report_topic(message.window_id, message.first_step)
            self._send(wire.Fetch(window.topic, self.config.window_timeout_s))
        self._look_whether_complete(window)

    def _on_posted(self, message: wire.Posted, now: float) -> None:
        self._follower.on_posted(message)
        window = next((w for w in self._windows.values() if w.topic == message.topic), None)
        if window is None:
            return
        report = report_from_text(message.content)
        window.reports[report.host] = report
        self._nodes.heard(report, now)
        self._look_whether_complete(window)

    def _look_whether_complete(self, window: Window, late: bool = False) -> None:
        """Measure when everybody has answered, or, `late`, when this node's ranks have."""
        expected = {n for n, r in self.registry.ranks.items() if r.live}
        if not expected <= window.answers.keys():
            return
        if window.missing(self.registry.elsewhere) and not window.error and not late:
            return
        del self._windows[window.window_id]
        if window.topic:
            self._send(wire.Fetch(window.topic, 0.0))
        task = asyncio.create_task(self._measure(window))
        self._measuring.add(task)
        task.add_done_callback(self._measuring.discard)

    async def _measure(self, window: Window) -> None:
        answers = list(window.answers.values())
        errors = [a for a in answers if a.error]
        if errors:
            self._window_failed(window, errors[0].error.partition(":")[0], window.error)
            return
        steps = answers[0].steps
        cost = max(a.overhead_us for a in answers)
        if self._step_us and self._traced_us:
            cost += max(0.0, max(self._traced_us.values()) - self._step_us) * steps
        self.loop.on_window_cost(cost, time.time())
        paths = [a.path for a in sorted(answers, key=lambda a: a.rank)]
        missing = window.missing(self.registry.elsewhere)
        others = [r.summaries for r in window.reports.values() if r.summaries]
        try:
            got = await measure_in_child(paths, self.registry.fingerprint, self.config.measure_timeout_s, others=others)
            content = got.measurement
            measured = measurement_from_json(content)
        except LoopoptError as err:
            self._window_failed(window, "unreadable", str(err))
            return
        finally:
            await asyncio.to_thread(
                prune_traces, self.job_dir / wire.TRACE_DIR_NAME, self.config.trace_max_bytes, self.config.trace_keep
            )
        now = time.time()
        self._last_success_s = now
        row = WindowRow(window.window_id, window.plan_id, answers[0].first_step, steps, now, content)
        self._measured[window.plan_id] = {"window_id": row.window_id, "plan_id": row.plan_id, "measurement": content}
        self.memory.window(row)
        self.memory.table(measured.table.digest, measured.table.to_json(), now)
        if window.topic:
            self._send(wire.Post(shares_topic(window.window_id, answers[0].first_step), shares_to_text(measured.ranks)))
        own = replace(measured, ranks=tuple(r for r in measured.ranks if r.rank in window.answers))
        for counter in window_counters(own):
            self.memory.count(counter.key, counter.value, dict(counter.labels))
        for path in paths:
            with contextlib.suppress(OSError):
                self.memory.count("trace_bytes", os.stat(path).st_size)
        for text in measured.notes:
            self.note(f"window {window.window_id}: {text}")
        if missing or window.error:
            # This node's times are good for the metrics; without the others no transfer can be told from waiting.
            self.memory.count("trace_failures", labels={"reason": "missing_rank"})
            ranks = ", ".join(map(str, missing[:8]))
            reason = window.error or f"nothing from rank {ranks} of another node (does a daemon run there?)"
            self.note(f"window {window.window_id} is not whole: {reason}")
            self._on_measured(window.window_id, None, reason)
        else:
            self._on_measured(window.window_id, measured, "")
        self.memory.prune(_STORE_MAX_BYTES, _STORE_MAX_WINDOWS)

    def _window_failed(self, window: Window, kind: str, reason: str) -> None:
        self.memory.count("trace_failures", labels={"reason": kind})
        self.note(f"window {window.window_id} dropped: {reason}")
        self._on_measured(window.window_id, None, reason)

    def _on_measured(self, window_id: str, measured: WindowMeasurement | None, reason: str) -> None:
        before = self.loop.rollbacks
        self.carry_out(self.loop.on_measured(window_id, measured, reason, time.time()))
        self._count_rollbacks(before)

    # ------------------------------------------------------------ the loop

    def carry_out(self, actions: list[Action]) -> None:
        """Do what the loop says, and keep its state."""
        for action in actions:
            now = time.time()
            if isinstance(action, Note):
                self.note(action.text)
            elif isinstance(action, SendCapture):
                self.memory.count("trace_requests")
                self._windows[action.window_id] = Window(action.window_id, self.loop.active.plan_id, now)
                self._send(wire.Capture(action.window_id, action.steps))
            elif isinstance(action, SendApply):
                self._send(wire.Apply(action.plan.to_json()))
            elif isinstance(action, SendRelease):
                self._send(wire.Release(action.restore))
            elif isinstance(action, Propose):
                # What this window did not show is taken from before the start: kept traces, or a refresh of them.
                known, self._before = action.measured.table.completed(self._before), TimingTable()
                proposal = propose(
                    known.for_scheduling(),
                    step_us=action.step_us,
                    exposed_us=action.exposed_us,
                    min_exposed_share=self.config.min_exposed_share,
                    memory_increase_gb=self.config.memory_increase_gb,
                    max_trials=self.config.max_trials,
                    known_share=action.measured.coverage.communication,
                    coverage=self.config.coverage,
                    min_coverage=self.config.min_coverage,
                )
                if proposal.warning:
                    self.note(proposal.warning)
                self.carry_out(self.loop.on_proposal(proposal.plans, proposal.reason, now))
        for trial in self.loop.changed:
            self.memory.trial(trial)
        self.loop.changed.clear()
        if actions:
            self.memory.save(self.loop.state)

    def _send(self, message: wire.Message) -> None:
        leader = self.registry.leader
        if leader is not None and leader.writer is not None:
            leader.writer.write(wire.encode(message))

    async def drive(self) -> None:
        """Ticks, and the ranks' coming and going."""
        while not self.finished.is_set():
            now = time.time()
            if self.loop.phase == "waiting":
                self._look_for_ranks(now)
            for rank in self.registry.ranks.values():
                if rank.writer is not None and now - rank.seen_s > self.config.lost_after_s:
                    rank.writer.close()
            if self._job_is_over(now):
                self.note("the job is over: the daemon ends")
                self.finish()
            late = [w for w in self._windows.values() if now - w.asked_s > self.config.window_timeout_s]
            for window in late:
                self._look_whether_complete(window, late=True)
                if window.window_id in self._windows:
                    del self._windows[window.window_id]
                    self._window_failed(window, "timeout", f"answered only by ranks {sorted(window.answers)}")
            self._follower.tick(now)
            self._step_us = self.loop.current_step_us or self._step_us
            before = self.loop.rollbacks
            if not self.registry.follows(now):
                self.carry_out(self.loop.tick(now))
                self._count_rollbacks(before)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), _TICK_S)
            self._news.clear()

    def _job_is_over(self, now: float) -> bool:
        ranks = self.registry.ranks.values()
        if not ranks or any(r.writer is not None for r in ranks):
            return False
        quiet_s = now - max(r.seen_s for r in ranks)
        return quiet_s > (_GRACE_S if all(r.ended for r in ranks) else _LOST_GRACE_S)

    def _look_for_ranks(self, now: float) -> None:
        if not self.registry.complete(now):
            return
        leader = self.registry.leader
        assert leader is not None
        # A job says only after some steps that it is not compiled: give it that long.
        if leader.mode != "observe" and leader.step < 4:
            return
        live = sorted(n for n, r in self.registry.ranks.items() if r.live)
        observe = self.registry.why_observe()
        self.memory.fingerprint(self.registry.fingerprint)
        self.carry_out(self.loop.on_ranks(live, leader.plan_id, observe, now, self.registry.identity))

    # ------------------------------------------------------------ the command line

    async def serve_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One question, one answer."""
        try:
            line = await asyncio.wait_for(reader.readline(), 10.0)
            answer = await self._answer(json.loads(line)) if _same_user(writer) else {"error": "not your daemon"}
        except (ValueError, AttributeError, asyncio.TimeoutError) as err:
            answer = {"error": f"not a request: {err!r}"}
        with contextlib.suppress(ConnectionError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        cmd = request.get("cmd")
        if cmd == "status":
            return self.status()
        if cmd == "table":
            latest = self.memory.latest_table()
            return {"digest": latest[0], "table": latest[1]} if latest else {"digest": None, "table": None}
        if cmd == "plans":
            return {"active_plan": self.loop.active_id, "trials": self._trials()}
        if cmd == "windows":
            of_plans = (BASELINE.plan_id, self.loop.active_id)
            return {"windows": self.memory.windows(20, of_plans) or list(self._measured.values())}
        if cmd == "refresh":
            return self._refresh()
        if cmd == "detach":
            return await self._detach(bool(request.get("restore")))
        if cmd == "shutdown":
            self.finish()
            return {"ok": True}
        return {"error": f"unknown command {cmd!r}: this daemon is loopopt {loopopt.__version__}"}

    def _refresh(self) -> dict[str, Any]:
        """A new round. One that runs already counts: whoever asks waits for a round later than `after_round`."""
        follows = self.registry.follows(time.time())
        if follows:
            return {"ok": True, "skipped": f"this node follows {follows}, whose daemon decides: refresh it there"}
        if self.loop.phase in ("waiting", "released"):
            return {"ok": True, "skipped": self.loop.reason or "the ranks of the job are not all there"}
        disarmed = next((r.disarmed for r in self.registry.ranks.values() if r.disarmed), "")
        if disarmed:
            return {"ok": True, "skipped": f"a rank has disarmed itself and cannot be traced: {disarmed}"}
        under_way = not self.loop.settled and self.loop.phase != "observing"
        answer = {"ok": True, "after_round": self.loop.round - under_way, "after_s": self._last_success_s or 0.0}
        self.carry_out(self.loop.on_refresh(time.time()))
        self._news.set()
        return answer | {"under_way": under_way, "phase": self.loop.phase}

    async def _detach(self, restore: bool) -> dict[str, Any]:
        follows = self.registry.follows(time.time())
        if follows and restore:
            return {"error": f"this node follows {follows}, whose daemon decides: run `loopopt detach --restore` there"}
        leader = self.registry.leader
        running = leader.plan_id if leader else BASELINE.plan_id
        restored = False
        self.carry_out(self.loop.on_release(restore, time.time()))
        if restore and leader is not None:
            # The switch is made at a step boundary, and reported a step later: wait for it as long as that takes.
            deadline = time.monotonic() + _RESTORE_S
            while time.monotonic() < deadline and any(
                r.live and r.plan_id != BASELINE.plan_id for r in self.registry.ranks.values()
            ):
                await asyncio.sleep(0.1)
            restored = all(r.plan_id == BASELINE.plan_id for r in self.registry.ranks.values() if r.live)
            if not restored:
                self.note(f"the ranks have not reported the original schedule within {_RESTORE_S:.0f} s")
        self.finish()
        return {"ok": True, "restored": restored, "was_running": running}

    def _trials(self) -> list[dict[str, Any]]:
        return [asdict(row) for row in self.memory.trials.values()]

    def status(self) -> dict[str, Any]:
        """Everything `loopopt status` and the summaries need."""
        ranks = self.registry.ranks
        hello = next(iter(ranks.values())).hello if ranks else None
        counters = {c.key: c.value for c in self.memory.counters() if not c.labels}
        observe = self.loop.phase == "observing" or bool(self.registry.why_observe())
        follows = self.registry.follows(time.time())
        active_id, active_label = self._active()
        return {
            "version": loopopt.__version__,
            "pid": os.getpid(),
            "job": hello.job if hello else self.job_dir.name,
            "dir": str(self.job_dir),
            "phase": "following" if follows else self.loop.phase,
            "follows": follows,
            "nodes": self._nodes.status(),
            "mode": "observe" if observe else "closed_loop",
            "reason": self.registry.why_observe() if follows else self.loop.reason or self.registry.why_observe(),
            "round": self.loop.round,
            "settled": self.loop.settled,
            "measured_s": self._last_success_s,
            "step": max((r.step for r in ranks.values()), default=0),
            "world_size": hello.world_size if hello else 0,
            "ranks": [
                {
                    "rank": n,
                    "pid": r.hello.pid,
                    "host": r.hello.host,
                    "state": "ended" if r.ended else r.state(),
                    "step": r.step,
                    "reason": r.disarmed or r.reason,
                }
                for n, r in sorted(ranks.items())
            ],
            "torch": hello.torch if hello else "",
            "backend": hello.backend if hello else "",
            "active_plan": active_id,
            "active_label": active_label,
            "baseline_step_us": self.loop.baseline_step_us,
            "current_step_us": self.loop.current_step_us,
            "trials": self._trials(),
            "counters": counters,
            "metrics_port": self.metrics.port if self.metrics else None,
            "notes": list(self.notes),
        }

    def _active(self) -> tuple[str, str]:
        """Id and name of the plan in force; a node that follows knows the id alone."""
        speaker = self.registry.speaker
        if not self.registry.follows(time.time()) or speaker is None:
            return self.loop.active_id, self.loop.active.label
        return speaker.plan_id, BASELINE.label if speaker.plan_id == BASELINE.plan_id else speaker.plan_id

    def snapshot(self) -> Snapshot:
        """What a scrape sees (called in the metrics server's thread)."""
        ranks = dict(self.registry.ranks)
        hello = next(iter(ranks.values())).hello if ranks else None
        active_id, active_label = self._active()
        return Snapshot(
            version=loopopt.__version__,
            training_job=hello.job if hello else self.job_dir.name,
            torch=hello.torch if hello else "",
            backend=hello.backend if hello else "",
            not_ready="" if ranks else "no rank has registered",
            ranks=self.registry.counts(),
            phase="following" if self.registry.follows(time.time()) else self.loop.phase,
            plan_id=active_id if ranks else "",
            plan_label=active_label if ranks else "",
            baseline_step_us=self.loop.baseline_step_us,
            current_step_us=self.loop.current_step_us,
            predicted_step_us=self.memory.predicted_step_us(active_id),
            trace_last_success_s=self._last_success_s or self._follower.last_success_s,
            counters=self.memory.counters(),
            histograms=self.memory.histograms(),
        )


def _same_user(writer: asyncio.StreamWriter) -> bool:
    """Only our own user (or root) may talk to us, whatever the socket's mode has become."""
    connection = writer.get_extra_info("socket")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid = struct.unpack("3i", credentials)[1]
    return uid in (os.getuid(), 0)


async def _listen(path: Path, serve: Any) -> asyncio.AbstractServer:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    former = os.umask(0o177)
    try:
        return await asyncio.start_unix_server(serve, str(path), limit=wire.MAX_MESSAGE_BYTES)
    finally:
        os.umask(former)


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


async def _run(job_dir: Path, config: LoopConfig) -> None:
    daemon = Daemon(job_dir, config)
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, daemon.finish)
    try:
        try:
            web = read_web_config(Path(config.web_config)) if config.web_config else None
            daemon.metrics = start_server(daemon.snapshot, config.metrics_host, config.metrics_port, web)
        except (LoopoptError, OSError) as err:
            daemon.note(f"no metrics are served: {err}")
        agents = await _listen(job_dir / wire.SOCKET_NAME, daemon.serve_agent)
        control = await _listen(job_dir / wire.CONTROL_SOCKET_NAME, daemon.serve_control)
        about = {
            "pid": os.getpid(),
            "metrics_port": daemon.metrics.port if daemon.metrics else None,
            "version": loopopt.__version__,
            "started_s": time.time(),
        }
        with contextlib.suppress(OSError):
            _write_atomically(job_dir / "daemon.json", json.dumps(about))
        daemon.note(f"daemon {os.getpid()} serves {job_dir}")
        await daemon.drive()
        agents.close()
        control.close()
        for name in (wire.SOCKET_NAME, wire.CONTROL_SOCKET_NAME, "daemon.json"):
            with contextlib.suppress(OSError):
                (job_dir / name).unlink()
    finally:
        daemon.memory.save(daemon.loop.state)
        daemon.memory.close()
        if daemon.metrics is not None:
            daemon.metrics.close()


def run_daemon(job_dir: Path, config: LoopConfig) -> int:
    """Serve one job until SIGTERM, SIGINT, "shutdown" or "detach"; returns the exit code.

    Raises:
        DaemonError: another daemon serves this directory, or it cannot be used.
    """
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(job_dir, 0o700)
        lock = os.open(job_dir / "daemon.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as err:
        raise DaemonError(f"{job_dir} cannot be used as a job directory: {err.strerror}") from err
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DaemonError(f"another daemon serves {job_dir} already (see `loopopt status`)") from None
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(_run(job_dir, config))
    finally:
        os.close(lock)
    return 0
