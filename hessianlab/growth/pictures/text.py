"""The words of growth figures: legends and captions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hessianlab.growth.findings.comparison import SeriesComparison, agreement_in_words
from hessianlab.growth.findings.exponents import ExponentFit, FitRange
from hessianlab.growth.findings.predictions import Prediction
from hessianlab.results import Result


def told(fits: Sequence[ExponentFit]) -> list[ExponentFit]:
    """The fits of one series worth telling.

    Where all predictions are alike, the sharpest fit that has one; where they differ by range, each range; without any
    prediction, the first.
    """
    predicted = [fit for fit in fits if fit.predicted is not None]
    if not predicted:
        return list(fits[:1])
    if len({fit.predicted for fit in predicted}) == 1:
        return [min(predicted, key=_width)]
    return predicted


def _width(fit: ExponentFit) -> float:
    return float("inf") if fit.low is None or fit.high is None else fit.high - fit.low


def label(name: str, fits: Sequence[ExponentFit], vanishes: bool) -> str:
    """Name of a line with its exponents and what was predicted."""
    if vanishes:
        return f"{name}: exactly zero"
    return f"{name}: {', then '.join(_exponent(fit) for fit in fits)}" if fits else name


def _exponent(fit: ExponentFit) -> str:
    if fit.measured is None:
        return "not fitted"
    if fit.low is None or fit.high is None:
        text = f"{fit.measured:.2f}"
    else:
        text = _with_half_width(fit.measured, (fit.high - fit.low) / 2)
    return (text + _prediction(fit.predicted)).replace("-", "−")


def _with_half_width(value: float, half: float) -> str:
    """Both with decimals up to the first digit of the half-width, at most three.

    >>> _with_half_width(5.0312, 0.0312), _with_half_width(53.91, 3.6), _with_half_width(2.0, 0.0)
    ('5.03 ± 0.03', '54 ± 4', '2.000 ± 0.000')
    """
    decimals = 3 if half <= 0 else min(3, max(0, -math.floor(math.log10(half))))
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def _prediction(predicted: Prediction) -> str:
    if predicted is None:
        return " (none)"
    return f" ({predicted if predicted != 'zero' else 'zero expected'})"


HOW_TO_READ = (
    "Lines: mean over draws of weights and embeddings; dots: their median, which a few large draws do not move; bands: "
    "smallest to largest draw. Legends: fitted exponent with half its 95% interval over the draws, and the predicted "
    "exponent in brackets, or that there is none for this range; two exponents are those at small and at large σ. "
    "Dashes: the predicted power, carried on beyond its range; the range of a fit is shaded unless it is all; the "
    "thin upright line stands at σ = 1."
)
"""What is the same in every growth figure."""


def caption(result: Result, fits: Sequence[ExponentFit], compared: Sequence[SeriesComparison] = ()) -> str:
    """Sizes, ranges and published means of this result; `HOW_TO_READ` has what is common to all."""
    config = result.config
    by_series = {fit.series: [other for other in fits if other.series == fit.series] for fit in fits}
    shown = [fit for own in by_series.values() for fit in told(own) if fit.measured is not None]
    ranges = dict.fromkeys(fit.range for fit in shown)
    spans = "; ".join(f"{where.name}, {_span(where)}" for where in ranges)
    sentences = [
        f"Width {config['d_model']}, {config['sequences']} sequences, {config['repeats']} draws.",
        f"Fitted for σ in: {spans}." if spans else "",
        *_published(compared),
    ]
    return " ".join(filter(None, sentences))


def _span(where: FitRange) -> str:
    """A range that begins at zero ends at its upper end, and begins where the measured points do."""
    return f"{where.low:g} to {where.high:g}" if where.low else f"up to {where.high:g}"


def _published(compared: Sequence[SeriesComparison]) -> list[str]:
    agreement = agreement_in_words(compared)
    if not agreement:
        return []
    left_out = sum(found.left_out for found in compared)
    crosses = f" (crosses: {left_out} left out as rounding noise or not finite)" if left_out else ""
    return [
        f"Circles: published means{crosses}; below, our mean over the published one with the standard error of both, "
        "and for each line the ratio over all σ.",
        agreement,
    ]
