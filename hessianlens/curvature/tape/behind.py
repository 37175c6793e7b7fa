"""What lies behind the end of a tape: a loss, by its slope there and by products with its curvature."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

from torch import Tensor

from hessianlens.curvature.endings import InFrontOfLogits
from hessianlens.curvature.tape.program import Tape
from hessianlens.losses.fused_cross_entropy import Part
from hessianlens.problems import Batch, Problem

_X = "outputs"


class Behind(ABC):
    """A loss of x, where a network's tape ends.

    Attributes:
        kinds: The operations it is made of.
        slope: Its gradient.
    """

    kinds: frozenset[str]
    slope: Tensor

    @abstractmethod
    def full(self, tangent: Tensor) -> Tensor:
        """Its second derivative along a tangent of x."""

    @abstractmethod
    def outer(self, tangent: Tensor) -> Tensor:
        """The Gauss-Newton part of that, split off at the outputs."""

    @abstractmethod
    def inner(self, tangent: Tensor) -> Tensor | None:
        """The rest of it; None if it is zero."""

    def held_bytes(self, others: Collection[int]) -> int:
        """Memory that is held beside some addresses."""
        return 0


class LossTape(Behind):
    """A loss of outputs, on a tape of its own."""

    def __init__(self, problem: Problem, batch: Batch, outputs: Tensor) -> None:
        self._tape = Tape(lambda at: problem.loss(at[_X], batch), {_X: outputs})
        unit = self._tape.output.new_ones(self._tape.output.shape)
        self.slope = self._tape.backward(unit, None, [_X])[_X]
        self._tape.keep(unit)
        self.kinds = self._tape.kinds

    def full(self, tangent: Tensor) -> Tensor:
        """A pass forwards and one back."""
        return self._tape.backward(None, self._tape.forward({_X: tangent}), [_X])[_X]

    def outer(self, tangent: Tensor) -> Tensor:
        """All of it."""
        return self.full(tangent)

    def inner(self, tangent: Tensor) -> None:
        """Nothing."""
        return

    def held_bytes(self, others: Collection[int]) -> int:
        """Memory of the tape."""
        return self._tape.held_bytes(others)


class UnformedLogits(Behind):
    """A loss of features in front of a linear map whose outputs are not formed."""

    kinds = frozenset({"linear_cross_entropy"})

    def __init__(self, end: InFrontOfLogits) -> None:
        self._end = end
        (self.slope,) = end.slope()

    def full(self, tangent: Tensor) -> Tensor:
        """By a closed form."""
        return self._end.curved([tangent], Part.FULL)[0]

    def outer(self, tangent: Tensor) -> Tensor:
        """By a closed form."""
        return self._end.outer([tangent])[0]

    def inner(self, tangent: Tensor) -> Tensor | None:
        """By a closed form."""
        found = self._end.inner([tangent])
        return None if found is None else found[0]
