"""Results that the tests of the report share, computed once."""

from functools import cache

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.results import Result
from tests.hessianlab.figures.small import SMALL, small_result

GROWTH = {
    "fig3a": {"d_model": 4, "sequences": 2, "points": 7, "repeats": 3},
    "fig8": {"layers": (1, 2), "d_model": 4, "sequences": 2, "points": 4, "repeats": 3},
}
"""Changes to the quick presets that make them tiny."""


NAMES = ("fig3a", "fig8", "rank_fraction", "table1")
CLAIMS = ("C1", "C8", "C10", "C28", "C40")
"""A misprint, two that fail, one that holds with curves, and one that waits for training."""


@cache
def result(name: str) -> Result:
    if name in SMALL:
        return small_result(name)
    experiment = EXPERIMENTS[name]
    return experiment.run(experiment.preset("quick", GROWTH[name]))
