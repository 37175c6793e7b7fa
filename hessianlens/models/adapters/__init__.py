"""From a model, data and a loss to a `Problem`."""

from hessianlens.models.adapters.assembly import draft_problem, problem
from hessianlens.models.adapters.twice_differentiable import differentiable_twice

__all__ = ["differentiable_twice", "draft_problem", "problem"]
