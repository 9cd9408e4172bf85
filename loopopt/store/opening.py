"""Opening the database file: settings, integrity check, and setting a damaged file aside."""

from __future__ import annotations

import os
import re
import sqlite3
from pathlib import Path
from typing import Final

from loopopt.errors import StoreError
from loopopt.store import schema

BUSY_TIMEOUT_S: Final = 10.0
"""How long a statement waits for another process's lock."""
KEPT_CORRUPT: Final = 3
"""Damaged files kept for inspection; older ones are deleted, since disk use is capped."""
JOURNAL_LIMIT_BYTES: Final = 4 * 1024 * 1024
"""The write-ahead log is cut back to this after a checkpoint."""

_SIDE_FILES = ("-wal", "-shm")


def open_database(path: Path) -> tuple[sqlite3.Connection, tuple[str, ...]]:
    """Open or create the database.

    A file that SQLite calls damaged is renamed to ``<name>.corrupt-<n>``, with its side files, and an
    empty database takes its place: losing the history is better than losing the loop.

    Returns:
        The connection, in autocommit mode, usable from any thread one at a time; and notes for the user.

    Raises:
        StoreError: the file cannot be opened, created or written, or belongs to something newer or else.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(f"{path}: cannot make its directory ({err.strerror}); check the state directory") from err
    try:
        return _open(path), ()
    except sqlite3.DatabaseError as err:
        if not is_corruption(err):
            raise StoreError(describe(path, err)) from err
        note = _set_aside(path, str(err))
    try:
        return _open(path), (note,)
    except sqlite3.DatabaseError as err:
        raise StoreError(describe(path, err)) from err


def is_corruption(error: sqlite3.Error) -> bool:
    """Whether SQLite says the file's content, not the access to it, is at fault."""
    text = str(error)
    return isinstance(error, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text)


def describe(path: Path, error: sqlite3.Error) -> str:
    """One line for the user: the path, what SQLite said, what to do."""
    text = str(error)
    if "full" in text or "disk I/O" in text:
        advice = "free some space, or check the disk"
    elif "readonly" in text or "unable to open" in text:
        advice = "check that the directory exists and is writable by this user"
    elif "locked" in text:
        advice = "another process holds it; stop the other daemon of this job"
    elif is_corruption(error):
        advice = "the file is damaged; restart the daemon and it is set aside"
    else:
        advice = "check the state directory"
    return f"{path}: {text}; {advice}"


def _open(path: Path) -> sqlite3.Connection:
    # A new file holds measurements of somebody's job: nobody else reads it.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as err:
        raise StoreError(f"{path}: {err.strerror}; check that the state directory is writable by this user") from err
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            # Takes effect only before the first page is written, so it must precede the switch to WAL.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode = str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        if mode.lower() != "wal":
            raise StoreError(
                f"{path}: this file system does not support write-ahead logging (got {mode!r}); use another"
            )
        connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")
        connection.execute("PRAGMA synchronous = FULL")
        verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {verdict}")
        schema.prepare(connection, str(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path, why: str) -> str:
    taken = _corrupt_copies(path)
    target = path.with_name(f"{path.name}.corrupt-{max(taken, default=0) + 1}")
    try:
        # Side files first: a crash in between must not leave an old log beside a new database.
        for suffix in (*_SIDE_FILES, ""):
            side = path.with_name(path.name + suffix)
            if side.exists():
                os.replace(side, target.with_name(target.name + suffix))
        for number in sorted(taken)[: max(0, len(taken) + 1 - KEPT_CORRUPT)]:
            for suffix in ("", *_SIDE_FILES):
                path.with_name(f"{path.name}.corrupt-{number}{suffix}").unlink(missing_ok=True)
    except OSError as err:
        raise StoreError(f"{path}: damaged ({why}) and cannot be moved aside ({err.strerror}); move it away") from err
    return f"{path} was damaged ({why}); it was moved to {target.name} and an empty history was started"


def _corrupt_copies(path: Path) -> set[int]:
    pattern = re.compile(re.escape(path.name) + r"\.corrupt-(\d+)(?:-wal|-shm)?$")
    return {int(found[1]) for entry in path.parent.iterdir() if (found := pattern.match(entry.name))}
