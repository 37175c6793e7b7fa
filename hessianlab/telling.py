"""What is told of a result: the findings and the pictures of its figure, loaded when they are asked for."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from hessianlab.experiments.registry import registry_of
from hessianlab.growth.findings.reading import GrowthFindings
from hessianlab.growth.findings.reference import Reference
from hessianlab.results import Findings, Result

if TYPE_CHECKING:
    from hessianlab.plots.picture import Picture


def findings_of(result: Result) -> Findings:
    """How a result is read; nothing is read from an experiment without a folder of its own.

    >>> from hessianlab.experiments.registry import EXPERIMENTS
    >>> findings_of(EXPERIMENTS["rank_fraction"].run(EXPERIMENTS["rank_fraction"].preset("quick", {"repeats": 1})))
    Findings(...)
    """
    module = _module(result, "findings")
    found: Findings = module.FINDINGS if module else Findings(lambda _: [])
    return found


def growth_of(result: Result) -> GrowthFindings | None:
    """How exponents and comparisons with published means are read from a result; None if it is none of growth."""
    found = findings_of(result)
    return found if isinstance(found, GrowthFindings) else None


def pictures_of(result: Result, reference: Reference | None = None) -> list[Picture]:
    """Every picture of a result; growth figures show published means where `reference` has them.

    None for an experiment without a folder of its own.
    """
    module = _module(result, "pictures")
    found: list[Picture] = module.draw_all(result, reference) if module else []
    return found


def _module(result: Result, which: str) -> ModuleType | None:
    registry = registry_of(result.experiment)
    return import_module(f"{registry.home(result.experiment)}.{which}") if registry else None
