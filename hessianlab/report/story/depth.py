"""Depth: how the powers change when layers are stacked."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlab.claims.ledger import Ledger
from hessianlab.growth.exponents import ExponentFit
from hessianlab.report.story.chapter import Answer, Chapter, Number, Results
from hessianlab.report.story.exponent_numbers import agreeing, exponent_number, fits_of, power
from hessianlab.wording import count, several


def answer(results: Results, _ledger: Ledger | None) -> Answer | None:
    """Chains of linear attention against linear MLPs and Transformers."""
    chain = _by_depth(fits_of(results, "fig7"), "query", "outer")
    mlp = _by_depth(fits_of(results, "fig8"), "mlp", "full")
    if not chain or not mlp:
        return None
    stacked = [fit for fit in fits_of(results, "fig6") if fit.predicted is not None]
    right, decided = agreeing(stacked)
    explodes = len(chain) > 1 and all(fit.agrees is not False for fit in chain)
    stays = bool(stacked) and right == decided
    sentence = (
        f"Chained without skip connections, linear attention grows as σ to the power {_powers(chain)} with "
        f"{several([str(fit.series.depth) for fit in chain])} layers; a linear MLP stays at {power(mlp[-1])} with "
        f"{count(mlp[-1].series.depth, 'layer')}"
    )
    told = (
        f", and {right} of {decided} powers of deep Transformers at small σ are those of one layer." if stacked else "."
    )
    numbers = (
        *(exponent_number(fit, f"linear attention, {count(fit.series.depth, 'layer')}") for fit in chain),
        *(exponent_number(fit, f"linear MLP, {count(fit.series.depth, 'layer')}") for fit in mlp[-1:]),
        *((Number("deep Transformers at small σ, as one layer", f"{right} of {decided}"),) if stacked else ()),
    )
    if not explodes:
        return Answer("no", "no", sentence + told, numbers)
    verdict = "only if layers are chained without skips, or σ is large" if stays else "yes"
    return Answer("if" if stays else "yes", verdict, sentence + told, numbers)


def _by_depth(fits: Sequence[ExponentFit], block: str, part: str) -> list[ExponentFit]:
    """The fit of the top layer of each depth, in its first range."""
    found: dict[int, ExponentFit] = {}
    for fit in fits:
        if fit.series.last and (fit.series.block, fit.series.part) == (block, part) and fit.measured is not None:
            found.setdefault(fit.series.depth, fit)
    return [found[depth] for depth in sorted(found)]


def _powers(fits: Sequence[ExponentFit]) -> str:
    return several([f"{fit.measured:.1f}" for fit in fits])


CHAPTER = Chapter(
    slug="depth",
    title="Depth",
    question="Does the curvature of attention explode with depth?",
    introduction="An attention layer multiplies its input by itself: scores are products of tokens, and they weigh "
    "tokens once more. Stacked without anything beside them, layers should multiply the power by three each. A "
    "multi-layer perceptron (MLP) does nothing of the kind, and a Transformer has skip connections that pass tokens "
    "on as they are.",
    figures=("depth_growth", "fig7", "fig8", "fig6"),
    topics=("depth", "linear depth"),
    answer=answer,
)
