"""What Figure 3b shows: exponents at small and at large scales, and the one line that the paper fits to all of them."""

from __future__ import annotations

from hessianlab.growth.findings.exponents import exponent_fits
from hessianlab.growth.findings.reading import GrowthFindings
from hessianlab.growth.findings.sentences import growth_sentences, series_in_words, slope_in_words
from hessianlab.results import Result


def tell(result: Result) -> list[str]:
    """As of every growth figure, and the slopes of the lines through everything."""
    lines = [fit for fit in exponent_fits(result) if fit.range.name == "all"]
    slopes = "; ".join(f"{series_in_words(fit)} {slope_in_words(fit)}" for fit in lines)
    line = [f"The paper fits one straight line to all σ; such a line has the slope: {slopes}."] if lines else []
    return [*growth_sentences(result), *line]


FINDINGS = GrowthFindings(tell)
