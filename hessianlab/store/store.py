"""The store: finished cells in one file, each durable as soon as `put` returns."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from hessianlab.results import FinishedCell, Parameters, Provenance
from hessianlab.store.checksums import add_to_seal, check_whole, checksum, read_cells
from hessianlab.store.code import Code
from hessianlab.store.database import WAIT_SECONDS, StoreLost, clear_errors, connect, disconnect, identity, rescue
from hessianlab.store.encoding import (
    canonical_json,
    cell_key,
    check_storable,
    decode,
    encode_arrays,
    encode_rows,
    question_key,
)
from hessianlens.errors import InputError


def open_store(path: str | Path, readonly: bool = False, wait: float = WAIT_SECONDS) -> Store:
    """Open a store, and make one if the file is missing or empty.

    All of it is read once: a store that is not as it was written is refused.

    Args:
        path: The file.
        readonly: Only read; the file must exist.
        wait: Seconds to wait for another process that is writing.

    >>> import tempfile
    >>> from hessianlab.results import Measurement, collect
    >>> code, provenance = Code("0" * 64, "torch 2"), collect()
    >>> with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "cells.sqlite") as store:
    ...     store.put("fig0", FinishedCell({"sigma": 0.1}, Measurement(({"value": 2.0},)), 0.5), code, provenance)
    ...     found = store.get("fig0", {"sigma": 0.1}, code)
    ...     missing = store.get("fig0", {"sigma": 0.2}, code)
    >>> found.measurement.rows, found.seconds, missing
    (({'value': 2.0},), 0.5, None)
    """
    path = Path(path)
    store = Store(path, connect(path, readonly, wait), readonly)
    try:
        check_whole(store)
    except BaseException:
        store.close()
        raise
    return store


class Store:
    """Finished cells, and the runs they belong to; made by `open_store`, closed by `with` or `close`.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, readonly: bool) -> None:
        self.path = path
        self._connection = connection
        self._readonly = readonly
        self._identity = identity(path)
        self._lost: StoreLost | None = None

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        disconnect(self._connection, self._readonly)

    def get(self, experiment: str, parameters: Parameters, code: Code) -> FinishedCell | None:
        """The finished cell, if this very code has measured it."""
        found = read_cells(self, "WHERE key = ?", (cell_key(experiment, parameters, code),))
        return _cell(found[0]) if found else None

    def put(self, experiment: str, cell: FinishedCell, code: Code, provenance: Provenance) -> None:
        """Keep a finished cell; it is on the disk when this returns, and no longer in anybody's hands."""
        check_storable(experiment, cell.measurement)
        parameters = json.dumps(dict(cell.parameters))  # as they are ordered: so they come back
        rows, arrays = encode_rows(cell.measurement.rows), encode_arrays(cell.measurement.arrays)
        key, question = cell_key(experiment, cell.parameters, code), question_key(experiment, cell.parameters)
        seconds, finished, content = float(cell.seconds), now(), _content(provenance)
        fields = (code.digest, code.libraries, content)
        written = checksum(key, question, experiment, parameters, *fields, rows, arrays, seconds, finished)
        with self.transaction():
            # Two runs at once may measure the same cell; by construction they measure the same numbers.
            if not self.query("SELECT 1 FROM cells WHERE key = ?", (key,)):
                ids = self.code_id(code), self.provenance_id(provenance)
                self.query(
                    "INSERT INTO cells (key, question, experiment, parameters, code, provenance, rows, arrays, "
                    "seconds, checksum, finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (key, question, experiment, parameters, *ids, rows, arrays, seconds, written, finished),
                )
                add_to_seal(self, "cells", written)
            self.query("DELETE FROM leases WHERE key = ?", (key,))

    def cells(self, keys: Iterable[str]) -> Iterator[FinishedCell]:
        """The cells with these keys, in this order."""
        for key in keys:
            (found,) = read_cells(self, "WHERE key = ?", (key,))
            yield _cell(found)

    def known(self, experiment: str, code: Code) -> frozenset[str]:
        """Keys of all cells of an experiment that this code has measured."""
        found = self.query(
            "SELECT key FROM cells JOIN codes ON codes.id = code WHERE experiment = ? AND digest = ? AND libraries = ?",
            (experiment, code.digest, code.libraries),
        )
        return frozenset(key for (key,) in found)

    def seconds(self, experiment: str) -> Mapping[str, float]:
        """How long each question took when it was last measured, by any code; see `question_key`."""
        return dict(self.query("SELECT question, seconds FROM cells WHERE experiment = ? ORDER BY id", (experiment,)))

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one SQL statement; SQLite's errors as `InputError`."""
        with clear_errors(self.path):
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All statements inside, or none; durable at the end.

        Raises:
            StoreLost: If the file is no longer at its path; what is in it has been copied.
        """
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise
        finally:
            self._check_place()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All statements inside see the same rows, whatever others write meanwhile."""
        self.query("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self._connection.rollback()

    def check_kept(self, keys: Iterable[str]) -> None:
        """The file at the path holds these cells, as anybody else who opens it sees it.

        Raises:
            StoreLost: If it was deleted, replaced or overwritten; what this connection sees has been copied.
        """
        self._check_place()
        try:
            with open_store(self.path, readonly=True) as seen:
                found = {key for (key,) in seen.query("SELECT key FROM cells")}
        except InputError:
            found = set()
        if not found.issuperset(keys):
            self._raise_lost()

    def _check_place(self) -> None:
        if identity(self.path) != self._identity:
            self._raise_lost()

    def _raise_lost(self) -> NoReturn:
        if self._lost is not None:  # it is saved already
            raise self._lost
        saved = rescue(self._connection, self.path)
        with open_store(saved, readonly=True) as copy:
            ((count,),) = copy.query("SELECT count(*) FROM cells")
        self._lost = StoreLost(
            f"store: {self.path} was deleted or replaced during the run; the {count} cells it held are kept in "
            f"{saved}: rename that to {self.path.name} and run the same command again to continue."
        )
        raise self._lost

    def code_id(self, code: Code) -> int:
        """The row number of a code, entered if it is new."""
        values = (code.digest, code.libraries)
        self.query("INSERT OR IGNORE INTO codes (digest, libraries) VALUES (?, ?)", values)
        return int(self.query("SELECT id FROM codes WHERE digest = ? AND libraries = ?", values)[0][0])

    def provenance_id(self, provenance: Provenance) -> int:
        """The row number of a provenance, entered if it is new."""
        values = (_content(provenance),)
        self.query("INSERT OR IGNORE INTO provenances (content) VALUES (?)", values)
        return int(self.query("SELECT id FROM provenances WHERE content = ?", values)[0][0])


def _content(provenance: Provenance) -> str:
    return canonical_json(dataclasses.asdict(provenance))


def _cell(found: tuple[Any, ...]) -> FinishedCell:
    _, _, _, parameters, _, _, _, rows, arrays, seconds, *_ = found
    return FinishedCell(json.loads(parameters), decode(rows, arrays), seconds)


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
