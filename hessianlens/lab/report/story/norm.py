"""Layer norm: how much of the unequal growth is left."""

from __future__ import annotations

from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.report.story.chapter import Answer, Chapter, Results
from hessianlens.lab.report.story.exponent_numbers import exponent_number, fits_of, power, top_layer

_ALIKE = 0.5
"""Powers that differ by less are called the same."""


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The exponents of both blocks with the norm, beside those without."""
    top, without = (top_layer(fits_of(results, name)) for name in ("fig3b", "fig3a"))
    query, value = top.get(("query", "full")), top.get(("value", "full"))
    if query is None or value is None or query.measured is None or value.measured is None:
        return None
    apart = abs(query.measured - value.measured)
    before = [without.get((block, "full")) for block in ("query", "value")]
    compared = f", instead of {power(before[0])} and {power(before[1])}" if all(before) else ""
    alike = apart < _ALIKE
    sentence = (
        f"With a layer norm in front of attention, MLP and unembedding the query and value blocks grow as σ to the "
        f"power {power(query)} and {power(value)} at small σ{compared}: they "
        + ("hardly notice the size of the embeddings." if alike else "still react differently.")
    )
    numbers = [
        exponent_number(top[block, part], f"{block} block, {part} part, with layer norm")
        for block in ("query", "value")
        for part in ("outer", "functional", "full")
        if (block, part) in top
    ]
    return Answer("yes" if alike else "no", "yes" if alike else "no", sentence, tuple(numbers))


CHAPTER = Chapter(
    slug="norm",
    title="Layer norm",
    question="Does layer norm even out the growth of the blocks?",
    introduction="A layer norm rescales every token to the same length before it enters a layer. What the layer sees "
    "then no longer depends on the size of the embeddings, with softmax or without it.",
    figures=("fig3b",),
    topics=("norm",),
    answer=answer,
)
