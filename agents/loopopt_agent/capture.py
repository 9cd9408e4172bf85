"""A trace window: whole steps, recorded on this rank, written off the critical path."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from loopopt import wire
from loopopt_agent import torch_api
from loopopt_agent.faults import Faults


class Window:
    """One open window. All methods but the writing run in the training thread.

    Args:
        window_id: name of the window, the same on all ranks.
        first_step: number of the first step inside.
        steps: whole steps to record.
        plan_id: plan the job runs meanwhile.
    """

    def __init__(self, window_id: str, first_step: int, steps: int, plan_id: str) -> None:
        self.window_id = window_id
        self.first_step = first_step
        self.steps = steps
        self.plan_id = plan_id
        self.overhead_us = 0.0
        self.recorder = torch_api.TraceRecorder()

    @property
    def end_step(self) -> int:
        """The window is closed at the boundary before this step."""
        return self.first_step + self.steps


class Capturer:
    """Opens and closes windows at step boundaries; never two at once; yields to the user's own profiler.

    Args:
        rank: this rank.
        trace_dir: `<job>/traces`; the file is `<trace_dir>/<window>/rank<rank>.pt.trace.json`.
        report: called with `WindowDone`, possibly from the writing thread.
    """

    def __init__(self, rank: int, trace_dir: Path, report: Callable[[wire.WindowDone], None], faults: Faults) -> None:
        self._rank = rank
        self._trace_dir = trace_dir
        self._report = report
        self._faults = faults
        self._window: Window | None = None
        self._starting = False
        self._writer: threading.Thread | None = None
        self._remove_watch: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a window is being recorded."""
        return self._window is not None

    def open(self, window_id: str, first_step: int, steps: int, plan_id: str) -> None:
        """Begin a window at this boundary; a reason not to is reported, not raised."""
        if self._window is not None or (self._writer is not None and self._writer.is_alive()):
            self._failed(window_id, first_step, steps, plan_id, "busy: another window is open or being written")
            return
        if torch_api.profiler_is_on():
            self._failed(window_id, first_step, steps, plan_id, "user_profiler: the job is being profiled already")
            return
        began = time.perf_counter_ns()
        if self._remove_watch is None:
            self._remove_watch = torch_api.before_any_profiler(self._yield_to_user)
        try:
            self._faults.hit("capture")
            window = Window(window_id, first_step, steps, plan_id)
            self._starting = True
            window.recorder.start()
            window.recorder.mark(f"loopopt.step#{first_step}")
        except (RuntimeError, OSError, ValueError) as err:
            self._failed(window_id, first_step, steps, plan_id, f"internal: {err}")
            return
        finally:
            self._starting = False
        window.overhead_us += (time.perf_counter_ns() - began) / 1000
        self._window = window

    def on_boundary(self, next_step: int) -> None:
        """Mark the step that begins now, or close the window."""
        window = self._window
        if window is None:
            return
        if next_step < window.end_step:
            window.recorder.mark(f"loopopt.step#{next_step}")
            return
        self._window = None
        began = time.perf_counter_ns()
        window.recorder.end_mark()
        try:
            window.recorder.stop()
        except RuntimeError as err:
            self._failed(window.window_id, window.first_step, window.steps, window.plan_id, f"internal: {err}")
            return
        window.overhead_us += (time.perf_counter_ns() - began) / 1000
        self._writer = threading.Thread(target=self._write, args=(window,), name="loopopt-trace", daemon=True)
        self._writer.start()

    def abandon(self, reason: str) -> None:
        """Close an open window without a file."""
        window, self._window = self._window, None
        if window is None:
            return
        try:
            window.recorder.end_mark()
            window.recorder.stop()
        except RuntimeError:
            pass  # it was stopped by somebody else, which is all we want
        self._failed(window.window_id, window.first_step, window.steps, window.plan_id, reason)

    def finish(self, timeout_s: float) -> None:
        """Wait for a file that is being written (at the end of the process)."""
        if self._writer is not None:
            self._writer.join(timeout_s)

    def _yield_to_user(self) -> None:
        if not self._starting:
            self.abandon("user_profiler: the job started a profiler of its own")

    def _write(self, window: Window) -> None:
        final = self._trace_dir / window.window_id / f"rank{self._rank}.pt.trace.json"
        partial = final.with_name(f".{final.name}.{os.getpid()}.tmp")
        error = ""
        try:
            self._faults.hit("write")
            final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            window.recorder.write(str(partial))
            if not partial.exists() or partial.stat().st_size == 0:
                error = f"disk: nothing could be written to {partial}"
            else:
                if self._faults.wants("torn"):
                    os.truncate(partial, partial.stat().st_size // 2)
                os.replace(partial, final)
        except (OSError, RuntimeError) as err:
            error = f"disk: {err}"
        if error:
            partial.unlink(missing_ok=True) if partial.parent.exists() else None
            self._failed(window.window_id, window.first_step, window.steps, window.plan_id, error)
            return
        self._report(
            wire.WindowDone(
                rank=self._rank,
                window_id=window.window_id,
                first_step=window.first_step,
                steps=window.steps,
                plan_id=window.plan_id,
                path=str(final),
                overhead_us=window.overhead_us,
            )
        )

    def _failed(self, window_id: str, first_step: int, steps: int, plan_id: str, error: str) -> None:
        self._report(
            wire.WindowDone(
                rank=self._rank,
                window_id=window_id,
                first_step=first_step,
                steps=steps,
                plan_id=plan_id,
                error=error,
            )
        )
