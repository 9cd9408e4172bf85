"""A refresh of one job: a new round of its daemon, or a table from the traces it has left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loopopt.cli import background, jobs
from loopopt.errors import DaemonError, LoopoptError
from loopopt.report.summary import summarize
from loopopt.report.units import percent, seconds

_EVERY_S = 0.5
_SILENT_S = 20.0
"""A daemon that does not answer for so long is gone."""

Tell = Callable[[str], None]
"""Called with a few words on how far it is."""

FAILED = frozenset({"failed", "timeout"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a refresh did to one job.

    Attributes:
        job: name.
        dir: job directory.
        outcome: "changed" or "confirmed" (the plan in force), "measured" (a job that is only observed),
            "rebuilt" or "unchanged" (the table of a job that does not run), "skipped", "timeout" or "failed".
        detail: in words.
        plan_before, plan_after: names of the plans; empty if the job does not run.
        step_us: median step time of the job's own schedule in this round, microseconds; None if not measured.
        gain: share of it that the plan in force saves; None on its own schedule.
        table_before, table_after: digests of the timing tables, "" if there is none.
        seconds: how long it took.
    """

    job: str
    dir: str
    outcome: str
    detail: str
    plan_before: str = ""
    plan_after: str = ""
    step_us: float | None = None
    gain: float | None = None
    table_before: str = ""
    table_after: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether it did not do what was asked."""
        return self.outcome in FAILED

    def line(self) -> str:
        """The job in one line."""
        return f"{self.job}: {self.outcome}: {self.detail} ({self.seconds:.0f} s)"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def refresh_job(job_dir: Path, timeout_s: float, tell: Tell) -> Outcome:
    """Refresh one job, running or not. What goes wrong is in the outcome, never raised.

    Args:
        job_dir: its directory.
        timeout_s: how long a running job may take.
        tell: progress.
    """
    began = time.monotonic()
    try:
        serve = _refresh_served if jobs.daemon_answers(job_dir) else _refresh_kept
        found = serve(job_dir, began + timeout_s, tell)
    except LoopoptError as err:
        found = {"outcome": "failed", "detail": str(err)}
    return Outcome(
        **{"job": job_dir.name, "dir": str(job_dir)} | found | {"seconds": round(time.monotonic() - began, 1)}
    )


def _refresh_kept(job_dir: Path, deadline_s: float, tell: Tell) -> dict[str, Any]:
    from loopopt.cli import processes
    from loopopt.offline.rebuild import rebuild_table

    if any(rank.job_dir == job_dir for rank in processes.armed_ranks()):
        return {"outcome": "failed", "detail": f"it runs without a daemon: start one with `loopopt attach {job_dir}`"}
    rebuilt = rebuild_table(job_dir, time.time(), lambda done, of: tell(f"measuring window {done} of {of}"))
    found = {"table_before": rebuilt.before, "table_after": rebuilt.after}
    left_out = f"; left out: {'; '.join(rebuilt.notes)}" if rebuilt.notes else ""
    if not rebuilt.windows:
        if rebuilt.notes:
            return found | {"outcome": "failed", "detail": f"none of its windows can be used{left_out}"}
        return found | {"outcome": "skipped", "detail": "it does not run, and has no traces"}
    made = f"not running, {len(rebuilt.windows)} kept windows"
    if rebuilt.before == rebuilt.after:
        return found | {"outcome": "unchanged", "detail": f"{made}: table {rebuilt.after} stays{left_out}"}
    return found | {"outcome": "rebuilt", "detail": f"{made}: table {rebuilt.after} for the next start{left_out}"}


def _refresh_served(job_dir: Path, deadline_s: float, tell: Tell) -> dict[str, Any]:
    before = background.ask(job_dir, "status")
    known = {"job": str(before.get("job") or job_dir.name), "table_before": _digest(job_dir)}
    known["plan_before"] = str(before.get("active_label") or "")
    order = background.ask(job_dir, "refresh")
    if "skipped" in order:
        return known | {"outcome": "skipped", "detail": str(order["skipped"])}
    status = _wait(job_dir, order, before, deadline_s, tell)
    known["table_after"] = _digest(job_dir)
    known["plan_after"] = str(status.get("active_label") or "")
    if not _is_done(status, order):
        words = f"not decided in time, the daemon goes on by itself (phase {status.get('phase')})"
        return known | {"outcome": "timeout", "detail": words}
    if status.get("mode") == "observe":
        if order.get("phase") != "observing":
            return known | {"outcome": "failed", "detail": f"given up: only observing: {status.get('reason')}"}
        return known | {"outcome": "measured", "detail": f"measured again; only observed: {status.get('reason')}"}
    return known | _decision(status, str(before.get("active_plan")), known)


def _decision(status: Mapping[str, Any], plan_before: str, known: Mapping[str, Any]) -> dict[str, Any]:
    summary = summarize(status)
    same = status.get("active_plan") == plan_before
    after = known["plan_after"]
    found = {"outcome": "confirmed" if same else "changed", "step_us": summary.before.step_us, "gain": summary.gain}
    what = f"“{after}” stays" if same else f"“{known['plan_before']}” -> “{after}”"
    if summary.gain is not None:
        what += f", saves {percent(summary.gain)} of {seconds(summary.before.step_us)} a step"
    elif summary.before.step_us is not None:
        what += f", {seconds(summary.before.step_us)} a step"
        if status.get("reason"):
            what += f"; {status['reason']}"
    return found | {"detail": what}


def _is_done(status: Mapping[str, Any], order: Mapping[str, Any]) -> bool:
    if status.get("phase") == "observing":
        if order.get("phase") != "observing":
            return True
        return float(status.get("measured_s") or 0.0) > float(order.get("after_s") or 0.0)
    return bool(status.get("settled")) and int(status.get("round") or 0) > int(order.get("after_round") or 0)


def _wait(
    job_dir: Path, order: Mapping[str, Any], status: dict[str, Any], deadline_s: float, tell: Tell
) -> dict[str, Any]:
    """The status in which the new round is over, or the last one before the deadline.

    Raises:
        DaemonError: the daemon is gone.
    """
    heard_s = time.monotonic()
    while time.monotonic() < deadline_s:
        try:
            status = background.ask(job_dir, "status")
            heard_s = time.monotonic()
        except DaemonError:
            if time.monotonic() - heard_s > _SILENT_S or not job_dir.exists():
                raise DaemonError("the job or its daemon ended during the refresh") from None
        else:
            if status.get("phase") == "released":
                raise DaemonError("detached during the refresh")
            if _is_done(status, order):
                return status
            tell(_words(status))
        time.sleep(_EVERY_S)
    return status


def _words(status: Mapping[str, Any]) -> str:
    trials = [t for t in status.get("trials") or () if t.get("verdict") == "running"]
    under = f", “{trials[-1]['label']}”" if trials and status.get("phase") in ("applying", "trial") else ""
    return f"round {status.get('round')}: {status.get('phase')}{under}"


def _digest(job_dir: Path) -> str:
    return str(background.ask(job_dir, "table", timeout_s=30.0).get("digest") or "")
