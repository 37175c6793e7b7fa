"""One or two query-key matrices, and where negative curvature comes from."""

from __future__ import annotations

from hessianlab.claims.ledger import Ledger
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.results.table import numbers, select, span
from hessianlab.wording import percent

_SOME = 0.01
"""A share of negative curvature above this is told as some."""


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
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


CHAPTER = Chapter(
    slug="query-key",
    title="One matrix or two",
    question="Is it the split into query and key matrices that makes the landscape bend both ways?",
    introduction="Queries and keys only ever meet in a product, so a single matrix could do their work. Splitting it "
    "in two adds a part to the Hessian that a single matrix has not, the T-functional part, whose eigenvalues come in "
    "pairs of opposite sign: the landscape bends up in one direction as much as down in another. A direction with an "
    "eigenvalue of zero is flat; the rank counts those that are not.",
    figures=("parameterisations", "query_key_spectra", "rank_fraction"),
    topics=("query key",),
    answer=answer,
)
