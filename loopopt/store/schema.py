"""The database's schema and its versions.

`PRAGMA user_version` counts the migrations a file has seen; `MIGRATIONS[n]` takes version n to n + 1.
Each runs in one transaction, so a file is always of a whole version. A migration is never edited once
released: a change of schema is a new entry.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from loopopt.errors import StoreError

APPLICATION_ID: Final = 0x6C6F6F70
"""`PRAGMA application_id` of our files ("loop"), so that another program's database is never written to."""

_V1: Final = (
    "CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE windows (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, window_id TEXT NOT NULL UNIQUE, plan_id TEXT NOT NULL,
        first_step INTEGER NOT NULL, steps INTEGER NOT NULL, created_s REAL NOT NULL, measurement BLOB NOT NULL)""",
    """CREATE TABLE trials (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, trial_id TEXT NOT NULL UNIQUE, plan_id TEXT NOT NULL,
        label TEXT NOT NULL, knobs TEXT NOT NULL, table_digest TEXT, started_s REAL NOT NULL, ended_s REAL,
        verdict TEXT NOT NULL, reason TEXT NOT NULL, median_step_us REAL, spread_us REAL, samples INTEGER NOT NULL,
        gain REAL, gain_low REAL, gain_high REAL, predicted_step_us REAL, compile_us REAL NOT NULL,
        exposed_us REAL, communication_us REAL)""",
    """CREATE TABLE tables (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, digest TEXT NOT NULL UNIQUE, created_s REAL NOT NULL,
        content BLOB NOT NULL)""",
    """CREATE TABLE steps (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, rank INTEGER NOT NULL, attempt INTEGER NOT NULL,
        first_step INTEGER NOT NULL, count INTEGER NOT NULL, plan_id TEXT NOT NULL, kind TEXT NOT NULL,
        durations BLOB NOT NULL)""",
    "CREATE INDEX steps_by_rank ON steps (rank, seq)",
    """CREATE TABLE counters (
        seq INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, value REAL NOT NULL,
        UNIQUE (name, labels))""",
    """CREATE TABLE histograms (
        seq INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, bounds TEXT NOT NULL,
        counts TEXT NOT NULL, total REAL NOT NULL, UNIQUE (name, labels))""",
)

MIGRATIONS: Final = (_V1,)
SCHEMA_VERSION: Final = len(MIGRATIONS)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Bring the database to `SCHEMA_VERSION`, creating the tables if it is new.

    Args:
        connection: in autocommit mode (`isolation_level=None`).
        path: for messages.

    Raises:
        StoreError: written by a newer release, or not by loopopt.
    """
    connection.execute("BEGIN IMMEDIATE")  # two processes that start together must not both create
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        application = int(connection.execute("PRAGMA application_id").fetchone()[0])
        tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        if application != APPLICATION_ID and (tables or application):
            raise StoreError(f"{path}: a database of another program; choose another state directory or move it away")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path}: schema version {version} was written by a newer loopopt, this one knows up to "
                f"{SCHEMA_VERSION}; use that release, or move the file away to start with an empty history"
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        if version < SCHEMA_VERSION:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
