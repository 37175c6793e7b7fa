"""Whether the file that is written to is still the one at its path, and what to do if it is not."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from hessianlens.errors import InputError


class StoreLost(InputError):
    """The file of a store was deleted or replaced while it was open; the message names the copy of what it held."""


Identity = tuple[int, int]


def identity(path: Path) -> Identity | None:
    """What tells one file from another at the same path; None if there is none."""
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
