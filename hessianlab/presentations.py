"""Findings and pictures of a result, from the module that presents its experiment, loaded on request."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hessianlab.experiments.registry import registry_of
from hessianlab.growth.exponents import GrowthFindings
from hessianlab.growth.reference import Reference
from hessianlab.results import Findings, Result

if TYPE_CHECKING:
    from hessianlab.plots.picture import Presentation, ResultPicture


def findings_of(result: Result) -> Findings:
    """How a result is read; nothing is read from an experiment that is not registered.

    >>> from hessianlab.experiments.registry import EXPERIMENTS
    >>> findings_of(EXPERIMENTS["rank_fraction"].run(EXPERIMENTS["rank_fraction"].preset("quick", {"repeats": 1})))
    Findings(...)
    """
    presentation = _presentation(result)
    return presentation.findings if presentation else Findings(lambda _: [])


def growth_of(result: Result) -> GrowthFindings | None:
    """How exponents and comparisons with published means are read from a result; None if it is none of growth."""
    findings = findings_of(result)
    return findings if isinstance(findings, GrowthFindings) else None


def pictures_of(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """Every picture of a result; growth figures show published means where `reference` has them.

    None for an experiment that is not registered.
    """
    presentation = _presentation(result)
    return presentation.draw(result, reference) if presentation else []


def _presentation(result: Result) -> Presentation | None:
    registry = registry_of(result.experiment)
    if registry is None:
        return None
    found: Presentation = import_module(registry.presenting(result.experiment)).PRESENTATIONS[result.experiment]
    return found
