"""Statements about training, and about what documents say; with what can be computed inside them."""

from __future__ import annotations

from hessianlens.lab.claims.activations import drawn_samples
from hessianlens.lab.claims.check import at_most, equal
from hessianlens.lab.claims.definition import claim, unmeasured
from hessianlens.lab.claims.finding import Finding, Verdict
from hessianlens.lab.claims.samples import EXACT, gap, largest
from hessianlens.theory.paper import theorem_3_1, theorem_3_2
from hessianlens.theory.paper.printed import Block

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


@claim(
    "A33",
    source="The paper I found a few weeks too late",
    statement="The paper derives the full, exact Hessian with respect to all weight matrices of a self-attention "
    "layer.",
    method="count of the blocks that Theorems 3.1 and 3.2 print against those of three weight matrices; the printed "
    "blocks, and the key blocks derived in the same way, against torch, 3 shapes x 3 seeds",
)
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
        condition="the two blocks with the key weights that the paper leaves to the reader are counted in.",
        support=(equal("printed blocks and the two left out", len(PRINTED) + len(LEFT_OUT), blocks),),
        correction="Theorems 3.1 and 3.2 print four of the six distinct blocks: VV, QQ, VQ and QK. The blocks KK and "
        "VK are left out as essentially symmetric. They follow by the same derivation, with the factor of the key "
        "weights in place of that of the query weights; exchanging the letters is not enough.",
        example=f"three weight matrices have {blocks} distinct blocks; printed are "
        f"{', '.join(a + b for a, b in PRINTED)}.",
    )


_TRAINING = "Only training runs can settle it, and the ledger measures at one point."

CLAIMS = (
    unmeasured(
        "P66",
        "Abstract, Section 5",
        "Adaptive optimisers, layer normalisation and learning-rate warm-up can be traced back to the structure of "
        "the Hessian.",
        Verdict.NOT_CHECKABLE,
        "An interpretation, offered as a suggestion: the paper contains no training run that would connect a block's "
        "curvature with a choice of optimiser, and no statement on warm-up beyond naming it. Its parts that are "
        "statements about the Hessian are tested on their own, such as P33 (sizes), P44 (signs) and P51 (Pre-LN).",
        topic=TOPIC,
    ),
    unmeasured(
        "P67",
        "Section 1",
        "Park and Kim found more, but smaller, negative eigenvalues in vision Transformers than in CNNs; Zhang et al. "
        "found the blocks of Transformers more heterogeneous than those of CNNs.",
        Verdict.NOT_CHECKABLE,
        "Reports of measurements on trained vision networks and language models in other papers. Testing them needs "
        "those networks and data sets; the paper at hand only cites them.",
        topic=TOPIC,
    ),
    unmeasured(
        "A26",
        "What this implies for how Transformers are trained",
        "SGD with one learning rate has no way to cope with the heterogeneous curvature; Adam is specifically matched "
        "to it.",
        Verdict.NEEDS_TRAINING,
        f"{_TRAINING} The unequal sizes of the blocks at initialisation, on which the argument rests, are measured "
        "here (P33, A5).",
        topic=TOPIC,
    ),
    unmeasured(
        "A27",
        "Back to the exam mistake",
        "A model with sigmoid attention does not need Adam in the way a model with softmax attention does.",
        Verdict.NEEDS_TRAINING,
        f"{_TRAINING} Its stated ground, that sigmoid makes the blocks uniform, can be tested at initialisation and "
        "fails (A12, A13).",
        topic=TOPIC,
    ),
    unmeasured(
        "A32",
        "The paper I found a few weeks too late",
        "The paper explains learning-rate warm-up from the structure of the Hessian.",
        Verdict.NOT_CHECKABLE,
        "A statement about a text. The paper names warm-up twice, in the abstract and in the introduction, as "
        "something that accompanies Transformers, and derives nothing about it; no computation can add to that.",
        topic=TOPIC,
    ),
    all_blocks_derived,
    unmeasured(
        "A34",
        "References",
        "The code of the paper is at github.com/dalab/transformer-hessian.",
        Verdict.NOT_CHECKABLE,
        "An address on the web. Looked up, a public repository of that name exists; whether it stays there is not a "
        "matter of computation, and the ledger works offline.",
        topic=TOPIC,
    ),
    unmeasured(
        "A35",
        "Back to the exam mistake",
        "Indefinite and heterogeneous blocks make adaptive optimisers effectively necessary.",
        Verdict.NEEDS_TRAINING,
        f"{_TRAINING} That blocks are indefinite (A17) and unequal in size (A5) is measured here; that this makes an "
        "optimiser necessary is not a property of the Hessian at one point.",
        topic=TOPIC,
    ),
)
