"""The timing table of a job that is not running, from the traces it has left in its directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from loopopt import wire
from loopopt.errors import LoopoptError, TraceError, WireError
from loopopt.offline.analyze import analyze
from loopopt.store import Store
from loopopt.timing import TimingTable

_MOST_WINDOWS = 4
"""So many of the newest windows are read: older ones tell of a job that has changed since."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What became of it.

    Attributes:
        before: digest of the table that was kept, "" if none was.
        after: digest of the table kept now; equal to `before` if the traces tell nothing new, "" if there is none.
        windows: names of the windows it was made from, newest first.
        notes: windows that were left out, and why.
    """

    before: str
    after: str
    windows: tuple[str, ...]
    notes: tuple[str, ...]


def rebuild_table(job_dir: Path, now_s: float, progress: Callable[[int, int], None] = lambda done, of: None) -> Rebuilt:
    """Measure the kept traces again and make their table the one that the next start finds.

    The newest window wins; what only older ones show is added. A window without a trace of every rank is left out:
    without the others no transfer can be told from waiting.

    Args:
        job_dir: the job's directory.
        now_s: seconds since 1970, kept with the table.
        progress: called with (windows done, windows in all).

    Raises:
        StoreError: the job's state cannot be read or written.
    """
    folders = _windows(job_dir / wire.TRACE_DIR_NAME)[:_MOST_WINDOWS]
    if not folders and not (job_dir / wire.STATE_NAME).exists():
        return Rebuilt("", "", (), ())
    with Store.open(job_dir / wire.STATE_NAME) as store:
        before, older = store.latest_table() or ("", None)
        told = store.get_state("fingerprint") or (older or {}).get("fingerprint") or {}
        table: TimingTable | None = None
        used, notes = [], []
        for done, folder in enumerate(folders):
            progress(done, len(folders))
            try:
                found = _table_of(folder, told)
            except LoopoptError as err:
                notes.append(f"{folder.name}: {err}")
                continue
            table = found if table is None else table.completed(found)
            used.append(folder.name)
        progress(len(folders), len(folders))
        if table is None:
            return Rebuilt(before, before, (), tuple(notes))
        if older is not None:
            try:
                table = table.completed(TimingTable.from_json(older))
            except WireError as err:
                notes.append(f"the table kept before: {err}")
        if table.digest != before:
            store.put_table(table.digest, table.to_json(), now_s)
        return Rebuilt(before, table.digest, tuple(used), tuple(notes))


def _windows(traces: Path) -> list[Path]:
    """Window folders, the newest first."""
    try:
        folders = [p for p in traces.iterdir() if p.is_dir() and not p.name.startswith(".")]
        return sorted(folders, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True)
    except FileNotFoundError:
        return []


def _table_of(folder: Path, told: Mapping[str, str]) -> TimingTable:
    analysis = analyze([os.fspath(folder)])
    if analysis.failed:
        raise TraceError(analysis.failed[0].path, analysis.failed[0].reason)
    run = analysis.runs[0]
    ranks = len(run.files)
    if len(analysis.runs) > 1 or (run.world_size and ranks < run.world_size):
        raise TraceError(str(folder), f"traces of {ranks} of {run.world_size} ranks: the others are missing")
    table = run.measurement.table
    return replace(table, fingerprint=dict(told)) if told else table
