"""The series of a growth experiment: one block's norm against sigma, in every repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hessianlab.results import Result
from hessianlens.errors import InputError, expect


class SeriesKey(NamedTuple):
    """Which norm: of the `grid`-th sigma grid, in a model of `depth` layers, `part` of a `block` of one `layer`."""

    grid: int
    depth: int
    layer: int
    block: str
    part: str

    @property
    def last(self) -> bool:
        """Whether the layer is the last of its model."""
        return self.layer == self.depth - 1

    def in_words(self, ends: Sequence[float] = ()) -> str:
        """As readers know it, counting layers from 1; `ends` are the largest sigma of the grids, if there are several.

        >>> SeriesKey(0, 3, 0, "query", "full").in_words(), SeriesKey(1, 1, 0, "value", "full").in_words((1.0, 10.0))
        ('query, full, layer 1 of 3', 'value, full, layer 1 of 1, σ up to 10')
        """
        block = f"{self.block}, {self.part}" if self.block != "mlp" else f"own block, {self.part}"
        grid = f", σ up to {ends[self.grid]:g}" if len(ends) > 1 else ""
        return f"{block}, layer {self.layer + 1} of {self.depth}{grid}"


@dataclass(frozen=True, eq=False)
class Series:
    """Norms by repeat and sigma.

    Attributes:
        key: Which norm.
        sigma: Ascending, (S,).
        values: (R, S); NaN where a cell is missing.
        exact: Whether every value is free of sampling error.
    """

    key: SeriesKey
    sigma: np.ndarray
    values: np.ndarray
    exact: bool

    @property
    def mean(self) -> np.ndarray:
        """Mean over the repeats, (S,); not finite where any repeat is not."""
        found: np.ndarray = self.values.mean(0)
        return found

    @property
    def median(self) -> np.ndarray:
        """Median over the repeats, (S,): what is typical where a few draws carry the mean."""
        found: np.ndarray = np.median(self.values, axis=0)
        return found

    @property
    def stderr(self) -> np.ndarray:
        """Standard error of the mean over the repeats; NaN for a single repeat."""
        repeats = len(self.values)
        if repeats < 2:
            return np.full(len(self.sigma), np.nan)
        found: np.ndarray = self.values.std(0, ddof=1) / np.sqrt(repeats)
        return found

    @property
    def lowest(self) -> np.ndarray:
        """Smallest of the repeats."""
        found: np.ndarray = self.values.min(0)
        return found

    @property
    def highest(self) -> np.ndarray:
        """Largest of the repeats."""
        found: np.ndarray = self.values.max(0)
        return found

    @property
    def vanishes(self) -> bool | None:
        """Whether every value is exactly zero; None if some are missing and all others are zero."""
        missing = np.isnan(self.values)
        if not (missing | (self.values == 0)).all():
            return False
        return None if missing.any() else True


def growth_series(result: Result) -> dict[SeriesKey, Series]:
    """Every series of a growth experiment, in the order of the cells.

    >>> from hessianlab.figures.fig8.measure import EXPERIMENT
    >>> result = EXPERIMENT.run(EXPERIMENT.preset("quick", {"layers": (1,), "d_model": 4, "points": 3, "repeats": 2}))
    >>> {key.layer: series.values.shape for key, series in growth_series(result).items()}
    {0: (2, 3)}
    """
    expect(len(result.cells) > 0, f"result: got no cells of {result.experiment}, expected one or more; run it first.")
    rows: dict[SeriesKey, list[dict[str, Any]]] = {}
    for row in result.rows():
        rows.setdefault(_key(result.experiment, row), []).append(row)
    return {key: _series(key, found) for key, found in rows.items()}


def _key(experiment: str, row: dict[str, Any]) -> SeriesKey:
    try:
        return SeriesKey(row["grid"], row["layers"], row["layer"], row["block"], row["part"])
    except KeyError as missing:
        raise InputError(
            f"result: rows of {experiment} have no {missing}, expected a growth experiment such as fig3a or fig7."
        ) from None


def _series(key: SeriesKey, rows: list[dict[str, Any]]) -> Series:
    sigmas, repeats = (sorted({row[name] for row in rows}) for name in ("sigma", "repeat"))
    values = np.full((len(repeats), len(sigmas)), np.nan)
    for row in rows:
        value = row["value"]
        values[repeats.index(row["repeat"]), sigmas.index(row["sigma"])] = np.nan if value is None else value
    return Series(key, np.array(sigmas), values, all(row["stderr"] == 0 for row in rows))
