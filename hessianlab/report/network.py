"""Chapters on whole networks: how different the blocks are, growth with the data, depth, and layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10

import numpy as np

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.experiments.statistics import block_ratios, geometric_mean
from hessianlab.growth.exponents import ExponentFit
from hessianlab.growth.series import SeriesKey, growth_series
from hessianlab.report.chapter import (
    Answer,
    Chapter,
    Number,
    Results,
    agreeing,
    exponent_number,
    fits_of,
    top_layer,
)
from hessianlab.report.quotation import QuotedClaim, answers_yes
from hessianlab.results import Result
from hessianlab.wording import several, short, span
from hessianlens.parts import LAYER_PARTS
from hessianlens.sizes import number_of

SEPARATION_FACTOR = 10.0
"""Blocks differ in scale if their typical entries differ by more than this factor."""


def answer_blocks(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The ratio of typical entries."""
    if "fig1" not in results:
        return None
    ratios = block_ratios(results["fig1"], kind="blocks")
    rms = block_ratios(results["fig1"], "rms", kind="blocks")
    typical = geometric_mean(ratios)
    unlike = typical > SEPARATION_FACTOR
    return Answer(
        "yes" if unlike else "no",
        "yes" if unlike else "no",
        f"In a freshly initialised Transformer a typical entry of the value block is {short(typical)} times one of the "
        f"query block: {log10(typical):.1f} orders of magnitude apart.",
        (
            Number("value over query, median entry", f"{short(typical)} ({span(ratios)} over draws)", "", "about 100"),
            Number("value over query, root mean square", short(geometric_mean(rms))),
        ),
    )


BLOCKS = Chapter(
    slug="blocks",
    title="What we look at",
    question="Are some weights of a Transformer far more sharply curved than others?",
    introduction="The loss of a network, as a function of its weights, is a landscape. The Hessian H holds its "
    "curvature: every second derivative. A block of H belongs to one weight matrix, such as the queries or the values "
    "of an attention layer, or to a pair of them; its size is its Frobenius norm, the root of the sum of its squared "
    "entries. H splits in two: the outer part, or Gauss-Newton part, is the curvature of the loss seen through first "
    "derivatives of the network; the functional part is the network's own second derivative, weighted by what is "
    "still wrong with its output. Blocks that differ in size allow steps that differ in size.",
    figures=("fig1", "fig2"),
    topics=(
        "hessian blocks",
        "formula",
        "network",
        "literature",
        "heads",
        "output gates",
        "latent attention",
        "token embeddings",
    ),
    answer=answer_blocks,
    quoted=answers_yes("P33", "A5"),
)


