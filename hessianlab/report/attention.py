"""Chapters on attention itself: softmax, attention moments, the query-key part, and powers of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.experiments.statistics import block_ratios, choices, geometric_mean, numbers, select
from hessianlab.figures.presentation.activations import a_zero_decides, kinds, ratios
from hessianlab.figures.presentation.entropy import MOMENT_BLOCKS, curve
from hessianlab.plots.style import OFFSET, ZERO
from hessianlab.presentations import findings_of
from hessianlab.report.chapter import Answer, Chapter, Number, Results
from hessianlab.report.quotation import Kind, QuotedClaim, answers_yes
from hessianlab.wording import activation_in_words, percent, several, short, span


def answer_softmax(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Which activations separate the blocks, and whether their value at zero decides."""
    if "activation_offset" not in results:
        return None
    result = results["activation_offset"]
    place, kind = choices(result, "place")[0], kinds(result)
    found = ratios(result, place)
    offset, without = ({name: found[name] for name in found if kind[name] == which} for which in (OFFSET, ZERO))
    others = [name for name in offset if name != "softmax"]
    numbers = tuple(
        Number(
            f"{activation_in_words(name)}: value over query", short(ratio), "above 1" if name in offset else "about 1"
        )
        for name, ratio in (offset | without).items()
    ) + _published(results)
    if "softmax" not in offset or not others or not a_zero_decides(result, place):
        return Answer("open", "not decided", _ratios_in_words(found), numbers)
    strongest = max(offset, key=lambda name: offset[name])
    sentence = (
        f"Softmax separates the blocks {short(found['softmax'])}-fold (root mean square entries), and so does every "
        f"activation tried (what turns scores into weights) that is not zero at a score of zero, "
        f"{activation_in_words(strongest)} most ({short(offset[strongest])}-fold, "
        f"{short(offset[strongest] / found['softmax'])} times as much); with those that are zero there "
        f"({several([activation_in_words(name) for name in without])}) the blocks are alike."
    )
    return Answer("no", "no: every activation tried with a(0) ≠ 0 does", sentence, numbers)


def _published(results: Results) -> tuple[Number, ...]:
    if "fig4" not in results:
        return ()
    return tuple(
        Number(
            f"{kind} attention: value over query, median entry",
            short(geometric_mean(block_ratios(results["fig4"], attention=kind))),
            "",
            {"softmax": "about 100", "linear": "about 1"}.get(kind, ""),
        )
        for kind in choices(results["fig4"], "attention")
    )


def _ratios_in_words(found: Mapping[str, float]) -> str:
    text = several([f"{short(ratio)} with {activation_in_words(name)}" for name, ratio in found.items()])
    return f"The entries of the value block over those of the query block: {text}."


SOFTMAX = Chapter(
    slug="softmax",
    title="Softmax's role",
    question="Is it softmax that separates the scales of the blocks?",
    introduction="Taking softmax away and keeping the raw scores makes the blocks alike, which looks like proof. But "
    "raw scores differ from softmax in more than one respect. Putting other functions in its place shows which respect "
    "matters: the value a(0) of the activation at a score of zero. Where it is not zero, values pass even if scores "
    "are small, and the value block stays large while the query block, which only acts through the scores, shrinks.",
    figures=("activation_offset", "activation_scales", "fig4", "activation_growth", "temperature_path"),
    topics=("activation", "softmax", "temperature"),
    answer=answer_softmax,
    quoted=(
        *answers_yes("A10", "A14"),
        QuotedClaim("A12", {"no": Verdict.FAILS}),
        QuotedClaim("A13", {"no": Verdict.FAILS}),
    ),
)


_EXACT = 1e-9
_FADED = 1e-2


