"""The SQLite file: its tables, where it lies, and transactions on it."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hessianlens.errors import InputError, expect

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


class StoreLost(InputError):
    """The file of a store was deleted or replaced while it was open; the message names the copy of what it held."""


Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """What distinguishes one file from another at the same path; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def rescue(connection: sqlite3.Connection, path: Path) -> Path:
    """Copy what an open connection still sees into a new file, beside the old one if that can be."""
    refusals = []
    for place in _places(path):
        try:
            with closing(sqlite3.connect(place)) as copy:
                connection.backup(copy)
                copy.executescript("DELETE FROM leases; DELETE FROM owners;")  # nobody works on the copy
                copy.execute("PRAGMA journal_mode = DELETE")
            return place
        except (OSError, sqlite3.Error) as error:
            place.unlink(missing_ok=True)
            refusals.append(str(error))
    raise StoreLost(
        f"store: {path} was deleted or replaced during the run, and what it held could not be saved "
        f"({'; '.join(refusals) or 'no directory to write to'})."
    )


def _places(path: Path) -> Iterator[Path]:
    for folder in (path.absolute().parent, Path(tempfile.gettempdir())):
        if folder.is_dir():
            numbers = (f"-{number}" if number else "" for number in range(1000))
            names = (folder / f"{path.stem}.rescued{number}{path.suffix}" for number in numbers)
            yield next(name for name in names if not name.exists())


WAIT_SECONDS = 20.0
"""How long to wait for another process that is writing."""


def connect(path: Path, readonly: bool, wait: float = WAIT_SECONDS) -> sqlite3.Connection:
    """A connection whose every commit is on the disk when it returns."""
    _check_place(path, readonly)
    with clear_errors(path):
        try:
            return _connected(path, readonly, wait)
        except sqlite3.OperationalError as error:
            if not (readonly and "readonly" in str(error)):
                raise
            _roll_back(path, wait)
            return _connected(path, readonly, wait)


def _connected(path: Path, readonly: bool, wait: float) -> sqlite3.Connection:
    connection = _opened(path, "ro" if readonly else "rwc", wait)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = FULL")
        prepare(connection, path)
        if not readonly:
            # Commits in a third of the time of a rollback journal; a file system that cannot do it keeps that.
            connection.execute("PRAGMA journal_mode = WAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path, mode: str, wait: float) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=wait, isolation_level=None)


def _roll_back(path: Path, wait: float) -> None:
    """Undo what a killed process had begun to write, which a reader may not."""
    connection = _opened(path, "rw", wait)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        connection.close()


def disconnect(connection: sqlite3.Connection, readonly: bool) -> None:
    """Close, and leave one plain file behind that can be copied, and read where nothing may be written."""
    if not readonly:
        with suppress(sqlite3.OperationalError):  # another process has it open, and will do the same
            connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def _check_place(path: Path, readonly: bool) -> None:
    expect(not path.is_dir(), f"store: got the directory {path}, expected a file; name one inside it.")
    if readonly:
        expect(path.is_file(), f"store: got {path}, which does not exist; run `hessianlens reproduce` first.")
    parent = path.absolute().parent
    expect(parent.is_dir(), f"store: got {path}, but there is no directory {parent}; make it first.")


@contextmanager
def clear_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into what the user can do about them."""
    try:
        yield
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # even a message may quote bytes that are no text
        said = " ".join(str(error).split())[:200]
        raise InputError(f"store: {path} cannot be used ({said}); {_remedy(str(error))}") from error


def _remedy(message: str) -> str:
    remedies = {
        "not a database": "expected a store of hessianlens; name another file with --store.",
        "malformed": "the file is damaged; use a copy of it, or delete it to measure again.",
        "readonly": "expected a file this user may write; change its rights or name another with --store.",
        "unable to open": "expected a file this user may read and write; change the rights of it and of its directory.",
        "locked": "another process is writing to it; wait for that to end, or name another file with --store.",
        "full": "there is no space left on its disk; every cell finished so far is kept.",
    }
    for part, remedy in remedies.items():
        if part in message:
            return remedy
    return "expected a store of hessianlens on a disk that works; name another file with --store."
