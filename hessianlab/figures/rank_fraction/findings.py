"""Rank of the T-outer-product Hessian."""

from __future__ import annotations

from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, span


def tell(result: Result) -> list[str]:
    """How often bound and formula are met, and which share of the parameters is curved."""
    rows = result.rows()
    rank, bound, formula = (numbers(rows, field) for field in ("rank", "bound", "formula"))
    parameters, whole = numbers(rows, "parameters"), numbers(rows, "whole_rank")
    narrow = (numbers(rows, "length") > numbers(rows, "d_model")) & (numbers(rows, "d_k") <= numbers(rows, "d_model"))
    sentences = [
        f"The measured rank equals the exact formula in {int((rank == formula).sum())} of {len(rank)} cases; it "
        f"exceeds the bound of Lemma D.2 in {int((rank > bound).sum())} and reaches it in "
        f"{int((rank == bound).sum())}.",
        "With the T-functional part the rank of the query-key Hessian is "
        f"{span(100 * whole / parameters)} % of its size.",
    ]
    if narrow.any():
        sentences.insert(
            1,
            "With more tokens than the model's width, and d_K at most d_V, the T-outer-product part curves "
            f"{span(100 * (rank / parameters)[narrow])} % of the directions of the query-key parameters.",
        )
    return sentences


FINDINGS = Findings(tell)
