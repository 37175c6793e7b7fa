"""Statements about training, and about what documents say; with what can be computed inside them."""

from __future__ import annotations

from hessianlab.claims.activations import drawn_samples
from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Finding, at_most, equal
from hessianlab.claims.quantities import EXACT, gap, largest
from hessianlab.paper import theorem_3_1, theorem_3_2
from hessianlab.paper.printed import Block

TOPIC = "literature text"
Pair = tuple[Block, Block]

PRINTED: tuple[Pair, ...] = (("V", "V"), ("Q", "Q"), ("V", "Q"), ("Q", "K"))
"""Blocks that Theorems 3.1 and 3.2 print (H_f(V,V) as zero)."""

LEFT_OUT: tuple[Pair, ...] = (("K", "K"), ("V", "K"))


def _gaps(pairs: tuple[Pair, ...]) -> float:
    """Largest distance of the theorems' blocks from automatic differentiation."""
    found = []
    for s in drawn_samples():
        for row, col in pairs:
            found.append(gap(theorem_3_1(s.setting, row, col), s.witness.block("outer", row, col)))
            if (row, col) != ("V", "V"):
                found.append(gap(theorem_3_2(s.setting, row, col), s.witness.block("functional", row, col)))
    return largest(found)


@claim("A33")
def all_blocks_derived() -> Finding:
    """Blocks counted and compared."""
    blocks = len({frozenset((r, c)) for r in "QKV" for c in "QKV"})
    printed = at_most("largest distance of the printed blocks from torch", _gaps(PRINTED), EXACT)
    return Finding(
        checks=(printed, equal("distinct blocks that are printed", len(PRINTED), blocks)),
        conditional=(
            printed,
            at_most("largest distance of the key blocks derived in the same way", _gaps(LEFT_OUT), EXACT),
        ),
        support=(equal("printed blocks and the two left out", len(PRINTED) + len(LEFT_OUT), blocks),),
        example=f"three weight matrices have {blocks} distinct blocks; printed are "
        f"{', '.join(a + b for a, b in PRINTED)}.",
    )
