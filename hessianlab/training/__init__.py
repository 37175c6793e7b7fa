"""Training small models, many at once: the members of an ensemble are one stack of weights and one graph.

`Ensemble` stacks models of one architecture, `train` moves all of them, each at its own learning rate and on its own
data. A member never meets another: what one computes, and whether it diverges, does not depend on its neighbours.
"""

from hessianlab.training.data import TrainingData
from hessianlab.training.ensemble import Ensemble
from hessianlab.training.optimisers import OPTIMISERS, Adam, Optimiser, SGDMomentum
from hessianlab.training.schedule import warm_up_and_decay
from hessianlab.training.steps import Course, train

__all__ = [
    "OPTIMISERS",
    "Adam",
    "Course",
    "Ensemble",
    "Optimiser",
    "SGDMomentum",
    "TrainingData",
    "train",
    "warm_up_and_decay",
]
