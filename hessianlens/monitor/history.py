"""The records of a run, in order, to be looked at and taken away."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from hessianlens.display import Cells, DisplayableRows, Picture, texts
from hessianlens.errors import InputError, check_choice, check_path, check_that, describe_value
from hessianlens.files import spreadsheet_text, write_whole
from hessianlens.monitor.alarms import head_alarms
from hessianlens.monitor.page import document, timeline
from hessianlens.monitor.records import MODEL, Reading, Record, RecordFile
from hessianlens.network.head_health import HeadAlarm
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = tuple[list[int], list[Reading]]


class History(DisplayableRows, Sequence[Record]):
    """Measurements along a run.

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
        known = isinstance(records, Sequence) and all(isinstance(record, Record) for record in records)
        check_that(known, "records", records, "records of a run, one after the other")
        self._kept = list(records)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> History:
        """The history that a monitor stores in a file, whether its run goes on, ended or was killed."""
        file = check_path("path", path, "the name of a monitor's store")
        if not file.is_file():
            raise InputError(
                f"path: got {describe_value(os.fspath(file))}, but there is no such file; expected a monitor's store."
            )
        return cls(RecordFile(path).read())

    def add(self, record: Record) -> None:
        """Append a record; those at its step or later are dropped, since the run was resumed before them."""
        check_that(isinstance(record, Record), "record", record, "a Record")
        self._kept = [earlier for earlier in self._kept if earlier.step < record.step]
        self._kept.append(record)

    @overload
    def __getitem__(self, key: int) -> Record: ...
    @overload
    def __getitem__(self, key: slice) -> History: ...
    @overload
    def __getitem__(self, key: str | tuple[str, str]) -> Series: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return History(self._kept[key])
        if isinstance(key, str):
            return self._series(MODEL, key)
        if isinstance(key, tuple) and len(key) == 2 and all(isinstance(name, str) for name in key):
            return self._series(*key)
        if isinstance(key, int):
            if not -len(self) <= key < len(self):
                raise IndexError(f"{key}, expected the place of one of {len(self)} records")
            return self._kept[key]
        raise KeyError(f"{describe_value(key)}, expected a place, a slice, a quantity, or an owner with a quantity")

    def _series(self, owner: str, quantity: str) -> Series:
        having = [record for record in self._kept if quantity in record.numbers.get(owner, {})]
        if not having:
            known = ", ".join(f"{o}: {' '.join(q)}" for o, q in list(self.names().items())[:8])
            raise KeyError(f"{(owner, quantity)!r}, expected one of what was measured ({known})")
        return [record.step for record in having], [record.numbers[owner][quantity] for record in having]

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._kept)

    def alarms(self) -> list[HeadAlarm]:
        """Attention heads over a threshold at the last record, each with the step since which it is."""
        return head_alarms(self._kept)

    def names(self) -> dict[str, list[str]]:
        """Measured quantities, by block, layer or head."""
        found: dict[str, dict[str, None]] = {}
        for record in self._kept:
            for owner, readings in record.numbers.items():
                found.setdefault(owner, {}).update(dict.fromkeys(readings))
        return {owner: list(quantities) for owner, quantities in found.items() if quantities}

    def _records(self) -> list[dict[str, Any]]:
        """A row per record: step, times and every number by its flat name."""
        return [
            {"step": r.step, "trained": r.trained, "cost": r.cost, "products": r.products, **r.flat()}
            for r in self._kept
        ]

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """A line per record, a column per number; also written to a file if one is named."""
        rows = self._records()
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["step"]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([spreadsheet_text(name) for name in columns])
        writer.writerows([[row.get(name) for name in columns] for row in rows])
        if path is not None:
            file = check_path("path", path, "the name of a file to be written, such as run.csv")
            try:
                write_whole(file, text.getvalue())
            except OSError as error:
                raise InputError(f"path: cannot write {str(path)!r} ({error.strerror}).") from error
        return text.getvalue()

    def plot(self, ax: Axes | None = None, quantity: str | None = None) -> Axes:
        """One quantity along the run, one line per block or head; needs matplotlib.

        Args:
            ax: Axes to draw on; those of a new figure if omitted.
            quantity: Such as "top" or "entropy_share"; by default "sharpness" with its edge, if that was measured, or
                "top".
        """
        check_that(bool(self.names()), "history", self, "at least one record with numbers")
        asked = self._main() if quantity is None else quantity
        check_choice("quantity", asked, dict.fromkeys(name for names in self.names().values() for name in names))
        return timeline(self, asked).plot(ax)

    def _main(self) -> str:
        measured = {quantity for quantities in self.names().values() for quantity in quantities}
        return next(q for q in ("sharpness", "top", *sorted(measured)) if q in measured)

    def _picture(self, asked: bool) -> Picture | None:
        return timeline(self, self._main()) if any(self.names().values()) else None

    def _heading(self) -> str:
        return repr(self)

    def _cells(self) -> Cells:
        """Numbers of the whole model; those of blocks are in `rows` and `to_frame`."""
        return texts([{name: value for name, value in row.items() if "/" not in name} for row in self._records()])

    def page(self, path: str | os.PathLike[str], title: str = "A training run") -> Path:
        """A self-contained page with the timelines of everything that was measured."""
        return document(self, title).write(path)

    def __repr__(self) -> str:
        if not self._kept:
            return "History of 0 records"
        first, last = self._kept[0].step, self._kept[-1].step
        heads = [name for name, quantities in self.names().items() if "largest_logit" in quantities]
        others = [name for name in self.names() if name not in heads]
        counted = [number_of(len(heads), "attention head")] if heads else []
        return f"History of {number_of(len(self), 'record')}, steps {first} to {last}: {', '.join([*others, *counted])}"
