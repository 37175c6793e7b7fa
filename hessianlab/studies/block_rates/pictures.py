"""Differences and courses."""

from __future__ import annotations

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.results import Result
from hessianlens.lab.studies.block_rates.measure import EXPERIMENT
from hessianlens.lab.trials.pictures.drawing import study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """What every study shows."""
    return study_pictures(result, EXPERIMENT)
