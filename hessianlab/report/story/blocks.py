"""What we look at: the blocks of a Transformer's Hessian, and how unlike they are."""

from __future__ import annotations

from math import log10

from hessianlab.claims.ledger import Ledger
from hessianlab.experiments.common.means import geometric_mean
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.results.table import block_ratios, short, span

UNLIKE = 10.0
"""Blocks are unlike if their typical entries differ by more than this factor."""


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """The ratio of typical entries."""
    if "fig1" not in results:
        return None
    ratios = block_ratios(results["fig1"], kind="blocks")
    rms = block_ratios(results["fig1"], "rms", kind="blocks")
    typical = geometric_mean(ratios)
    unlike = typical > UNLIKE
    return Answer(
        "yes" if unlike else "no",
        "yes" if unlike else "no",
        f"In a freshly initialised Transformer a typical entry of the value block is {short(typical)} times one of the "
        f"query block: {log10(typical):.1f} orders of magnitude apart.",
        (
            Number("value over query, median entry", f"{short(typical)} ({span(ratios)} over draws)", "", "about 100"),
            Number("value over query, root mean square", short(geometric_mean(rms))),
        ),
    )


CHAPTER = Chapter(
    slug="blocks",
    title="What we look at",
    question="Are some weights of a Transformer far more sharply curved than others?",
    introduction="The loss of a network, as a function of its weights, is a landscape. The Hessian H holds its "
    "curvature: every second derivative. A block of H belongs to one weight matrix, such as the queries or the values "
    "of an attention layer, or to a pair of them; its size is its Frobenius norm, the root of the sum of its squared "
    "entries. H splits in two: the outer part, or Gauss-Newton part, is the curvature of the loss seen through first "
    "derivatives of the network; the functional part is the network's own second derivative, weighted by what is "
    "still wrong with its output. If blocks differ in size, one learning rate cannot suit all of them.",
    figures=("fig1",),
    topics=("hessian blocks", "formula", "network", "literature", "heads"),
    answer=answer,
)