def answer_moments(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Whether moments rebuild the blocks, and what is left of these near one-hot attention."""
    if "moment_strata" not in results:
        return None
    result = results["moment_strata"]
    gap = max(float(numbers(select(result, quantity=name), "gap").max()) for name in MOMENT_BLOCKS)
    left = {name: float(np.median(curve(result, name)[:, -1] / curve(result, name)[:, 0])) for name in MOMENT_BLOCKS}
    rebuilt, fades = gap < _EXACT, left["outer QQ"] < _FADED and left["functional QQ"] < _FADED
    good = rebuilt and fades
    text = (
        "the outer value block follows from the first moment of the attention rows, the outer query block from the "
        f"second and the functional query block from the third, up to rounding ({short(gap)} of the norm of the whole "
        "Hessian); the mixed block of queries and keys contains the second as well. When attention settles on a "
        f"single token, {short(left['outer QQ'])} of the query block's outer part is left (median over seeds), while "
        f"the value block is multiplied by {short(left['outer VV'])}."
    )
    return Answer(
        "yes" if good else "no",
        "yes" if good else "not in this run",
        text[0].upper() + text[1:],
        (
            Number("largest gap of a rebuilt block, over the norm of the whole Hessian", short(gap), "0"),
            *(Number(f"{name}, one-hot over uniform", short(value)) for name, value in left.items()),
        ),
    )


MOMENTS = Chapter(
    slug="moments",
    title="Attention moments",
    question="Does curvature depend on where attention looks?",
    introduction="A row of attention is a set of weights on the tokens. Its moments are the mean of the tokens under "
    "these weights (the first), their covariance (the second) and their skewness (the third). Attention that looks at "
    "one token only has a mean, and no spread.",
    figures=("moment_strata",),
    topics=("moments", "activation moments", "activation peaked", "scores"),
    answer=answer_moments,
    quoted=(*answers_yes("P36", "P39"), QuotedClaim("A22", {"yes": Verdict.HOLDS_IF, "no": Verdict.FAILS})),
)


_SOME = 0.01
"""A share of negative curvature above this is reported as some."""


def answer_query_key(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The share of negative curvature with one matrix and with two, at the same function."""
    if "parameterisations" not in results:
        return None
    share = {
        kind: float(
            numbers(select(results["parameterisations"], parameters=kind, part="full"), "negative_share").mean()
        )
        for kind in ("dual", "single")
    }
    two, one = percent(share["dual"]), percent(share["single"])
    numbered = (
        Number("negative share of the spectrum, two matrices", two),
        Number("negative share of the spectrum, one matrix", one),
        *_others(results),
    )
    if share["dual"] <= share["single"]:
        return Answer("no", "no", f"Negative curvature is {two} with two matrices and {one} with one.", numbered)
    if share["single"] < _SOME:
        return Answer("yes", "yes", f"Negative curvature is {two} with two matrices and {one} with one.", numbered)
    return Answer(
        "if",
        "only in part",
        f"Two matrices add curvature of both signs: {two} of the spectrum is negative, {one} with one matrix that "
        "computes the same function. What is left comes from softmax's own second derivative.",
        numbered,
    )


def _others(results: Results) -> tuple[Number, ...]:
    found: list[Number] = []
    if "query_key_spectra" in results:
        pairs = select(results["query_key_spectra"], part="pairs")
        right = sum(row["multiplicity"] == row["predicted_multiplicity"] for row in pairs)
        found.append(
            Number("T-functional eigenvalues in ± pairs, each as often as predicted", f"{right} of {len(pairs)}")
        )
    if "rank_fraction" in results:
        rows = results["rank_fraction"].rows()
        rank, bound, formula = (numbers(rows, field) for field in ("rank", "bound", "formula"))
        found.append(Number("rank as the exact formula has it", f"{int((rank == formula).sum())} of {len(rank)}"))
        found.append(Number("rank above the bound", f"{int((rank > bound).sum())} of {len(rank)}", "0"))
        parameters = numbers(rows, "parameters")
        found.append(Number("rank / query-key parameters", f"{span(100 * rank / parameters)}%"))
    return tuple(found)


QUERY_KEY = Chapter(
    slug="query-key",
    title="One matrix or two",
    question="Is it the split into query and key matrices that makes the landscape bend both ways?",
    introduction="Queries and keys only ever meet in a product, so a single matrix could do their work. Splitting it "
    "in two adds a part to the Hessian that a single matrix has not, the T-functional part, whose eigenvalues come in "
    "pairs of opposite sign: the landscape bends up in one direction as much as down in another. A direction with an "
    "eigenvalue of zero is flat; the rank counts those that are not.",
    figures=("parameterisations", "query_key_spectra", "rank_fraction"),
    topics=("query key",),
    answer=answer_query_key,
    quoted=(
        QuotedClaim("B24", {"yes": Verdict.HOLDS_IF, "if": Verdict.HOLDS_IF, "no": Verdict.FAILS}),
        QuotedClaim("B21", {"yes": Verdict.HOLDS, "if": Verdict.FAILS, "no": Verdict.FAILS}),
    ),
)


_CLAIM = "P41"
"""States the powers of every block."""

_KINDS: dict[Verdict | None, Kind] = {Verdict.HOLDS: "yes", Verdict.HOLDS_IF: "if", Verdict.FAILS: "no"}


def answer_weights(results: Results, ledger: Ledger | None) -> Answer | None:
    """What the measured powers say, with the verdict of the claim that states them."""
    stated = next((entry for entry in ledger or () if entry.claim.id == _CLAIM), None)
    text = (
        findings_of(results["weight_powers"]).sentences(results["weight_powers"]) if "weight_powers" in results else []
    )
    if stated is None or stated.finding is None or stated.verdict not in _KINDS:
        return Answer("open", "measured", text[0]) if text else None
    kind = _KINDS[stated.verdict]
    verdict = f"only if {stated.finding.condition.split(',')[0]}" if kind == "if" else kind
    passed = [check.passed for check in stated.finding.checks]
    sentence = " ".join(text[:2]) if text else f"The powers that the paper states hold if {stated.finding.condition}."
    return Answer(
        kind,
        verdict,
        sentence,
        (Number("checks of the claim that states them, as written", f"{sum(passed)} of {len(passed)}"),),
    )


WEIGHTS = Chapter(
    slug="weights",
    title="Weight dependence",
    question="Do the powers of the weights in every block follow from its formula?",
    introduction="Blocks contain the weight matrices of the other blocks: the query block contains the keys and the "
    "values, so it shrinks when those are small. The power is how often a matrix enters, apart from its way through "
    "the attention scores.",
    figures=("weight_powers",),
    topics=("hessian weights",),
    answer=answer_weights,
    quoted=answers_yes(_CLAIM),
)
