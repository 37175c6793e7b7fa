"""Losses, and the entropy of attention along training."""

from __future__ import annotations

from hessianlab.plots.picture import Picture
from hessianlab.results import Result
from hessianlab.studies.scaling.measure import EXPERIMENT
from hessianlab.trials.pictures.drawing import entropy_picture, study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """Entropies first: the question is about them."""
    return [entropy_picture(result), *study_pictures(result, EXPERIMENT)]
