"""Differences and courses."""

from __future__ import annotations

from hessianlab.plots.picture import Picture
from hessianlab.results import Result
from hessianlab.studies.block_rates.measure import EXPERIMENT
from hessianlab.trials.pictures.drawing import study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """What every study shows."""
    return study_pictures(result, EXPERIMENT)
