"""Sentences of the story on whole networks: depth, norms, training, and a trained model; links as in `sentences`."""

from __future__ import annotations

import re

import numpy as np

from hessianlab.claims.finding import Verdict
from hessianlab.claims.trained import StudyRecord
from hessianlab.figures.presentation.growth import depth_exponents
from hessianlab.report.argument import ANSWERING, INTERVENING, optimiser_gaps, rank_correlation_interval
from hessianlab.report.chapter import agreeing, fits_of
from hessianlab.report.contents import Contents
from hessianlab.report.network import folds
from hessianlab.report.quotation import counted_verdicts
from hessianlab.report.sentences import softmax_is_not_the_cause
from hessianlab.wording import MINUS, about, either, scientific, several, span
from hessianlens.sizes import number_of


def depth(contents: Contents) -> list[str]:
    """Powers by depth, what skips leave of them, and what the norm does."""
    sentences = []
    results = contents.results
    if "depth_growth" in results:
        found = depth_exponents(results["depth_growth"])
        own = {
            family: [one for one in found if one.family == family and one.slope.measured]
            for family in ("linear attention", "linear MLP")
        }
        if all(own.values()):
            attention = own["linear attention"]
            sentences.append(
                "Every attention layer multiplies its input by itself: chained without skips, "
                f"{several([str(one.depth) for one in attention])} layers of linear attention are predicted to grow "
                f"as σ to the power {several([str(one.predicted) for one in attention])}, and measured are "
                f"[{several([f'{one.slope.measured:.0f}' for one in attention])}](#depth_growth); an MLP always grows "
                f"as [{own['linear MLP'][-1].slope.measured:.0f}](#depth_growth)."
            )
    stacked = [fit for fit in fits_of(results, "fig6") if fit.predicted is not None]
    right, decided = agreeing(stacked)
    if decided:
        sentences.append(
            "Transformers have skip connections, which pass tokens on as they are, and for small tokens "
            f"[{right} of {decided}](#fig6) powers of deep ones are those of a single layer."
        )
    change = folds(results)
    if len(change) == 2:
        with_norm, without = (_fold(change[name]) for name in ("with layer norm", "without"))
        sentences.append(
            "A [layer norm](#word-layer-norm) gives every token the same length before attention sees it: over all "
            "scales "
            f"measured, value over query then changes [{with_norm}-fold](#fig3b) instead of {without}-fold."
        )
        if contents.verdict("A30") is Verdict.FAILS:
            sentences.append(
                "It does so with softmax and without: it evens out the [size of the data](#norm), whatever the "
                "activation."
            )
    return sentences


def _fold(value: float) -> str:
    return about(value) if value < 1e6 else scientific(value, 0)


def training(_contents: Contents) -> list[str]:
    """What recorded studies of training say about unequal blocks."""
    found, changed = StudyRecord(ANSWERING), StudyRecord(INTERVENING)
    related = rank_correlation_interval(found)
    sentences = [
        "Unequal blocks are a fine reason why Adam, which scales every weight by itself, should beat plain gradient "
        "descent ([SGD](#training)), and more so where blocks differ more.",
        "That is a statement about runs, so [small models were trained](#recorded-study_optimisers).",
    ]
    sentences += _lead(found)
    if related is not None and related.mean is not None:
        decided = {True: "so they go together", False: "so they do not", None: "which decides nothing"}[related.state]
        sentences.append(
            f"Over {related.seeds} designs Adam’s lead and the spread of the blocks have the rank correlation "
            f"[{_two(related.mean)}](#recorded-study_optimisers) (95 % interval {_two(related.low)} to "
            f"{_two(related.high)}), {decided}."
        )
    effect = changed.effect("characters: loss, SGD, rates by curvature minus SGD", "", most=0.0)
    if effect.mean is not None:
        says = {True: "it comes nearer to Adam", False: "it ends worse", None: "nothing was found to change"}
        sentences.append(
            "Give SGD a learning rate per block, set by the measured curvature, and "
            f"[{says[effect.state]}](#recorded-study_block_rates): its loss "
            f"{loss_change(effect.mean, effect.low, effect.high)}."
        )
        sentences += _even(changed)
    return sentences


def race(_contents: Contents) -> list[str]:
    """Why the race of the scene says nothing of the recorded trainings."""
    return [
        "The race is a slice of two lengths, almost a parabola near its minimum, with exact gradients of all the data: "
        "there the curvature alone sets the pace, and plain [SGD](#training) with a rate for each length gets ahead of "
        "Adam.",
        "The [recorded trainings](#recorded-study_optimisers) move all weights at once on random batches, and the "
        "curvature changes on the way, so neither the order of the race nor its best step sizes carry over.",
    ]


