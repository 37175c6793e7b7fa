"""What a training study measures: arms, their trials, and what is watched on the way."""

from hessianlab.trials.measure.arms import Arm
from hessianlab.trials.measure.config import FULL, TrialConfig
from hessianlab.trials.measure.study_design import Comparison, Study, minus, study

__all__ = ["FULL", "Arm", "Comparison", "Study", "TrialConfig", "minus", "study"]
