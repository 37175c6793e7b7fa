"""What every step of a tape can do: its first derivative both ways, and its second one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PartialCotangent:
    """A cotangent that is zero but for one part.

    Attributes:
        part: That part.
        place: From a tensor in the shape of the whole to a view of the part in it.
    """

    part: Tensor
    place: Callable[[Tensor], Tensor]


Cotangent = Tensor | PartialCotangent | None
Tangents = Sequence[Tensor | None]


class Step(ABC):
    """One step ``y = f(x_1, ..., x_k)`` at a point, with y one tensor.

    Attributes:
        inputs: Numbers of the x that depend on the leaves.
        output: Number of y.
        reads_moved: Whether its second derivative asks for the tangents of the x.
        reads_result: Whether it asks for the tangent of y.
    """

    reads_moved = False
    reads_result = False

    def __init__(self, inputs: Sequence[int], output: int) -> None:
        self.inputs, self.output = tuple(inputs), output

    @abstractmethod
    def forward(self, moved: Tangents) -> Tensor:
        """``dy = sum_k J_k dx_k``; None stands for a zero, and one at least is given."""

    def keep(self, g: Tensor) -> None:
        """Fix ``g = dl/dy``, around which the second derivative is taken."""
        return

    @abstractmethod
    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``J_k^T u + (d J_k^T) g`` for every x that is wanted, with d the change under the tangents of the x.

        Args:
            u: Cotangent of y; None stands for zero.
            moved: Tangents of the x; without any, the second derivative is left out.
            result: The tangent of y.
            wanted: Which x are asked for; others may be None.
        """

    def tensors(self) -> Iterator[Tensor]:
        """What it holds."""
        return (value for value in vars(self).values() if isinstance(value, Tensor))


class LinearStep(Step):
    """A linear function of one tensor, by itself and its transpose.

    Args:
        inputs: Number of x.
        output: Number of y.
        apply: The function.
        transpose: Its transpose.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        output: int,
        apply: Callable[[Tensor], Tensor],
        transpose: Callable[[Tensor], Cotangent],
    ) -> None:
        super().__init__(inputs, output)
        self._apply, self._transpose = apply, transpose

    def forward(self, moved: Tangents) -> Tensor:
        """The function of the tangent."""
        (dx,) = moved
        assert dx is not None
        return self._apply(dx)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """The transpose."""
        return [None if u is None else self._transpose(u)]


def plus(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The sum, where None stands for zero."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
