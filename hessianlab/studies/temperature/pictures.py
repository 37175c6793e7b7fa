"""Differences, courses, and entropies of attention."""

from __future__ import annotations

from hessianlab.plots.picture import Picture
from hessianlab.results import Result
from hessianlab.studies.temperature.measure import EXPERIMENT
from hessianlab.trials.pictures.drawing import entropy_picture, study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """What every study shows, and entropies."""
    return [*study_pictures(result, EXPERIMENT), entropy_picture(result)]
