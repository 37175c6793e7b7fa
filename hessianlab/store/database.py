"""Opening an SQLite file for durable writing, and what to say when SQLite refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hessianlab.store.schema import prepare
from hessianlens.errors import InputError, expect

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
