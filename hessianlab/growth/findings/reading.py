"""How a growth figure is read: sentences, exponents, and how far it is from published means."""

from __future__ import annotations

from dataclasses import dataclass

from hessianlab.growth.findings.comparison import SeriesComparison, compare
from hessianlab.growth.findings.exponents import ExponentFit, exponent_fits
from hessianlab.growth.findings.reference import Reference
from hessianlab.results import Findings, Result


@dataclass(frozen=True)
class GrowthFindings(Findings):
    """Findings of a figure of growth, which has exponents and may have been published."""

    def exponents(self, result: Result) -> list[ExponentFit]:
        """Every fitted exponent."""
        return exponent_fits(result)

    def compared(self, result: Result, reference: Reference | None) -> list[SeriesComparison]:
        """Every series that `reference` has at the same size and on the same batch."""
        return [] if reference is None else compare(result, reference)
