"""Claims that speak of the same thing and get different verdicts: why that is no contradiction."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlab.claims.ledger import Ledger

_WHY = {
    ("P33", "A6"): "Both look at the same entries. P33 states the ratio of the two blocks, which is a property of the "
    "network; A6 states their absolute sizes, which depend on how the loss is averaged.",
    ("A5", "A6"): "A5 states the ratio of the two blocks, A6 their absolute sizes.",
    ("P33", "A31"): "P33 counts orders of magnitude and is right to within half of one; A31 asks for a factor of "
    "hundreds, which only smaller embeddings give.",
    (
        "P34",
        "A10",
    ): "P34 says what is seen when softmax is left out; A10 takes that as proof that softmax is the cause. "
    "Other activations, which are not softmax and separate the blocks as well, show that it is none.",
    ("P35", "A10"): "P35 says which block softmax changes, at one size of the embeddings; A10 says that softmax is the "
    "cause.",
    ("A11", "A12"): "A11 speaks of linear attention alone; A12 extends it to every activation without normalised rows.",
    (
        "P51",
        "A30",
    ): "P51 states what layer norm does to the growth of the blocks; A30 gives a reason, that it counteracts "
    "softmax, and layer norm does the same without softmax.",
    ("A29", "A30"): "A29 states what is seen with softmax; A30 gives a reason for it.",
    ("P46", "A28"): "P46 names the layers and scales at which the powers appear; A28 states them for every block.",
    (
        "P24",
        "B20",
    ): "P24 bounds the rank of one part, and is right; B20 concludes that few directions are curved, which "
    "the other part prevents.",
    ("B18", "B19"): "B18 compares the bound with the size of a merged matrix; B19 speaks of the directions of the "
    "parameters, of which there are fewer.",
    ("B6", "B9"): "B6 speaks of the Gauss-Newton part of a single matrix; B9 of the T-outer part of two, which also "
    "contains softmax's second derivative.",
    ("B24", "B21"): "B24 says that one source of mixed signs belongs to the two matrices; B21 that it is the only one.",
    ("P25", "P29"): "P25 counts powers, which decide for small data; P29 draws a conclusion for large data, where "
    "attention itself changes.",
}
"""By hand and without numbers; shown where both claims are tested and their verdicts differ."""


@dataclass(frozen=True)
class Relation:
    """Another claim with its verdict, and why it differs."""

    id: str
    verdict: str
    why: str


def relations(ledger: Ledger) -> dict[str, tuple[Relation, ...]]:
    """For every claim those on the same matter whose verdict differs."""
    verdicts = {entry.claim.id: entry.verdict for entry in ledger}
    found: dict[str, list[Relation]] = {}
    for pair, why in _WHY.items():
        told = [verdicts.get(id) for id in pair]
        if all(told) and told[0] is not told[1]:
            for own, other in (pair, pair[::-1]):
                found.setdefault(own, []).append(Relation(other, str(verdicts[other]), why))
    return {id: tuple(own) for id, own in found.items()}