def answer_data(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The exponents of one Transformer block."""
    fits = fits_of(results, "fig3a", "fig5")
    top = top_layer(fits_of(results, "fig3a") or fits)
    if ("query", "full") not in top or ("value", "full") not in top:
        return None
    query, value = top["query", "full"], top["value", "full"]
    right, decided = agreeing(fits)
    stated, of_stated = agreeing(fits, paper=True)
    differ = query.measured is not None and value.measured is not None and query.measured - value.measured > 1
    numbers = [
        exponent_number(top[block, part], f"{block} block, {part} part")
        for block in ("query", "value")
        for part in LAYER_PARTS
        if (block, part) in top
    ]
    return Answer(
        "yes" if differ else "no",
        "yes" if differ else "no",
        f"Multiply the tokens by a small σ (up to {query.range.high:g}): the value block shrinks as σ to the power "
        f"{value.power}, the query block as σ to the power {query.power}. Small tokens drive the blocks apart.",
        (
            *numbers,
            Number("exponents of this chapter as predicted by counting", f"{right} of {decided}"),
            Number("exponents of this chapter as the paper has them", f"{stated} of {of_stated}"),
        ),
    )


DATA = Chapter(
    slug="data",
    title="Data dependence",
    question="Do the blocks react differently to the size of the data?",
    introduction="Multiply the embeddings, the vectors that stand for words, by a number σ. For small σ every block "
    "grows as a power of σ, and counting how often the tokens enter each formula predicts which. A power is read off "
    "as the slope of the norm against σ on logarithmic axes.",
    figures=("table1", "fig3a", "fig5"),
    topics=("growth exponents", "linear attention"),
    answer=answer_data,
    quoted=answers_yes("P25"),
)


def answer_depth(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Chains of linear attention against linear MLPs and Transformers."""
    chain = _by_depth(fits_of(results, "fig7"), "query", "outer")
    mlp = _by_depth(fits_of(results, "fig8"), "mlp", "full")
    if not chain or not mlp:
        return None
    stacked = [fit for fit in fits_of(results, "fig6") if fit.predicted is not None]
    right, decided = agreeing(stacked)
    explodes = len(chain) > 1 and all(fit.agrees is not False for fit in chain)
    stays = bool(stacked) and right == decided
    sentence = (
        f"Chained without skip connections, linear attention grows as σ to the power {_powers(chain)} with "
        f"{several([str(fit.series.depth) for fit in chain])} layers; a linear MLP stays at {mlp[-1].power} with "
        f"{number_of(mlp[-1].series.depth, 'layer')}"
    )
    text = (
        f", and {right} of {decided} powers of deep Transformers at small σ are those of one layer." if stacked else "."
    )
    numbers = (
        *(exponent_number(fit, f"linear attention, {number_of(fit.series.depth, 'layer')}") for fit in chain),
        *(exponent_number(fit, f"linear MLP, {number_of(fit.series.depth, 'layer')}") for fit in mlp[-1:]),
        *((Number("deep Transformers at small σ, as one layer", f"{right} of {decided}"),) if stacked else ()),
    )
    if not explodes:
        return Answer("no", "no", sentence + text, numbers)
    verdict = "only if layers are chained without skips, or σ is large" if stays else "yes"
    return Answer("if" if stays else "yes", verdict, sentence + text, numbers)


def _by_depth(fits: Sequence[ExponentFit], block: str, part: str) -> list[ExponentFit]:
    """The fit of the top layer of each depth, in its first range."""
    found: dict[int, ExponentFit] = {}
    for fit in fits:
        if fit.series.last and (fit.series.block, fit.series.part) == (block, part) and fit.measured is not None:
            found.setdefault(fit.series.depth, fit)
    return [found[depth] for depth in sorted(found)]


def _powers(fits: Sequence[ExponentFit]) -> str:
    return several([f"{fit.measured:.1f}" for fit in fits])


DEPTH = Chapter(
    slug="depth",
    title="Depth",
    question="Does the curvature of attention explode with depth?",
    introduction="An attention layer multiplies its input by itself: scores are products of tokens, and they weigh "
    "tokens once more. Stacked without anything beside them, layers should multiply the power by three each. A "
    "multi-layer perceptron (MLP) does nothing of the kind, and a Transformer has skip connections that pass tokens "
    "on as they are.",
    figures=("depth_growth", "fig7", "fig8", "fig6"),
    topics=("depth", "linear depth"),
    answer=answer_depth,
    quoted=(
        *answers_yes("A28"),
        QuotedClaim("P58", {"if": Verdict.HOLDS_IF}),
        QuotedClaim("P60", {"if": Verdict.HOLDS_IF}),
    ),
)


_COMPARABLE_EXPONENTS = 0.5
"""Powers that differ by less are called the same."""

_EVEN = 1e-2
"""Share of the change of a ratio of blocks that is left where a norm evens them out: ours, no document names one."""


def answer_norm(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The exponents of both blocks with the norm, at small and at large scales, beside those without."""
    fits = fits_of(results, "fig3b")
    small = _of_range(fits, "small")
    if small is None:
        return None
    large = _of_range(fits, "large")
    without = top_layer(fits_of(results, "fig3a"))
    before = [without.get((block, "full")) for block in ("query", "value")]
    powers = [fit.power for fit in before if fit]
    compared = f", instead of {powers[0]} and {powers[1]} without it" if all(before) else ""
    end = f"{small[0].range.high:g}"
    sentence = (
        f"With a layer norm in front of attention, MLP and unembedding, for σ up to {end} the query and value blocks "
        f"grow as σ to the power {small[0].power} and {small[1].power}{compared}"
    )
    if large:
        sentence += f"; for σ from {large[0].range.low:g} on, as {large[0].power} and {large[1].power}"
    sentence += f".{_spread(results)}"
    numbers = [
        exponent_number(fit, f"{fit.series.block} block, {fit.series.part} part, {fit.range.name} σ, with layer norm")
        for fit in fits
        if fit.series.last and fit.range.name in ("small", "large")
    ]
    change = folds(results)
    if len(change) == 2 and change["with layer norm"] < _EVEN * change["without"]:
        words = " instead of ".join(f"{short(fold)}-fold" for fold in change.values())
        same = f", and the same power up to σ = {end}" if _alike(small) else ""
        return Answer("yes", f"yes: {words}{same}", sentence, tuple(numbers))
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
    return abs(query.measured - value.measured) < _COMPARABLE_EXPONENTS


def _spread(results: Results) -> str:
    """By how much the ratio of the blocks changes over all scales, with the norm and without."""
    ratios = [f"{short(fold)}-fold {words}" for words, fold in folds(results).items()]
    return f" Over all σ measured the ratio of the two blocks changes {', '.join(ratios)}."


def folds(results: Results) -> dict[str, float]:
    """By how much the ratio of the blocks changes over all scales, with layer norm and without."""
    named = {"with layer norm": "fig3b", "without": "fig3a"}
    return {words: _change(results[name]) for words, name in named.items() if name in results}


def _change(result: Result) -> float:
    series = growth_series(result)
    query, value = (series[SeriesKey(0, 1, 0, block, "full")].mean for block in ("query", "value"))
    ratio = value / query
    ratio = ratio[np.isfinite(ratio) & (ratio > 0)]
    return float(ratio.max() / ratio.min())


NORM = Chapter(
    slug="norm",
    title="Layer norm",
    question="Does layer norm even out the growth of the blocks?",
    introduction="A layer norm rescales every token to the same length before it enters a layer. What the layer sees "
    "then no longer depends on the size of the embeddings, with softmax or without it. What it adds to the stream "
    "of tokens, though, weighs less the larger the embeddings are.",
    figures=("fig3b",),
    topics=("norm",),
    answer=answer_norm,
    quoted=(*answers_yes("P51", "A29"), QuotedClaim("A30", {"yes": Verdict.FAILS})),
)
