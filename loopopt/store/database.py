"""The daemon's memory: one SQLite file that survives a kill -9 at any point.

A call that writes returns when its row is committed; a process killed afterwards finds it again. State,
windows, trials and tables are also synced to the disk (they survive a power cut); step samples and
counters outside a `batch` are not, as they come often and a lost second of them does no harm.

One `Store` may be used from several threads (the exporter reads while the daemon writes).
"""

from __future__ import annotations

import math
import sqlite3
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from loopopt.errors import StoreError
from loopopt.store import codec, opening
from loopopt.store.records import VERDICTS, CounterRow, HistogramRow, StepRun, TrialRow, WindowRow

DEFAULT_MAX_STEP_ROWS: Final = 20_000
STEPS_PER_ROW: Final = 512
"""A run of steps is continued in a new row after this many, so that appending stays cheap."""

_TRIAL_COLUMNS: Final = tuple(f.name for f in fields(TrialRow))


class Store:
    """State, windows, trials, tables, step samples and counters of one job.

    Attributes:
        path: the database file.
        notes: what had to be repaired on opening, one sentence each, for the log and the status page.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, notes: tuple[str, ...], max_step_rows: int) -> None:
        """Use `open`."""
        self.path = path
        self.notes = notes
        self._connection = connection
        self._max_step_rows = max_step_rows
        self._lock = threading.RLock()
        self._depth = 0
        self._closed = False

    @classmethod
    def open(cls, path: Path, max_step_rows: int = DEFAULT_MAX_STEP_ROWS) -> Store:
        """Open the file, creating it and its directory if needed.

        A damaged file is moved aside to ``<name>.corrupt-<n>`` and said so in `notes`.

        Args:
            path: the database file.
            max_step_rows: rows of step samples kept (each holds up to `STEPS_PER_ROW` steps of one rank).

        Raises:
            StoreError: the path cannot be read or written, or the file is of a newer release.
        """
        connection, notes = opening.open_database(path)
        return cls(path, connection, notes, max_step_rows)

    def close(self) -> None:
        """Release the file. Further calls are `StoreError`s; closing twice is nothing."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def batch(self, durable: bool = True) -> Iterator[None]:
        """Make all writes inside one transaction: all of them happen, or (on an exception) none.

        Other threads wait meanwhile, so do no slow work inside. Batches nest; the outermost counts.

        Args:
            durable: also wait until the disk has it.

        Raises:
            StoreError: the disk is full, read-only or fails; nothing was written.
        """
        with self._lock:
            if self._depth:
                yield  # the outer batch commits
                return
            with self._errors():
                # May not be changed inside a transaction.
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._connection.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield
                with self._errors():
                    self._connection.execute("COMMIT")
            except BaseException:
                self._rollback()
                raise
            finally:
                self._depth = 0

    # --- job state -----------------------------------------------------------------------------------

    def get_state(self, key: str) -> dict[str, Any] | None:
        """The value last set under a key, or None."""
        rows = self._read("SELECT value FROM state WHERE key = ?", (key,))
        return codec.from_text(rows[0][0]) if rows else None

    def set_state(self, key: str, value: Mapping[str, Any]) -> None:
        """Replace the value under a key, atomically and durably.

        Raises:
            StoreError: not written (disk full, ...), or `value` has no JSON form.
        """
        text = codec.to_text(dict(value), f"{self.path}: state {key!r}")
        with self.batch():
            self._write(
                "INSERT INTO state VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, text)
            )

    # --- windows -------------------------------------------------------------------------------------

    def add_window(self, row: WindowRow) -> None:
        """Add a measured window; a window of the same id is replaced."""
        blob = codec.to_blob(row.measurement_json, f"{self.path}: window {row.window_id!r}")
        with self.batch():
            self._write("DELETE FROM windows WHERE window_id = ?", (row.window_id,))
            self._write(
                "INSERT INTO windows (window_id, plan_id, first_step, steps, created_s, measurement) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (row.window_id, row.plan_id, row.first_step, row.steps, row.created_s, blob),
            )

    def latest_windows(self, n: int) -> tuple[WindowRow, ...]:
        """The `n` windows added last, newest first."""
        return self._windows("ORDER BY seq DESC LIMIT ?", (n,))

    def window(self, window_id: str) -> WindowRow | None:
        """A window by its id, or None if there is none (any more)."""
        found = self._windows("WHERE window_id = ?", (window_id,))
        return found[0] if found else None

    def _windows(self, clause: str, values: tuple[Any, ...]) -> tuple[WindowRow, ...]:
        rows = self._read(
            f"SELECT window_id, plan_id, first_step, steps, created_s, measurement FROM windows {clause}", values
        )
        return tuple(
            WindowRow(window_id, plan_id, first_step, steps, created_s, self._content(blob, f"window {window_id!r}"))
            for window_id, plan_id, first_step, steps, created_s, blob in rows
        )

    # --- trials --------------------------------------------------------------------------------------

    def add_trial(self, row: TrialRow) -> None:
        """Add a trial.

        Raises:
            StoreError: a trial of this id exists, or the verdict is none of `Verdict`.
        """
        values = self._trial_values(row)
        marks = ", ".join("?" * len(values))
        with self.batch():
            self._write(f"INSERT INTO trials ({', '.join(_TRIAL_COLUMNS)}) VALUES ({marks})", values)

    def update_trial(self, row: TrialRow) -> None:
        """Replace the trial of the same id.

        Raises:
            StoreError: there is none, or the verdict is none of `Verdict`.
        """
        values = self._trial_values(row)
        settings = ", ".join(f"{name} = ?" for name in _TRIAL_COLUMNS)
        with self.batch():
            if not self._write(f"UPDATE trials SET {settings} WHERE trial_id = ?", (*values, row.trial_id)):
                raise StoreError(f"{self.path}: no trial {row.trial_id!r} to update; add it first")

    def trials(self) -> tuple[TrialRow, ...]:
        """All trials, in the order they were added."""
        rows = self._read(f"SELECT {', '.join(_TRIAL_COLUMNS)} FROM trials ORDER BY seq")
        named = [dict(zip(_TRIAL_COLUMNS, row, strict=True)) for row in rows]
        return tuple(TrialRow(**{**values, "knobs": codec.from_text(values["knobs"])}) for values in named)

    def _trial_values(self, row: TrialRow) -> tuple[Any, ...]:
        if row.verdict not in VERDICTS:
            raise StoreError(
                f"{self.path}: trial {row.trial_id!r}: verdict {row.verdict!r} is none of {sorted(VERDICTS)}"
            )
        knobs = codec.to_text(row.knobs, f"{self.path}: knobs of trial {row.trial_id!r}")
        return tuple(knobs if f.name == "knobs" else getattr(row, f.name) for f in fields(row))

    # --- timing tables -------------------------------------------------------------------------------

    def put_table(self, digest: str, content: Mapping[str, Any], created_s: float) -> None:
        """Keep a timing table; putting a known digest again makes it the latest.

        Args:
            digest: the table's content hash.
            content: the table's plain JSON values.
            created_s: seconds since 1970.
        """
        blob = codec.to_blob(dict(content), f"{self.path}: table {digest}")
        with self.batch():
            self._write("DELETE FROM tables WHERE digest = ?", (digest,))
            self._write("INSERT INTO tables (digest, created_s, content) VALUES (?, ?, ?)", (digest, created_s, blob))

    def table(self, digest: str) -> dict[str, Any] | None:
        """A timing table's JSON values by digest, or None."""
        rows = self._read("SELECT content FROM tables WHERE digest = ?", (digest,))
        return self._content(rows[0][0], f"table {digest}") if rows else None

    def latest_table(self) -> tuple[str, dict[str, Any]] | None:
        """Digest and JSON values of the table put last, or None."""
        rows = self._read("SELECT digest, content FROM tables ORDER BY seq DESC LIMIT 1")
        return (rows[0][0], self._content(rows[0][1], f"table {rows[0][0]}")) if rows else None

    # --- step samples --------------------------------------------------------------------------------

    def add_steps(
        self, rank: int, first_step: int, plan_id: str, kind: str, durations_us: Sequence[float], attempt: int = 0
    ) -> None:
        """Add durations of consecutive steps of one rank; the oldest rows beyond the cap are deleted.

        Steps that go on where the rank's last row ended, under the same plan, are appended to that row.

        Args:
            rank: global rank.
            first_step: number of the first step.
            plan_id: plan they ran under.
            kind: "plain", "traced" or "compiling".
            durations_us: one per step, microseconds.
            attempt: the launcher's restart count.
        """
        if not durations_us:
            return
        segment = (rank, attempt, plan_id, kind)
        with self.batch(durable=False):
            last = self._read(
                "SELECT seq, first_step, count, durations, rank, attempt, plan_id, kind FROM steps "
                "WHERE rank = ? ORDER BY seq DESC LIMIT 1",
                (rank,),
            )
            left = list(durations_us)
            if last:
                seq, start, count, blob, *of = last[0]
                if tuple(of) == segment and start + count == first_step:
                    fits = left[: max(0, STEPS_PER_ROW - count)]
                    self._write(
                        "UPDATE steps SET count = ?, durations = ? WHERE seq = ?",
                        (count + len(fits), blob + codec.pack_floats(fits), seq),
                    )
                    left = left[len(fits) :]
                    first_step += len(fits)
            for offset in range(0, len(left), STEPS_PER_ROW):
                part = left[offset : offset + STEPS_PER_ROW]
                self._write(
                    "INSERT INTO steps (rank, attempt, first_step, count, plan_id, kind, durations) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (rank, attempt, first_step + offset, len(part), plan_id, kind, codec.pack_floats(part)),
                )
            self._cap_steps(self._max_step_rows)

    def steps_since(
        self,
        first_step: int = 0,
        rank: int | None = None,
        plan_id: str | None = None,
        kind: str | None = None,
        attempt: int | None = None,
    ) -> tuple[StepRun, ...]:
        """Step samples from `first_step` on, in the order they came; None means any.

        Runs that begin earlier are cut to begin at `first_step`.
        """
        wanted = {"rank": rank, "plan_id": plan_id, "kind": kind, "attempt": attempt}
        named = {name: value for name, value in wanted.items() if value is not None}
        clause = "".join(f" AND {name} = ?" for name in named)
        rows = self._read(
            "SELECT rank, attempt, first_step, plan_id, kind, durations FROM steps "
            f"WHERE first_step + count > ?{clause} ORDER BY seq",
            (first_step, *named.values()),
        )
        runs = []
        for rank_, attempt_, start, plan, kind_, blob in rows:
            skip = max(0, first_step - start)
            runs.append(StepRun(rank_, attempt_, start + skip, plan, kind_, codec.unpack_floats(blob)[skip:]))
        return tuple(runs)

    def _cap_steps(self, keep: int) -> None:
        self._write(
            "DELETE FROM steps WHERE seq <= (SELECT seq FROM steps ORDER BY seq DESC LIMIT 1 OFFSET ?)", (keep,)
        )

    # --- counters and histograms -----------------------------------------------------------------------

    def increment(self, name: str, labels: Mapping[str, str] | None = None, by: float = 1.0) -> None:
        """Raise a counter; `by=0` makes it known.

        Raises:
            StoreError: `by` is negative or not finite.
        """
        if not (math.isfinite(by) and by >= 0):
            raise StoreError(f"{self.path}: counter {name!r} cannot be raised by {by!r}: counters only rise")
        with self.batch(durable=False):
            self._write(
                "INSERT INTO counters (name, labels, value) VALUES (?, ?, ?) "
                "ON CONFLICT (name, labels) DO UPDATE SET value = value + excluded.value",
                (name, self._label_text(labels), by),
            )

    def counters(self) -> tuple[CounterRow, ...]:
        """All counters, those known longest first (the order does not change when they rise)."""
        rows = self._read("SELECT name, labels, value FROM counters ORDER BY seq")
        return tuple(CounterRow(name, codec.from_text(labels), value) for name, labels, value in rows)

    def observe(
        self,
        name: str,
        values: Sequence[float],
        bounds: Sequence[float],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add observations to a histogram.

        If it was kept with other bounds (by another release) it starts over, which readers of a
        histogram take for a restart.

        Args:
            name: as the reader will look for it.
            values: observations; a value equal to a bound counts in that bound's bucket.
            bounds: upper bounds, strictly rising, without infinity.
            labels: label values by name.

        Raises:
            StoreError: the bounds do not rise, or a value is not finite.
        """
        if not bounds or not all(a < b for a, b in pairwise(bounds)):
            raise StoreError(f"{self.path}: histogram {name!r}: bucket bounds must rise, got {list(bounds)}")
        if not all(math.isfinite(value) for value in values):
            raise StoreError(f"{self.path}: histogram {name!r}: observations must be finite, got {list(values)}")
        label_text = self._label_text(labels)
        bounds_text = codec.to_text([float(b) for b in bounds], name)
        with self.batch(durable=False):
            rows = self._read(
                "SELECT bounds, counts, total FROM histograms WHERE name = ? AND labels = ?", (name, label_text)
            )
            known = bool(rows) and rows[0][0] == bounds_text
            counts = codec.from_text(rows[0][1]) if known else [0] * (len(bounds) + 1)
            total = float(rows[0][2]) if known else 0.0
            for value in values:
                counts[bisect_left(bounds, value)] += 1
            self._write(
                "INSERT INTO histograms (name, labels, bounds, counts, total) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (name, labels) DO UPDATE SET "
                "bounds = excluded.bounds, counts = excluded.counts, total = excluded.total",
                (name, label_text, bounds_text, codec.to_text(counts, name), total + math.fsum(values)),
            )

    def histograms(self) -> tuple[HistogramRow, ...]:
        """All histograms, those known longest first."""
        rows = self._read("SELECT name, labels, bounds, counts, total FROM histograms ORDER BY seq")
        return tuple(
            HistogramRow(
                name, codec.from_text(labels), tuple(codec.from_text(bounds)), tuple(codec.from_text(counts)), total
            )
            for name, labels, bounds, counts, total in rows
        )

    def _label_text(self, labels: Mapping[str, str] | None) -> str:
        return codec.to_text(dict(labels or {}), f"{self.path}: labels")

    # --- size ----------------------------------------------------------------------------------------

    def size_bytes(self) -> int:
        """Bytes of the database in use, without free pages and the write-ahead log."""
        with self._lock:
            pages, free, page = (
                int(self._read(f"PRAGMA {name}")[0][0]) for name in ("page_count", "freelist_count", "page_size")
            )
        return (pages - free) * page

    def prune(self, max_bytes: int, max_windows: int) -> int:
        """Keep the file within bounds by forgetting the oldest.

        First windows beyond `max_windows` go; then, while the file is too large, step samples (half of
        them at a time), windows but the newest, tables that no trial and no later table refers to. State,
        trials and counters always stay: they are small, and the loop stands on them.

        Returns:
            Bytes in use afterwards (above `max_bytes` only if nothing more may be forgotten).

        Raises:
            StoreError: the disk fails.
        """
        with self._lock:
            self._keep_newest("windows", max_windows)
            while self.size_bytes() > max_bytes and self._forget_some():
                pass
            with self._errors():
                # Gives the free pages, and then the log, back to the file system. (`execute` would step the
                # first pragma once, which frees one page.)
                self._connection.executescript("PRAGMA incremental_vacuum")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            return self.size_bytes()

    def _forget_some(self) -> bool:
        """Delete a share of what matters least; False if there is nothing left to delete."""
        steps = self._count("steps")
        if steps > 1:
            with self.batch(durable=False):
                self._cap_steps(steps // 2)
            return True
        windows = self._count("windows")
        if windows > 1:
            return self._keep_newest("windows", max(1, windows * 3 // 4))
        with self.batch(durable=False):
            return (
                self._write(
                    "DELETE FROM tables WHERE seq < (SELECT max(seq) FROM tables) "
                    "AND digest NOT IN (SELECT table_digest FROM trials WHERE table_digest IS NOT NULL)"
                )
                > 0
            )

    def _keep_newest(self, table: str, keep: int) -> bool:
        with self.batch(durable=False):
            deleted = self._write(
                f"DELETE FROM {table} WHERE seq <= (SELECT seq FROM {table} ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                (keep,),
            )
        return deleted > 0

    def _count(self, table: str) -> int:
        return int(self._read(f"SELECT count(*) FROM {table}")[0][0])

    # --- the door to SQLite --------------------------------------------------------------------------

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._connection.execute(sql, values).fetchall()

    def _write(self, sql: str, values: tuple[Any, ...] = ()) -> int:
        """Run one statement inside the current batch; returns the number of rows it changed."""
        if not self._connection.in_transaction and not self._closed:
            # A full disk ends the transaction: what follows must not be written piecemeal.
            raise StoreError(f"{self.path}: an earlier write of this batch failed; repeat the whole batch")
        with self._errors():
            return self._connection.execute(sql, values).rowcount

    def _content(self, blob: bytes, what: str) -> dict[str, Any]:
        return codec.from_blob(blob, f"{self.path}: {what}")

    def _rollback(self) -> None:
        # After some errors (disk full) SQLite has rolled back by itself.
        if not self._closed and self._connection.in_transaction:
            with self._errors():
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"{self.path}: the store was closed")
        try:
            yield
        except sqlite3.Error as err:
            raise StoreError(opening.describe(self.path, err)) from err
