"""The tables of a store, and how a file is recognised as one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from hessianlens.errors import InputError

APPLICATION = 0x484C454E
"""SQLite's application id: "HLEN"."""

VERSION = 2

_TABLES = """
CREATE TABLE codes (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL, libraries TEXT NOT NULL, UNIQUE (digest, libraries)
);
CREATE TABLE provenances (id INTEGER PRIMARY KEY, content TEXT NOT NULL UNIQUE);
CREATE TABLE cells (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    question TEXT NOT NULL,
    experiment TEXT NOT NULL,
    parameters TEXT NOT NULL,
    code INTEGER NOT NULL REFERENCES codes (id),
    provenance INTEGER NOT NULL REFERENCES provenances (id),
    rows TEXT NOT NULL,
    arrays BLOB,
    seconds REAL NOT NULL,
    checksum TEXT NOT NULL,
    finished TEXT NOT NULL
);
CREATE INDEX cells_by_experiment ON cells (experiment, question);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    experiment TEXT NOT NULL,
    preset TEXT NOT NULL,
    config TEXT NOT NULL,
    code INTEGER NOT NULL REFERENCES codes (id),
    provenance INTEGER NOT NULL REFERENCES provenances (id),
    started TEXT NOT NULL,
    finished TEXT,
    checksum TEXT NOT NULL
);
CREATE TABLE run_cells (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    cell INTEGER NOT NULL REFERENCES cells (id),
    PRIMARY KEY (run, position)
) WITHOUT ROWID;
CREATE INDEX run_cells_by_cell ON run_cells (cell);
CREATE TABLE failures (
    run INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
    parameters TEXT NOT NULL,
    message TEXT NOT NULL,
    failed TEXT NOT NULL,
    checksum TEXT NOT NULL
);
CREATE TABLE seals (name TEXT PRIMARY KEY, count INTEGER NOT NULL, total TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO seals VALUES ('cells', 0, '0'), ('runs', 0, '0'), ('failures', 0, '0');
CREATE TABLE owners (
    id TEXT PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, born REAL NOT NULL, seen REAL NOT NULL
);
CREATE TABLE leases (
    key TEXT PRIMARY KEY, owner TEXT NOT NULL REFERENCES owners (id) ON DELETE CASCADE
) WITHOUT ROWID;
CREATE INDEX leases_by_owner ON leases (owner);
"""
"""The checksum of a row covers what it refers to: a cell's its code and provenance, a run's the list of its cells.

`seals` hold the number and the sum of the checksums of a table. `owners` are runs that are going on, and `leases` the
cells that each has taken in hand; they mean nothing once the run is over.
"""


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables in an empty file; refuse anything that is not a store of this version."""
    application, version = _mark(connection)
    if (application, version) == (0, 0) and _is_empty(connection):
        _create(connection)
        application, version = _mark(connection)
    if application != APPLICATION:
        raise InputError(
            f"store: got {path}, an SQLite file of another program, expected a store of hessianlens; "
            "name another file with --store."
        )
    if version != VERSION:
        raise InputError(
            f"store: got {path} with schema version {version}, expected {VERSION}; use the version of hessianlens "
            "that wrote it, or start a new file with --store."
        )


def _mark(connection: sqlite3.Connection) -> tuple[int, int]:
    return (
        int(connection.execute("PRAGMA application_id").fetchone()[0]),
        int(connection.execute("PRAGMA user_version").fetchone()[0]),
    )


def _is_empty(connection: sqlite3.Connection) -> bool:
    return int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]) == 0


def _create(connection: sqlite3.Connection) -> None:
    """All of it in one transaction, so that a file is either empty or a whole store."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        if _is_empty(connection):  # another process may have been faster
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
