"""Powers and block ratios along training."""

from __future__ import annotations

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.results import Result
from hessianlens.lab.studies.exponents.findings import power_chart, ratio_chart
from hessianlens.lab.studies.exponents.measure import EXPERIMENT
from hessianlens.lab.trials.pictures.drawing import chart_picture, study_pictures


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """Powers and ratios first."""
    shown = [chart_picture("exponents", power_chart(result)), chart_picture("ratios", ratio_chart(result))]
    return [*shown, *study_pictures(result, EXPERIMENT)]
