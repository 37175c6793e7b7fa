"""Checksums of rows, and the seal over all rows of a table: they tell a damaged or shortened store from a whole one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hessianlens.errors import InputError

if TYPE_CHECKING:
    from hessianlab.store.store import Store


_MODULUS = 2**256


def checksum(*fields: Any) -> str:
    """SHA-256 of a row's fields, each with its type and length, whatever a damaged file makes of them.

    >>> checksum("a", "bc") == checksum("ab", "c"), checksum(1) == checksum(1.0), checksum(None, 0.5, b"x")[:8]
    (False, False, 'f7396f27')
    """
    digest = hashlib.sha256()
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode("utf-8", "surrogatepass")
        digest.update(f"{type(field).__name__} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def seal(checksums: Iterable[str], count: int = 0, total: str = "0") -> tuple[int, str]:
    """How many rows there are, and the sum of their checksums; begins with those that were sealed before.

    A sum, so that a row is added without a look at the others and in whatever order runs add theirs.

    >>> seal(["ff", "1"]) == seal(["ff"], *seal(["1"])) == (2, "100")
    True
    """
    added = [int(row, 16) for row in checksums]
    return count + len(added), f"{(int(total, 16) + sum(added)) % _MODULUS:x}"


_CELLS = (
    "SELECT key, question, experiment, parameters, digest, libraries, content, rows, arrays, seconds, cells.finished, "
    "cells.checksum FROM cells LEFT JOIN codes ON codes.id = code LEFT JOIN provenances ON provenances.id = provenance"
)
_RUNS = (
    "SELECT runs.id, experiment, preset, config, digest, libraries, content, started, finished, checksum FROM runs "
    "LEFT JOIN codes ON codes.id = code LEFT JOIN provenances ON provenances.id = provenance"
)
_FAILURES = "SELECT run, parameters, message, failed, checksum FROM failures"
_LIST = "SELECT position, key FROM run_cells LEFT JOIN cells ON cells.id = cell WHERE run = ? ORDER BY position"

TABLES = ("cells", "runs", "failures")


def read_cells(store: Store, condition: str = "", values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Cells with their code and provenance, each as it was written."""
    found = store.query(f"{_CELLS} {condition}", values)
    for row in found:
        _check(store, row[-1] == checksum(*row[:-1]), f"a cell of {row[2]!r}")
    return found


def read_runs(store: Store, condition: str = "", values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Runs with their code, provenance and the list of their cells, each as it was written."""
    found = _runs(store, condition, values)
    for row in found:
        what = f"run {row[0]} of {row[1]!r}, its configuration, provenance or list of cells,"
        _check(store, row[-1] == _run_checksum(row), what)
    return found


def read_failures(store: Store, condition: str = "", values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Notes of cells that could not be measured, each as it was written."""
    found = store.query(f"{_FAILURES} {condition}", values)
    for row in found:
        _check(store, row[-1] == checksum(*row[:-1]), f"a failure of run {row[0]}")
    return found


def write_checksum(store: Store, run: int) -> str:
    """Give a run the checksum of what it is now; part of the transaction that changes it."""
    (row,) = _runs(store, "WHERE runs.id = ?", (run,))
    written = _run_checksum(row)
    store.query("UPDATE runs SET checksum = ? WHERE id = ?", (written, run))
    return written


def _runs(store: Store, condition: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """With the list of cells, positions and keys, before the checksum."""
    found = store.query(f"{_RUNS} {condition}", values)
    return [(*row[:-1], tuple(store.query(_LIST, (row[0],))), row[-1]) for row in found]


def _run_checksum(row: tuple[Any, ...]) -> str:
    *fields, listed, _ = row
    return checksum(*fields, *(part for entry in listed for part in entry))


def add_to_seal(store: Store, table: str, added: str, removed: str | None = None) -> None:
    """A row is new, or has another checksum than before; part of the transaction that writes it."""
    ((count, total),) = store.query("SELECT count, total FROM seals WHERE name = ?", (table,))
    if removed is not None:
        count, total = count - 1, f"{(int(total, 16) - int(removed, 16)) % 2**256:x}"
    count, total = seal([added], count, total)
    store.query("UPDATE seals SET count = ?, total = ? WHERE name = ?", (count, total, table))


def seal_anew(store: Store) -> None:
    """After rows were deleted on purpose; part of that transaction."""
    for table in TABLES:
        rows = [row for (row,) in store.query(f"SELECT checksum FROM {table}")]
        store.query("UPDATE seals SET count = ?, total = ? WHERE name = ?", (*seal(rows), table))


def check_whole(store: Store) -> None:
    """Every row is as it was written, and none has gone; `InputError` otherwise."""
    with store.reading():
        ((said,),) = store.query("PRAGMA integrity_check(1)")
        _check(store, said == "ok", f"the file ({' '.join(str(said).split())})")
        _check(store, not store.query("PRAGMA foreign_key_check"), "a row that others refer to")
        seals = {name: (count, total) for name, count, total in store.query("SELECT name, count, total FROM seals")}
        for table, read in zip(TABLES, (read_cells, read_runs, read_failures), strict=True):
            _check(store, seals.get(table) == seal(row[-1] for row in read(store)), f"the number of {table}")


def _check(store: Store, sound: bool, what: str) -> None:
    if not sound:
        raise InputError(
            f"store: {what} in {store.path} is not as it was written; the file is damaged, or another program has "
            "changed it: use a copy of it, or delete it to measure again."
        )