def runs_beneath(_contents: Contents) -> list[str]:
    """The recorded trainings in two pictures: rates per block over steps, and Adam's lead by design."""
    found, changed = StudyRecord(ANSWERING), StudyRecord(INTERVENING)
    related = rank_correlation_interval(found)
    effect = changed.effect("characters: loss, SGD, rates by curvature minus SGD", "", most=0.0)
    if effect.mean is None or related is None:
        return []
    gaps = [gap for gap in optimiser_gaps(found).values() if gap.mean is not None]
    ends = {True: "below", False: "above", None: "no lower than"}[effect.state]
    goes = {True: "goes with", False: "goes against", None: "is not shown to go with"}[related.state]
    return [
        f"Recorded runs, all weights at once ({changed.models}, {effect.seeds} seeds): with a rate per block set by "
        f"its curvature, SGD ends [{ends} SGD with one rate](#recorded-study_block_rates).",
        f"In the first study Adam leads in {sum(gap.state is True for gap in gaps)} of {len(gaps)} designs, but over "
        f"{related.seeds} of them its lead "
        f"[{goes}](#recorded-study_optimisers) the spread of the blocks (bars: 95 % intervals).",
    ]


def _lead(found: StudyRecord) -> list[str]:
    """In how many designs of the study Adam ends lower, of those recorded."""
    gaps = [gap for gap in optimiser_gaps(found).values() if gap.mean is not None]
    if not gaps:
        return []
    ahead = sum(gap.state is True for gap in gaps)
    low, high = (about(limit([float(gap.mean or 0) for gap in gaps])) for limit in (min, max))
    return [
        "In the first study Adam’s loss is below that of SGD in "
        f"[{ahead} of {len(gaps)}](#recorded-study_optimisers) designs, by {low} to {high} nats."
    ]


def _even(changed: StudyRecord) -> list[str]:
    """Whether there was a lead of Adam for these rates to close."""
    gap = changed.effect("characters: loss, SGD minus Adam", "", least=0.0)
    if gap.mean is None or gap.state is True:
        return []
    return [
        "In that second study, with layer norm in front, Adam is not shown to lead at all: "
        f"[{about(gap.mean)} nats](#recorded-study_block_rates) ({about(gap.low)} to {about(gap.high)})."
    ]


def loss_change(mean: float, low: float, high: float) -> str:
    """By how much a loss rises or falls, with its interval; it changes where the interval has zero in it.

    >>> loss_change(-0.008, -0.013, -0.0032)
    'falls by 0.008 nats (0.0032 to 0.013)'
    """
    if low <= 0 <= high:
        return f"changes by {about(mean)} nats ({about(low)} to {about(high)})"
    verb, ends = ("rises", (low, high)) if mean > 0 else ("falls", (-high, -low))
    return f"{verb} by {about(abs(mean))} nats ({about(ends[0])} to {about(ends[1])})"


def _two(value: float) -> str:
    return f"{value:.2f}".replace("-", MINUS)


def consequences(contents: Contents) -> list[str]:
    """What may be concluded for training, and what not."""
    answer = contents.answer("training")
    sentences = []
    if softmax_is_not_the_cause(contents):
        softmax, norm = contents.ratio_curves().get("softmax"), contents.answer("norm")
        ways = ["an activation with [a(0) = a″(0) = 0](#activation_offset)"]
        ways += ["[larger tokens](#activation_scales)"] if softmax is not None and softmax.crossing is not None else []
        ways += ["a [layer norm](#norm) in front"] if norm is not None and norm.kind == "yes" else []
        sentences.append(f"What makes blocks even at the start is not a normalisation of the rows, but {either(ways)}.")
    if answer is not None:
        said = "it is" if answer.kind == "open" else "the answer is"
        sentences.append(
            f"Whether even blocks train better is another question, and {said} [{answer.verdict}](#training)."
        )
    asked = [entry.verdict for entry in contents.ledger or () if entry.claim.topic == "training"]
    if asked:
        claims = number_of(len(asked), "claim")
        sentences.append(f"Of {claims} about trained models [{counted_verdicts(asked)}](#claims).")
    return sentences


def trained_model(_contents: Contents) -> list[str]:
    """The atlas of a trained language model."""
    record = StudyRecord("study_atlas")
    chart = record.chart
    if chart is None:
        return []
    panel = next((one for one in chart.panels if one.title == "values over queries"), None)
    sentences = [
        f"All of the above is a model at its start; the [atlas](#recorded-study_atlas) looks at {_name(record)}."
    ]
    if panel is None:
        return sentences
    for one in panel.series:
        mean = float(np.exp(np.mean(np.log(one.mean))))
        below = sum(value < 1 for value in one.mean)
        less = f", and below 1 in {below} of {len(one.mean)} layers" if below else ""
        sentences.append(
            f"With {one.name} weights the root mean square eigenvalue of the values is "
            f"[{about(mean)} times](#recorded-study_atlas) that of the queries ({span(one.mean, about)} over "
            f"layers{less})."
        )
    return sentences


def _name(record: StudyRecord) -> str:
    """The model in full, as the first sentence of the study has it."""
    full = re.match(r"In (\S+) ", next(iter(record.sentences), ""))
    return full[1] if full else record.model
