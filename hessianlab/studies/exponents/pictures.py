"""Powers and block ratios along training."""

from __future__ import annotations

from hessianlab.plots.picture import Picture
from hessianlab.results import Result
from hessianlab.studies.exponents.findings import power_chart, ratio_chart
from hessianlab.studies.exponents.measure import EXPERIMENT
from hessianlab.trials.pictures.drawing import chart_picture, study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """Powers and ratios first."""
    shown = [chart_picture("exponents", power_chart(result)), chart_picture("ratios", ratio_chart(result))]
    return [*shown, *study_pictures(result, EXPERIMENT)]
