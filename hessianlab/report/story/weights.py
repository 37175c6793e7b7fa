"""Weight dependence: which weight matrices a block contains, and how often."""

from __future__ import annotations

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.presentations import findings_of
from hessianlab.report.story.chapter import Answer, Chapter, Kind, Number, Results

_CLAIM = "P41"
"""States the powers of every block."""

_KINDS: dict[Verdict | None, Kind] = {Verdict.HOLDS: "yes", Verdict.HOLDS_IF: "if", Verdict.FAILS: "no"}


def answer(results: Results, ledger: Ledger | None) -> Answer | None:
    """What the measured powers say, with the verdict of the claim that states them."""
    stated = next((entry for entry in ledger or () if entry.claim.id == _CLAIM), None)
    told = (
        findings_of(results["weight_powers"]).sentences(results["weight_powers"]) if "weight_powers" in results else []
    )
    if stated is None or stated.finding is None or stated.verdict not in _KINDS:
        return Answer("open", "measured", told[0]) if told else None
    kind = _KINDS[stated.verdict]
    verdict = f"only if {stated.finding.condition.split(',')[0]}" if kind == "if" else kind
    passed = [check.passed for check in stated.finding.checks]
    sentence = " ".join(told[:2]) if told else f"The powers that the paper states hold if {stated.finding.condition}."
    return Answer(
        kind, verdict, sentence, (Number(f"checks of claim {_CLAIM} as written", f"{sum(passed)} of {len(passed)}"),)
    )


CHAPTER = Chapter(
    slug="weights",
    title="Weight dependence",
    question="Do the powers of the weights in every block follow from its formula?",
    introduction="Blocks contain the weight matrices of the other blocks: the query block contains the keys and the "
    "values, so it shrinks when those are small. The power is how often a matrix enters, apart from its way through "
    "the attention scores.",
    figures=("weight_powers",),
    topics=("hessian weights",),
    answer=answer,
)
