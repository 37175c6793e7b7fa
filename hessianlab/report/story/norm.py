"""Layer norm: how much of the unequal growth is left, and over which range of scales."""

from __future__ import annotations

import numpy as np

from hessianlab.claims.ledger import Ledger
from hessianlab.growth.exponents import ExponentFit
from hessianlab.growth.series import SeriesKey, growth_series
from hessianlab.report.story.chapter import Answer, Chapter, Results
from hessianlab.report.story.exponent_numbers import exponent_number, fits_of, power, top_layer
from hessianlab.results import Result
from hessianlab.results.table import short

_ALIKE = 0.5
"""Powers that differ by less are called the same."""


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The exponents of both blocks with the norm, at small and at large scales, beside those without."""
    fits = fits_of(results, "fig3b")
    small = _of_range(fits, "small")
    if small is None:
        return None
    large = _of_range(fits, "large")
    without = top_layer(fits_of(results, "fig3a"))
    before = [without.get((block, "full")) for block in ("query", "value")]
    compared = f", instead of {power(before[0])} and {power(before[1])} without it" if all(before) else ""
    end = f"{small[0].range.high:g}"
    sentence = (
        f"With a layer norm in front of attention, MLP and unembedding, for σ up to {end} the query and value blocks "
        f"grow as σ to the power {power(small[0])} and {power(small[1])}{compared}"
    )
    if large:
        sentence += f"; for σ from {large[0].range.low:g} on, as {power(large[0])} and {power(large[1])}"
    sentence += f".{_spread(results)}"
    numbers = [
        exponent_number(fit, f"{fit.series.block} block, {fit.series.part} part, {fit.range.name} σ, with layer norm")
        for fit in fits
        if fit.series.last and fit.range.name in ("small", "large")
    ]
    if not _alike(small):
        return Answer("no", "no", sentence, tuple(numbers))
    if large and _alike(large):
        return Answer("yes", f"yes, for σ up to {end} and from {large[0].range.low:g} on", sentence, tuple(numbers))
    return Answer("if", f"only for small σ, up to {end}", sentence, tuple(numbers))


def _of_range(fits: list[ExponentFit], name: str) -> tuple[ExponentFit, ExponentFit] | None:
    """Of the whole query and value block, if both have a slope."""
    top = top_layer([fit for fit in fits if fit.range.name == name])
    query, value = top.get(("query", "full")), top.get(("value", "full"))
    if query is None or value is None or query.measured is None or value.measured is None:
        return None
    return query, value


def _alike(pair: tuple[ExponentFit, ExponentFit]) -> bool:
    query, value = pair
    assert query.measured is not None and value.measured is not None
    return abs(query.measured - value.measured) < _ALIKE


def _spread(results: Results) -> str:
    """By how much the ratio of the blocks changes over all scales, with the norm and without."""
    told = [
        f"{short(_change(results[name]))}-fold {words}"
        for name, words in (("fig3b", "with layer norm"), ("fig3a", "without"))
        if name in results
    ]
    return f" Over all σ measured the ratio of the two blocks changes {', '.join(told)}."


def _change(result: Result) -> float:
    series = growth_series(result)
    query, value = (series[SeriesKey(0, 1, 0, block, "full")].mean for block in ("query", "value"))
    ratio = value / query
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    return float(ratio.max() / ratio.min())


CHAPTER = Chapter(
    slug="norm",
    title="Layer norm",
    question="Does layer norm even out the growth of the blocks?",
    introduction="A layer norm rescales every token to the same length before it enters a layer. What the layer sees "
    "then no longer depends on the size of the embeddings, with softmax or without it. What it adds to the stream "
    "of tokens, though, weighs less the larger the embeddings are.",
    figures=("fig3b",),
    topics=("norm",),
    answer=answer,
)
