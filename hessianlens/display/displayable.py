"""What an object is given that states its rows and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any

from hessianlens.display.chart import Picture, short
from hessianlens.display.markup import cell_style, html_table, tag
from hessianlens.errors import InputError, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

MOST_ROWS = 30
"""Rows that a notebook shows; a frame has them all."""

Cells = tuple[Sequence[str], Sequence[Sequence[str]]]
"""Headings of columns, and rows of texts."""


class Displayable:
    """Something that can be looked at: in a notebook by itself, with ``plot()``, and as a frame with ``to_frame()``.

    A kind of object states `_records`, and where it has one `_picture`; `_heading` and `_cells` where the first line of
    its text and its rows are not what a reader should see.

    >>> class Pair(Displayable):
    ...     def _records(self):
    ...         return [{"name": "<a>", "value": 1.0}]
    >>> "&lt;a&gt;" in Pair()._repr_html_(), Pair().to_frame().columns.tolist()
    (True, ['name', 'value'])
    """

    __slots__ = ()

    def _records(self) -> list[dict[str, Any]]:
        """What is known, a row a thing, as plain numbers and texts."""
        raise NotImplementedError

    def _picture(self, asked: bool) -> Picture | None:
        """The picture; None if there is none, or if it would have to be computed and nobody has asked for it."""
        return None

    def _heading(self) -> str:
        """One line above the picture."""
        return str(self).split("\n", 1)[0]

    def _cells(self) -> Cells:
        """The table below the picture."""
        return texts(self._records())

    def to_frame(self) -> DataFrame:
        """The rows as a pandas data frame, which has to be installed."""
        return data_frame(self._records())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw it with matplotlib, which has to be installed.

        Args:
            ax: Axes to draw on; those of a new figure if omitted.
        """
        picture = self._picture(asked=True)
        if picture is None:
            raise InputError(f"plot: there is nothing to draw of this {type(self).__name__}.")
        return picture.plot(ax)

    def _repr_html_(self) -> str:
        """What a notebook shows: a line, a picture and a table, light or dark as the notebook is."""
        picture = self._picture(asked=False)
        columns, rows = self._cells()
        wordy = any(len(cell) > 60 for row in rows for cell in row)
        table = html_table(columns, rows[:MOST_ROWS])
        left = len(rows) - MOST_ROWS
        return tag(
            "div",
            cell_style(),
            tag("p", escape(self._heading()) or " "),
            picture.svg() if picture is not None else "",
            tag("div", table, class_="words" if wordy else None) if rows else "",
            tag("p", f"and {left} more rows, in to_frame()", class_="muted") if left > 0 else "",
            class_="hessianlens",
        )


class DisplayableRows(Displayable):
    """Something that can be looked at, and whose rows have a name of their own."""

    __slots__ = ()

    def rows(self) -> list[dict[str, Any]]:
        """What is known, a row a thing, as plain numbers and texts; what `to_frame` has."""
        return self._records()


def data_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """A column a key, in the order in which keys first appear; what a row does not have is missing.

    >>> data_frame([{"block": "q", "norm": 1.5}, {"block": "v", "norm": 2.0}])["norm"].tolist()
    [1.5, 2.0]
    """
    with needs_extra("frames", "to_frame()"):
        import pandas as pd
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return pd.DataFrame.from_records([dict(row) for row in rows], columns=columns)


def texts(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """Rows as texts, numbers with few digits; a column in which nothing stands is left out.

    >>> texts([{"block": "q", "norm": 1.23456, "exact": True}])
    (['block', 'norm', 'exact'], [['q', '1.23', 'yes']])
    """
    named = dict.fromkeys(key for row in rows for key in row)
    columns = [key for key in named if any(_text(row.get(key)) for row in rows)]
    return columns, [[_text(row.get(column)) for column in columns] for row in rows]


def facts(row: Mapping[str, Any]) -> Cells:
    """One row as a line a fact; what is not known is left out.

    >>> facts({"rows": 12, "why": "it is small", "note": ""})
    (['', ''], [['rows', '12'], ['why', 'it is small']])
    """
    cells = ((name, _text(value)) for name, value in row.items())
    return ["", ""], [[name, text] for name, text in cells if text]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if value is None:
        return ""
    if isinstance(value, Real):
        return short(float(value))
    if isinstance(value, (tuple, list)):
        return " x ".join(map(str, value))
    return str(value)
