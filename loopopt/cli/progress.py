"""Live progress of the demo, from the daemon's status."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from loopopt.cli.background import Watcher
from loopopt.report.summary import Summary, summarize
from loopopt.report.units import seconds

_OBSERVED_STEPS = 20
"""A job that can only be observed is shown for so long."""


class Progress:
    """A bar on a terminal; a line whenever something changes elsewhere.

    Args:
        console: where to show it.
        steps: training steps of the job; None to end the job when the loop has decided.
        limit_s: or after this many seconds.

    Attributes:
        status_at_end: the daemon's status when the job was ended; None if it was left to end by itself.
    """

    def __init__(self, console: Console, steps: int | None, limit_s: float) -> None:
        self.status_at_end: dict[str, Any] | None = None
        self._console = console
        self._steps = steps
        self._end_s = time.monotonic() + limit_s
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("step {task.fields[step]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=steps, step=0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = ""

    def follow(self, watcher: Watcher) -> None:
        """Show what the watcher sees until `stop`."""
        self._bar.start()
        self._thread = threading.Thread(target=self._run, args=(watcher,), name="progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take the bar away."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._bar.stop()

    def _run(self, watcher: Watcher) -> None:
        while not self._stop.wait(0.5):
            summary = summarize(watcher.latest)
            told = describe(summary)
            self._bar.update(self._task, completed=summary.step, step=summary.step, description=told)
            if not self._console.is_terminal and told != self._said:
                self._said = told
                self._console.print(f"step {summary.step}: {told}")
            decided = summary.phase == "watching" or (summary.phase == "observing" and summary.step >= _OBSERVED_STEPS)
            if self._steps is None and (decided or time.monotonic() > self._end_s):
                self.status_at_end = dict(watcher.latest)
                # Sent to ourselves, it is passed on to the job like any other.
                os.kill(os.getpid(), signal.SIGTERM)
                return


def describe(summary: Summary) -> str:
    """The loop's state in a few words."""
    if not summary.world_size:
        return "starting the job (compiling)"
    words = [summary.phase.replace("_", " ") or "running"]
    if summary.trials and summary.trials[-1].verdict == "running":
        words.append(f"trying “{summary.trials[-1].label}”")
    elif summary.gain is not None:
        words.append(f"“{summary.after.label}”")
    if summary.before.step_us is not None:
        words.append(f"was {seconds(summary.before.step_us)} a step")
    return ", ".join(words)
