"""What the daemon of a node without rank 0 does: it measures its own ranks and hands that to the leading node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from loopopt import wire
from loopopt.config import LoopConfig
from loopopt.daemon.measuring import measure_in_child
from loopopt.daemon.memory import Memory
from loopopt.daemon.nodes import (
    Report,
    Window,
    report_to_text,
    report_topic,
    shares_from_text,
    shares_topic,
)
from loopopt.daemon.ranks import Registry
from loopopt.errors import LoopoptError, WireError
from loopopt.export import window_counters
from loopopt.measure import measurement_from_json
from loopopt.measurement import WindowMeasurement
from loopopt.store import WindowRow, prune_traces


class Follower:
    """Windows of a following node, from the ranks' answers to the metrics.

    Args:
        job_dir: the job's directory.
        config: for the limits.
        memory: where counters and windows are kept.
        registry: this node's ranks.
        note: called with what a person should know.
    """

    def __init__(
        self, job_dir: Path, config: LoopConfig, memory: Memory, registry: Registry, note: Callable[[str], None]
    ) -> None:
        self._job_dir = job_dir
        self._config = config
        self._memory = memory
        self._registry = registry
        self._note = note
        self._port = 0
        self._windows: dict[str, Window] = {}
        self._awaited: dict[str, tuple[WindowMeasurement, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.last_success_s: float | None = None

    def on_window_done(self, message: wire.WindowDone, metrics_port: int) -> None:
        """A rank of this node has written its trace, or failed to; the leading node asked for the window."""
        self._port = metrics_port
        window = self._windows.setdefault(message.window_id, Window(message.window_id, message.plan_id, time.time()))
        window.answers[message.rank] = message
        if {n for n, r in self._registry.ranks.items() if r.live} <= window.answers.keys():
            del self._windows[message.window_id]
            task = asyncio.create_task(self._measure(window))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _measure(self, window: Window) -> None:
        first = next(iter(window.answers.values()))
        topic = report_topic(window.window_id, first.first_step)
        ranks = tuple(sorted(window.answers))
        speaker = self._registry.speaker
        host = speaker.hello.host if speaker is not None else ""
        report = Report(host, ranks, metrics_port=self._port)
        if window.error:
            self._failed(window, topic, msgspec.structs.replace(report, error=window.error))
            return
        paths = [window.answers[r].path for r in ranks]
        try:
            got = await measure_in_child(
                paths, self._registry.fingerprint, self._config.measure_timeout_s, to_send=True
            )
            measured = measurement_from_json(got.measurement)
        except LoopoptError as err:
            self._failed(window, topic, msgspec.structs.replace(report, error=str(err)))
            return
        finally:
            await asyncio.to_thread(
                prune_traces, self._job_dir / wire.TRACE_DIR_NAME, self._config.trace_max_bytes, self._config.trace_keep
            )
        now = time.time()
        self.last_success_s = now
        answer = shares_topic(window.window_id, first.first_step)
        self._awaited[answer] = (measured, now + self._config.window_timeout_s)
        self._send(wire.Fetch(answer, self._config.window_timeout_s))
        self._send(wire.Post(topic, report_to_text(msgspec.structs.replace(report, summaries=got.summaries))))
        self._memory.window(
            WindowRow(window.window_id, first.plan_id, first.first_step, first.steps, now, got.measurement)
        )
        for path in paths:
            with contextlib.suppress(OSError):
                self._memory.count("trace_bytes", os.stat(path).st_size)

    def _failed(self, window: Window, topic: str, report: Report) -> None:
        reason = next((a.error.partition(":")[0] for a in window.answers.values() if a.error), "unreadable")
        self._memory.count("trace_failures", labels={"reason": reason})
        self._note(f"window {window.window_id} dropped: {report.error}")
        self._send(wire.Post(topic, report_to_text(report)))

    def on_posted(self, message: wire.Posted) -> None:
        """The leading node's answer: what this node's ranks came to, measured with all the others.

        Raises:
            WireError: it cannot be read; what this node has measured by itself is counted then.
        """
        awaited = self._awaited.pop(message.topic, None)
        if awaited is None:
            return
        self._send(wire.Fetch(message.topic, 0.0))
        measured, _ = awaited
        try:
            measured = replace(measured, ranks=shares_from_text(message.content, [r.rank for r in measured.ranks]))
        except WireError as err:
            self._note(str(err))
        self._count(measured)

    def tick(self, now_s: float) -> None:
        """Give up what has not come: without the other nodes a rank's own times are still right, its skew unknown."""
        for topic, (measured, until_s) in list(self._awaited.items()):
            if now_s > until_s:
                del self._awaited[topic]
                self._note(f"no answer of the leading node under {topic}: skew of that window is not counted")
                self._count(measured)
        for window in [w for w in self._windows.values() if now_s - w.asked_s > self._config.window_timeout_s]:
            del self._windows[window.window_id]
            self._memory.count("trace_failures", labels={"reason": "timeout"})
            self._note(f"window {window.window_id} dropped: answered only by ranks {sorted(window.answers)}")

    def _count(self, measured: WindowMeasurement) -> None:
        for counter in window_counters(measured):
            self._memory.count(counter.key, counter.value, dict(counter.labels))

    def _send(self, message: wire.Message) -> None:
        speaker = self._registry.speaker
        if speaker is not None and speaker.writer is not None:
            speaker.writer.write(wire.encode(message))
