"""From a model, data and a loss to a `Problem`."""

from hessianlens.models.adapters.assembly import problem
from hessianlens.models.adapters.scope import differentiable_twice

__all__ = ["differentiable_twice", "problem"]
