"""The store: finished cells in one file, each durable as soon as `put` returns."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from hessianlens.errors import InputError
from hessianlens.lab.results import FinishedCell, Parameters, Provenance
from hessianlens.lab.store.code import Code
from hessianlens.lab.store.database import WAIT_SECONDS, clear_errors, connect, disconnect
from hessianlens.lab.store.encoding import check_storable, checksum, decode, encode_arrays, encode_rows
from hessianlens.lab.store.keys import canonical_json, cell_key, question_key


def open_store(path: str | Path, readonly: bool = False, wait: float = WAIT_SECONDS) -> Store:
    """Open a store, and make one if the file is missing or empty.

    Args:
        path: The file.
        readonly: Only read; the file must exist.
        wait: Seconds to wait for another process that is writing.

    >>> import tempfile
    >>> from hessianlens.lab.results import Measurement, collect
    >>> code, provenance = Code("0" * 64, "torch 2"), collect()
    >>> with tempfile.TemporaryDirectory() as folder, open_store(Path(folder) / "cells.sqlite") as store:
    ...     store.put("fig0", FinishedCell({"sigma": 0.1}, Measurement(({"value": 2.0},)), 0.5), code, provenance)
    ...     found = store.get("fig0", {"sigma": 0.1}, code)
    ...     missing = store.get("fig0", {"sigma": 0.2}, code)
    >>> found.measurement.rows, found.seconds, missing
    (({'value': 2.0},), 0.5, None)
    """
    path = Path(path)
    return Store(path, connect(path, readonly, wait), readonly)


class Store:
    """Finished cells, and the runs they belong to; made by `open_store`, closed by `with` or `close`.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, readonly: bool) -> None:
        self.path = path
        self._connection = connection
        self._readonly = readonly

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
        found = self.query(
            "SELECT parameters, rows, arrays, seconds, checksum FROM cells WHERE key = ?",
            (cell_key(experiment, parameters, code),),
        )
        return self._cell(experiment, found[0]) if found else None

    def put(self, experiment: str, cell: FinishedCell, code: Code, provenance: Provenance) -> None:
        """Keep a finished cell; it is on the disk when this returns."""
        check_storable(experiment, cell.measurement)
        parameters = json.dumps(dict(cell.parameters))  # as they are ordered: so they come back
        rows = encode_rows(cell.measurement.rows)
        arrays = encode_arrays(cell.measurement.arrays)
        key, question = cell_key(experiment, cell.parameters, code), question_key(experiment, cell.parameters)
        with self.transaction():
            # Two runs at once may measure the same cell; by construction they measure the same numbers.
            self.query(
                "INSERT OR IGNORE INTO cells (key, question, experiment, parameters, code, provenance, rows, arrays, "
                "seconds, checksum, finished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    key,
                    question,
                    experiment,
                    parameters,
                    self.code_id(code),
                    self.provenance_id(provenance),
                    rows,
                    arrays,
                    cell.seconds,
                    checksum(parameters, rows, arrays, cell.seconds),
                    now(),
                ),
            )

    def cells(self, ids: Iterable[int], experiment: str) -> Iterator[FinishedCell]:
        """The cells with these row numbers, in this order."""
        for number in ids:
            found = self.query("SELECT parameters, rows, arrays, seconds, checksum FROM cells WHERE id = ?", (number,))
            yield self._cell(experiment, found[0])

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
        """All statements inside, or none; durable at the end."""
        self.query("BEGIN IMMEDIATE")
        try:
            yield
            self.query("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def code_id(self, code: Code) -> int:
        """The row number of a code, entered if it is new."""
        values = (code.digest, code.libraries)
        self.query("INSERT OR IGNORE INTO codes (digest, libraries) VALUES (?, ?)", values)
        return int(self.query("SELECT id FROM codes WHERE digest = ? AND libraries = ?", values)[0][0])

    def provenance_id(self, provenance: Provenance) -> int:
        """The row number of a provenance, entered if it is new."""
        content = canonical_json(dataclasses.asdict(provenance))
        self.query("INSERT OR IGNORE INTO provenances (content) VALUES (?)", (content,))
        return int(self.query("SELECT id FROM provenances WHERE content = ?", (content,))[0][0])

    def _cell(self, experiment: str, found: tuple[Any, ...]) -> FinishedCell:
        parameters, rows, arrays, seconds, expected = found
        if checksum(parameters, rows, arrays, seconds) != expected:
            raise InputError(
                f"store: a cell of {experiment} in {self.path} does not have the checksum it was written with; "
                "the file is damaged, use a copy of it or delete it to measure again."
            )
        return FinishedCell(json.loads(parameters), decode(rows, arrays), seconds)


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
