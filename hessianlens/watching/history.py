"""The records of a run, in order, to be looked at and taken away."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hessianlens.errors import InputError, needs_extra, shown
from hessianlens.files import spreadsheet_text, write_whole
from hessianlens.watching.record import MODEL, Reading, Record
from hessianlens.watching.store import RecordFile

if TYPE_CHECKING:
    from pandas import DataFrame

Series = tuple[list[int], list[Reading]]


class History(Sequence[Record]):
    """What was measured along a run.

    ``history[-1]`` is the last record; ``history["layer0.attn.q", "top"]`` the steps and readings of one quantity, and
    ``history["top"]`` those of the whole model.

    Args:
        records: In order of their steps.

    >>> records = [Record(step, {"model": {"top": Reading.of(1.0 / step)}}, {"lr": 0.1}) for step in (1, 2)]
    >>> history = History(records)
    >>> history["top"]
    ([1, 2], [Reading(value=1.0, low=1.0, high=1.0), Reading(value=0.5, low=0.5, high=0.5)])
    >>> print(history.to_csv())
    step,trained,cost,products,lr,top
    1,0.0,0.0,0,0.1,1.0
    2,0.0,0.0,0,0.1,0.5
    """

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self._records = list(records)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """The history that a monitor keeps in a file, whether its run goes on, ended or was killed."""
        if not Path(path).is_file():
            raise InputError(
                f"path: got {shown(os.fspath(path))}, but there is no such file; expected a monitor's store."
            )
        return cls(RecordFile(path).read())

    def add(self, record: Record) -> None:
        """Append a record; those at its step and behind it belonged to a run that was taken back."""
        self._records = [earlier for earlier in self._records if earlier.step < record.step]
        self._records.append(record)

    @overload
    def __getitem__(self, key: int) -> Record: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    @overload
    def __getitem__(self, key: str | tuple[str, str]) -> Series: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return History(self._records[key])
        if isinstance(key, (str, tuple)):
            owner, quantity = (MODEL, key) if isinstance(key, str) else key
            return self._series(owner, quantity)
        return self._records[key]

    def _series(self, owner: str, quantity: str) -> Series:
        having = [record for record in self._records if quantity in record.numbers.get(owner, {})]
        if not having:
            known = ", ".join(f"{o}: {' '.join(q)}" for o, q in list(self.names().items())[:8])
            raise KeyError(f"{(owner, quantity)!r}, expected one of what was measured ({known})")
        return [record.step for record in having], [record.numbers[owner][quantity] for record in having]

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def names(self) -> dict[str, list[str]]:
        """What was measured: quantities by what they belong to."""
        found: dict[str, dict[str, None]] = {}
        for record in self._records:
            for owner, readings in record.numbers.items():
                found.setdefault(owner, {}).update(dict.fromkeys(readings))
        return {owner: list(quantities) for owner, quantities in found.items() if quantities}

    def rows(self) -> list[dict[str, float]]:
        """A dictionary a record: step, times and every number by its flat name."""
        return [
            {"step": r.step, "trained": r.trained, "cost": r.cost, "products": r.products, **r.flat()}
            for r in self._records
        ]

    def to_frame(self) -> DataFrame:
        """A pandas frame, a row a record, indexed by step."""
        with needs_extra("watch", "to_frame"):
            import pandas
        rows = self.rows()
        return pandas.DataFrame(rows).set_index("step") if rows else pandas.DataFrame()

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """A line a record, a column a number; also written to a file if one is named."""
        rows = self.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["step"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([spreadsheet_text(name) for name in columns])
        writer.writerows([[row.get(name) for name in columns] for row in rows])
        if path is not None:
            try:
                write_whole(Path(path), text.getvalue())
            except OSError as error:
                raise InputError(f"path: cannot write '{path}' ({error.strerror}).") from error
        return text.getvalue()

    def __repr__(self) -> str:
        if not self._records:
            return "History of 0 records"
        first, last = self._records[0].step, self._records[-1].step
        return f"History of {len(self)} records, steps {first} to {last}: {', '.join(self.names())}"
