"""The sentences of the story, each computed from results or the ledger and linked to its place in the lab book.

A link is written ``[words](#address)``; the address is one of the lab book: a chapter, a figure, the ledger, a recorded
study, or a word of the glossary. A sentence whose numbers the run lacks is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hessianlab.claims.finding import Verdict
from hessianlab.experiments.statistics import block_ratios, choices, geometric_mean, numbers, select
from hessianlab.figures.presentation.activations import a_zero_decides, kinds, ratios
from hessianlab.figures.presentation.entropy import MOMENT_BLOCKS, curve
from hessianlab.growth.exponents import ExponentFit
from hessianlab.plots.style import NONE, OFFSET, ZERO
from hessianlab.report.chapter import fits_of, top_layer
from hessianlab.report.contents import Contents
from hessianlab.report.exponents import by_counting
from hessianlab.report.quotation import counted_verdicts
from hessianlab.results import Result
from hessianlab.wording import MINUS, about, activation_in_words, either, percent, several, short
from hessianlens.sizes import number_of

Sentences = Callable[[Contents], Sequence[str]]

_PLACE = "transformer"

_ALIKE = 2.0
"""Blocks whose norms differ by no more than this factor are called alike."""

SEEN, CONCLUDED = "P34", "A10"
"""Claims on softmax: what was seen without it, and what was concluded from that."""


def softmax_is_not_the_cause(contents: Contents) -> bool:
    """Whether exactly the activations with a(0) != 0 separate the blocks, and softmax is one of several."""
    result = contents.results.get("activation_offset")
    if result is None or _PLACE not in choices(result, "place") or not a_zero_decides(result, _PLACE):
        return False
    return sum(kind == OFFSET for kind in kinds(result).values()) > 1


def separation(contents: Contents) -> dict[str, float]:
    """Norm of the value block over that of the query block at initialisation, by activation: the one number."""
    curves = contents.ratio_curves()
    if curves:
        return {name: one.at_initialisation for name, one in curves.items()}
    result = contents.results.get("activation_offset")
    return ratios(result, _PLACE) if result and _PLACE in choices(result, "place") else {}


def title(contents: Contents) -> str:
    """What was found, in a line."""
    if softmax_is_not_the_cause(contents):
        return "Softmax is not what makes attention’s curvature uneven"
    return "What makes attention’s curvature uneven?"


def finding(contents: Contents) -> list[str]:
    """The first paragraph."""
    found = separation(contents)
    sentences = []
    if "softmax" in found:
        sentences.append(
            "In a fresh Transformer the loss is far more curved along the weights of the values than along those of "
            f"the queries: with softmax the value [block](#word-block) of the [Hessian](#word-hessian) is "
            f"[{about(found['softmax'])} times](#activation_scales) the query block."
        )
    if {"softmax", "sigmoid"} <= found.keys():
        sentences.append(
            f"Put a sigmoid in its place, on the same weights, and it is [{about(found['sigmoid'])} "
            "times](#activation_scales)."
        )
    small = [name for name in ("tanh", "linear") if name in found]
    if small:
        values = several([f"{about(found[name])} with {activation_in_words(name)}" for name in small])
        sentences.append(f"With others it is [about even](#activation_scales): {values}.")
    if softmax_is_not_the_cause(contents):
        sentences.append(
            "What decides whether values are ahead is [a(0)](#softmax): the weight that a token gets when its score is "
            "zero."
        )
    return sentences


def reconciled(contents: Contents) -> list[str]:
    """Why what was seen without softmax can hold, and the conclusion that softmax is the cause fail."""
    found = separation(contents)
    seen = [name for name in ("linear", "tanh") if name in found]
    verdicts = [contents.verdict(claim) for claim in (SEEN, CONCLUDED)]
    if verdicts != [Verdict.HOLDS, Verdict.FAILS] or not seen or not {"softmax", "sigmoid"} <= found.keys():
        return []
    if (
        not all(1 / _ALIKE <= found[name] <= _ALIKE for name in seen)
        or not _ALIKE < found["softmax"] < found["sigmoid"]
    ):
        return []
    alike = several([about(found[name]) for name in seen])
    return [
        "That holds, for the paper takes softmax out and leaves linear attention, and the next claim fails: without "
        f"softmax, with {either(seen)}, queries and values are alike "
        f"(value over query [{alike}](#activation_scales)), but softmax is not the cause, since a sigmoid, which is no "
        f"softmax either, separates them more: [{about(found['sigmoid'])} times](#activation_scales) against "
        f"{about(found['softmax'])}."
    ]


def one_number(contents: Contents) -> list[str]:
    """Why the lab book has other values of the same ratio."""
    found, sentences = separation(contents), []
    if "softmax" in found:
        sentences.append(
            f"“Value over query” is one number on this page: the ratio of the [norms](#word-norm) of two blocks of "
            f"equal size, {about(found['softmax'])} with softmax."
        )
    if "fig1" in contents.results:
        median = geometric_mean(block_ratios(contents.results["fig1"], kind="blocks"))
        sentences.append(
            f"The paper compares typical entries instead; their [medians](#fig1) differ {about(median)}-fold, since a "
            "few large entries make up most of a norm."
        )
    return sentences


def curvature(_contents: Contents) -> list[str]:
    """What a Hessian, a block and the two parts are."""
    return [
        "The loss is a landscape over all weights, and the [Hessian](#word-hessian) is its curvature: how fast the "
        "slope "
        "changes in every direction.",
        "A [block](#word-block) of it belongs to one weight matrix: Q makes the queries, K the keys, V the values.",
        "Every block is a sum of two parts: the [Gauss-Newton part](#word-outer) takes the network for linear and "
        "never "
        "bends down; the [functional part](#word-functional) is the bend of the network itself, times what is still "
        "wrong with its output, and bends both ways.",
        "The more curved a direction is, the [shorter the step](#training) that gradient descent survives along it.",
        "So if blocks are curved differently, [one learning rate](#training) has to serve directions that ask for "
        "different ones.",
    ]


def score_rows(contents: Contents) -> list[str]:
    """What activations make of a row of scores, and at zero."""
    sentences = [
        "A query meets every key, which gives a row of scores, and the [activation](#word-activation) turns scores "
        "into "
        "weights.",
        "Softmax divides by the sum of the row, so that its weights [sum to one](#softmax); a sigmoid treats every "
        "score by itself.",
        "Tokens start [small](#word-sigma), and so scores start near zero.",
    ]
    result = contents.results.get("activation_offset")
    if result:
        starts = {name: select(result, activation=name)[0]["at_zero"] for name in choices(result, "activation")}
        given = [(name, float(start)) for name, start in starts.items() if start]
        none = [activation_in_words(name) for name, start in starts.items() if start == 0]
        positive = several([f"{about(start)} with {activation_in_words(name)}" for name, start in given])
        sentences.append(
            f"There a token gets the weight [a(0)](#activation_offset): {positive}"
            f"{f', but nothing with {several(none)}' if none else ''} (18 tokens)."
        )
    verdicts = contents.verdicts("C")
    if verdicts:
        sentences.append(
            "The buttons load rows that an [article on softmax](#document-C) prints; of "
            f"{number_of(len(verdicts), 'claim')} "
            f"in it, [{counted_verdicts(verdicts)}](#claims)."
        )
    return sentences


def moments(contents: Contents) -> list[str]:
    """Which moment each block is built on, and what is left of it near one-hot attention."""
    sentences = [
        "A row of weights on points in the plane has a [mean, a covariance and a skewness](#word-moment).",
        "The value block is built on the mean, the Gauss-Newton part of the query block on the covariance, its "
        "functional part on the [third moment](#moments).",
    ]
    result = contents.results.get("moment_strata")
    if result is None:
        return sentences
    gap = max(float(numbers(select(result, quantity=name), "gap").max()) for name in MOMENT_BLOCKS)
    value, query = (_left(result, name) for name in ("outer VV", "outer QQ"))
    return [
        *sentences,
        f"Rebuilt from these, the blocks differ from the exact ones by [{short(gap)}](#moment_strata) of the whole "
        "Hessian, which is rounding.",
        "Now [sharpen](#moment_strata) attention until it looks at one token: a single point has a mean, but no "
        "spread.",
        f"The value block {_changes(value)} and the query block dies: "
        f"[{short(query)}](#moment_strata) of its Gauss-Newton part is left.",
    ]


def another_row(contents: Contents) -> list[str]:
    """Why the scene has other values of what is left."""
    if "moment_strata" not in contents.results:
        return []
    return [
        "The scene is another model: five words, a layer of few weights, and one query. Its numbers are its own; those "
        "of the text are medians over [the layers measured](#moment_strata)."
    ]


def _changes(ratio: float) -> str:
    if ratio >= 1:
        return f"stays, and even grows [{about(ratio)}-fold](#moment_strata),"
    return f"keeps [{percent(ratio)}](#moment_strata) of its norm"


def _left(result: Result, name: str) -> float:
    path = curve(result, name)
    return float(np.median(path[:, -1] / path[:, 0]))


def factors(contents: Contents) -> list[str]:
    """Powers of sigma: counted, measured, and what they make of the ratio."""
    sentences = [
        "Multiply all tokens by a small number [σ](#word-sigma): every X in a formula brings one factor of it.",
        "The Gauss-Newton part of the query block has six of them, its functional part five, the value block "
        "[two](#data).",
    ]
    fits = top_layer(fits_of(contents.results, "fig3a"))
    wanted = [("query", "outer"), ("query", "functional"), ("value", "full")]
    if all(key in fits for key in wanted):
        powers = several([f"{_power(fits[key])}" for key in wanted])
        sentences.append(f"Measured slopes in a Transformer: [{powers}](#fig3a).")
    tally = by_counting(contents.exponents)
    if tally.decided:
        sentences.append(
            f"Over all blocks, layers and models of the lab book, [{tally.agree} of {tally.decided}](#exponents) "
            "counted "
            "powers are the measured ones."
        )
    softmax = contents.ratio_curves().get("softmax")
    if softmax is not None and softmax.power is not None:
        sentences.append(
            "Of two parts the one with fewer factors is the larger for small tokens, so the whole query block goes "
            "with its functional part: the smaller the tokens, the wider the gap, and value over query goes as σ to "
            f"the power [{_signed(softmax.power)}](#activation_scales)."
        )
    if softmax is not None and softmax.crossing is not None:
        sentences.append(
            f"From about [σ = {softmax.crossing:.2g}](#activation_scales) on, softmax saturates and the query block is "
            "the larger one."
        )
    return sentences


def _power(fit: ExponentFit) -> str:
    return fit.power


def _signed(value: float) -> str:
    return f"{value:.1f}".replace("-", MINUS)


def activation(contents: Contents) -> list[str]:
    """Why a(0) decides."""
    return [
        "Look at what stands in the two formulas: the value block contains the [attention weights](#word-activation) "
        "themselves, the query block only their slopes, since a query acts through the scores alone.",
        "If a(0) is not zero, small scores leave every weight near a(0), a [constant](#softmax): it brings no factor "
        "of "
        "σ, and the value block keeps its two.",
        "If a(0) is zero, a weight is as small as its score, of order σ²; it enters twice, and the value block has "
        "[two plus four](#activation_growth), six factors, as many as the Gauss-Newton part of the query block.",
        "The functional part of the query block needs the bend of the activation at zero: with tanh a″(0) is zero and "
        "it has seven factors, with linear attention and ReLU it vanishes, so that the blocks come out "
        "[even](#activation_growth).",
        "With exp(t) − 1, where a(0) is zero and a″(0) is not, it keeps five, and for small tokens the "
        "[query block](#word-functional) is the larger one.",
    ]


def another_layer(contents: Contents) -> list[str]:
    """Why the scene has other values of the same ratio."""
    found = separation(contents)
    if "softmax" not in found:
        return []
    return [
        "The scene is another, much smaller model: one layer of few weights, at the σ of its slider. Its ratios are "
        f"its own; the [{about(found['softmax'])} with softmax](#activation_scales) of the text is a whole Transformer "
        "as it is initialised."
    ]


def activations_measured(contents: Contents) -> list[str]:
    """The measured ratios by kind, and what normalisation does."""
    result = contents.results.get("activation_offset")
    if result is None or not softmax_is_not_the_cause(contents):
        return []
    found, kind = ratios(result, _PLACE), kinds(result)
    groups = {which: {n: r for n, r in found.items() if kind[n] == which} for which in (OFFSET, ZERO, NONE)}
    sentences = [
        f"The same weights and data under {number_of(len(found), 'activation')}: with a(0) ≠ 0 value over query is "
        f"[{_listed(groups[OFFSET])}](#activation_offset); with a(0) = 0, "
        f"[{_listed(groups[ZERO])}](#activation_offset)."
    ]
    sentences += _how_wide(result, groups[OFFSET], contents)
    if groups[NONE]:
        sentences.append(
            "Rows that sum to one are not the reason: sigmoid and exp do not have them and separate the blocks more "
            "than "
            f"softmax, while [{_listed(groups[NONE])}](#activation_offset), whose rows do, turn the order round: "
            "they see the ratios of scores and not their size, and have no a(0)."
        )
    return sentences


def _how_wide(result: Result, ratio: Mapping[str, float], contents: Contents) -> list[str]:
    """That a(0) decides whether there is a gap, not how wide it is, and why lines of the first figure are steeper."""
    start = {name: float(select(result, activation=name)[0]["at_zero"]) for name in ratio}
    highest, widest = (max(ratio, key=lambda name: values[name]) for values in (start, ratio))
    sentences = []
    if start[widest] < start[highest]:
        shown = several(
            [
                f"{activation_in_words(name)}, with a(0) = {about(start[name])}, has "
                f"[{about(ratio[name])}](#activation_offset)"
                for name in (highest, widest)
            ]
        )
        sentences.append(f"So a(0) decides whether there is a gap, not how wide it is: {shown}.")
    powers = {name: one.power for name, one in contents.ratio_curves().items() if one.power is not None}
    flatter, steeper = (
        [activation_in_words(name) for name, power in powers.items() if name in ratio and round(power) == wanted]
        for wanted in (-3, -4)
    )
    if flatter and steeper:
        sentences.append(
            f"In the first figure the slope is [−3](#activation_scales) with {several(flatter)}, two factors against "
            f"the five of the functional part, and −4 with {several(steeper)}, where a″(0) is zero: two against six."
        )
    return sentences


def _listed(found: Mapping[str, float]) -> str:
    return several([f"{about(ratio)} with {activation_in_words(name)}" for name, ratio in found.items()])


def matrices(contents: Contents) -> list[str]:
    """One query-key matrix or two: negative curvature, pairs, rank."""
    sentences = [
        "Queries and keys only meet in a product, so [one matrix](#query-key) could do the work of both.",
        "Two matrices add a part that one has not, the [T-functional part](#word-t-functional), whose eigenvalues "
        "come in "
        "pairs of opposite sign.",
    ]
    results = contents.results
    if "query_key_spectra" in results:
        pairs = select(results["query_key_spectra"], part="pairs")
        right = sum(row["multiplicity"] == row["predicted_multiplicity"] for row in pairs)
        sentences.append(
            f"In [{right} of {len(pairs)}](#query_key_spectra) settings every pair comes as often as the formula says."
        )
    if "parameterisations" in results:
        share = {
            kind: float(
                numbers(select(results["parameterisations"], parameters=kind, part="full"), "negative_share").mean()
            )
            for kind in ("dual", "single")
        }
        sentences.append(
            f"Yet the split is only part of the story: [{percent(share['dual'])}](#parameterisations) of the spectrum "
            "is "
            f"negative with two matrices, and still {percent(share['single'])} with one that computes the same "
            "function, "
            "from softmax’s own second derivative."
            if share["single"] >= 0.01
            else f"[{percent(share['dual'])}](#parameterisations) of the spectrum is negative with two matrices, "
            f"{percent(share['single'])} with one."
        )
    if "rank_fraction" in results:
        rows = results["rank_fraction"].rows()
        rank, formula = numbers(rows, "rank"), numbers(rows, "formula")
        sentences.append(
            f"The rank of what one matrix also has follows an exact formula in [{int((rank == formula).sum())} of "
            f"{len(rank)}](#rank_fraction) cases."
        )
    return sentences
