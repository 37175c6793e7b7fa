"""What a training study measures: arms, their trials, and what is watched on the way."""

from hessianlens.lab.trials.measure.arms import Arm
from hessianlens.lab.trials.measure.config import FULL, TrialConfig
from hessianlens.lab.trials.measure.study_design import Comparison, Study, minus, study

__all__ = ["FULL", "Arm", "Comparison", "Study", "TrialConfig", "minus", "study"]
