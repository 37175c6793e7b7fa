"""A step with two derivatives in closed form, as attention in chunks has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from hessianlens.curvature.tape.step import Cotangent, Moved, Step
from hessianlens.derivatives.closed_form import ClosedForm, Parts


class Closed(Step):
    """``y(x_1, ..., x_n)``, some of whose inputs depend on the leaves.

    Args:
        inputs: Numbers of those.
        output: Number of y.
        form: The function.
        tensors: All of its tensors.
        places: Which of them the inputs are.
    """

    reads_moved = True

    def __init__(
        self,
        inputs: Sequence[int],
        output: int,
        form: ClosedForm,
        tensors: Sequence[Tensor | None],
        places: Sequence[int],
    ) -> None:
        super().__init__(inputs, output)
        self._form, self._tensors, self._places = form, tuple(tensors), tuple(places)
        self._g: Tensor | None = None

    def forward(self, moved: Moved) -> Tensor:
        """``dy``."""
        return self._form.pushed(*self._tensors, change=self._spread(moved))

    def keep(self, g: Tensor) -> None:
        """What the second derivative is taken around."""
        self._g = g

    def backward(
        self, u: Tensor | None, moved: Moved, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """The gradient of ``<u, y>``, and how that of ``<g, y>`` changes."""
        asked = [False] * self._form.inputs
        for place, want in zip(self._places, wanted, strict=True):
            asked[place] = want
        found: Parts = (None,) * self._form.inputs
        if any(dx is not None for dx in moved):
            assert self._g is not None
            change = self._spread(moved)
            found = self._form.bent(*self._tensors, g=self._g, change=change, wanted=asked, pushing=False, of_g=u)
        elif u is not None:
            found = self._form.pulled(*self._tensors, g=u, wanted=asked)
        return [found[place] for place in self._places]

    def _spread(self, moved: Moved) -> Parts:
        change: list[Tensor | None] = [None] * self._form.inputs
        for place, dx in zip(self._places, moved, strict=True):
            change[place] = dx
        return tuple(change)

    def tensors(self) -> Iterator[Tensor]:
        """What it holds."""
        return (tensor for tensor in (*self._tensors, self._g) if tensor is not None)
