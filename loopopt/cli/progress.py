"""Live progress of the demo, from the daemon's status."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from loopopt.cli.background import Watcher
from loopopt.report.summary import Summary, summarize
from loopopt.report.units import seconds


class Progress:
    """A bar over the training steps on a terminal; a line whenever something changes elsewhere."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=steps)
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
            self._bar.update(self._task, completed=min(summary.step, self._steps), description=told)
            if not self._console.is_terminal and told != self._said:
                self._said = told
                self._console.print(f"step {summary.step}: {told}")


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
