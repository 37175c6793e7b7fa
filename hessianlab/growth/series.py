"""Series of a growth experiment, norms against sigma, and the exponents that theory predicts for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from hessianlab.results import Result
from hessianlens.errors import InputError, expect
from hessianlens.layer.predicted_exponents import linear_attention_growth, linear_mlp_growth, predicted_growth


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
class GrowthSeries:
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


def growth_series(result: Result) -> dict[SeriesKey, GrowthSeries]:
    """Every series of a growth experiment, in the order of the cells.

    >>> from hessianlab.figures.growth import FIG8
    >>> result = FIG8.run(FIG8.preset("quick", {"layers": (1,), "d_model": 4, "points": 3, "repeats": 2}))
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


def _series(key: SeriesKey, rows: list[dict[str, Any]]) -> GrowthSeries:
    sigmas, repeats = (sorted({row[name] for row in rows}) for name in ("sigma", "repeat"))
    values = np.full((len(repeats), len(sigmas)), np.nan)
    for row in rows:
        value = row["value"]
        values[repeats.index(row["repeat"]), sigmas.index(row["sigma"])] = np.nan if value is None else value
    return GrowthSeries(key, np.array(sigmas), values, all(row["stderr"] == 0 for row in rows))


Prediction: TypeAlias = int | Literal["zero"] | None
"""An exponent, a block that is identically zero, or nothing said."""

_LETTERS = {"query": "Q", "value": "V"}


def counted_exponent(config: Mapping[str, Any], key: SeriesKey, span: str) -> Prediction:
    """The exponent that counting powers of sigma gives for this series in the range named `span`.

    Without norm, every layer's tokens go as sigma, so each layer has the exponents of a single one, with one exception:
    a lower layer's values enter the scores of later layers, and its functional value block is not zero.

    >>> softmax = {"model": "transformer", "attention": "softmax", "norm": None}
    >>> [counted_exponent(softmax, SeriesKey(0, 2, layer, "value", "functional"), "small") for layer in (0, 1)]
    [3, 'zero']
    """
    if config["model"] == "linear_mlp":
        return linear_mlp_growth(key.depth)
    if config["norm"] == "pre":
        return _counted_pre_norm(key, span)
    if config["attention"] == "linear":
        return _counted_linear(key, span)
    return _counted_attention(config["attention"], key) if span == "small" else None


def _counted_attention(activation: str, key: SeriesKey) -> Prediction:
    letter = _LETTERS[key.block]
    if key.block == "value" and key.part == "functional":
        # Tokens of a later layer change by sigma, and its output holds two changed tokens times a third: the scores'
        # share of the output is cubic in the tokens, as that of a value and a query in one layer.
        return "zero" if key.last else predicted_growth(activation, "functional", "V", "Q")
    found = predicted_growth(activation, key.part, letter, letter)
    return "zero" if found is None else found


def _counted_linear(key: SeriesKey, span: str) -> Prediction:
    """Logits are sigma^n times those at sigma = 1, n = 3^D.

    The outer product has 2 n everywhere; the functional part is the residual, targets at small sigma and logits at
    large, times sigma^n. It is zero for the last layer, in whose query and value weights the logits are linear.
    """
    twice = linear_attention_growth(key.depth)
    if key.part == "outer" or (key.part == "full" and key.last):
        return twice
    if key.last:
        return "zero"
    return {"small": twice // 2, "large": twice}.get(span)


def _counted_pre_norm(key: SeriesKey, span: str) -> Prediction:
    """Attention sees normalised tokens; sigma enters through the residual stream that the later norms divide by.

    Small sigma: the attention's output outweighs the embeddings, and nothing depends on sigma. Large sigma: logits
    move with the attention's output as 1 / sigma and bend as 1 / sigma^2, and the output itself bends in the queries,
    not in the values.
    """
    if span == "small":
        return 0
    if span == "large":
        return -1 if key.block == "query" and key.part != "outer" else -2
    return None


def published_exponent(config: Mapping[str, Any], key: SeriesKey, span: str) -> Prediction:
    """The exponent the paper draws or states for this series in the range named `span`; None where it states none.

    >>> linear = {"model": "transformer", "attention": "linear", "norm": None}
    >>> [published_exponent(linear, SeriesKey(0, 2, 0, "query", "full"), span) for span in ("small", "large")]
    [None, 18]
    """
    if config["model"] == "linear_mlp":
        return 2
    if config["norm"] is not None:
        return None
    if config["attention"] == "linear":
        return _published_linear(key, span)
    if config["attention"] != "softmax":
        return None
    return _published_softmax(key, span)


def _published_linear(key: SeriesKey, span: str) -> Prediction:
    """Figure 7: 2 3^D for the outer product; for the full block in the last layer, elsewhere at larger sigma only."""
    if key.part == "functional":
        return "zero" if key.depth == 1 else None
    if key.part == "full" and not key.last and span != "large":
        return None
    return 2 * 3**key.depth


def _published_softmax(key: SeriesKey, span: str) -> Prediction:
    """Figures 3a, 5 and 6: equation (5) for every layer below sigma = 1; above it, in stacks, for the top layer."""
    if key.block == "value" and key.part == "functional":
        return "zero" if key.last else None
    if span == "large" and not (key.depth > 1 and key.last):
        return None
    return {"query": {"outer": 6, "functional": 5, "full": 5}, "value": {"outer": 2, "full": 2}}[key.block][key.part]
