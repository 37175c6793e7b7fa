"""Data dependence: with which power of the tokens each block grows."""

from __future__ import annotations

from hessianlab.claims.ledger import Ledger
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.report.story.exponent_numbers import agreeing, exponent_number, fits_of, power, top_layer
from hessianlens.parts import LAYER_PARTS


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
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
        f"{power(value)}, the query block as σ to the power {power(query)}. Small tokens drive the blocks apart.",
        (
            *numbers,
            Number("exponents of this chapter as predicted by counting", f"{right} of {decided}"),
            Number("exponents of this chapter as the paper has them", f"{stated} of {of_stated}"),
        ),
    )


CHAPTER = Chapter(
    slug="data",
    title="Data dependence",
    question="Do the blocks react differently to the size of the data?",
    introduction="Multiply the embeddings, the vectors that stand for words, by a number σ. For small σ every block "
    "grows as a power of σ, and counting how often the tokens enter each formula predicts which. A power is read off "
    "as the slope of the norm against σ on logarithmic axes.",
    figures=("table1", "fig3a", "fig5"),
    topics=("growth exponents", "linear attention"),
    answer=answer,
)
