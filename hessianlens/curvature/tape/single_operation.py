"""Steps that are one operation: with two derivatives in closed form, or known only by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hessianlens.curvature.tape.recording import Unrecordable
from hessianlens.curvature.tape.step import Cotangent, Step, Tangents
from hessianlens.derivatives.closed_form import ClosedForm, Parts
from hessianlens.derivatives.graph import once_only


class Local(Step):
    """Any differentiable function of a few tensors, through a graph of its own.

    Args:
        inputs: Numbers of the x.
        output: Number of y.
        function: From the x to y.
        values: The x.
        name: What it is called where it cannot be differentiated twice.
    """

    reads_moved = True

    def __init__(
        self,
        inputs: Sequence[int],
        output: int,
        function: Callable[[Sequence[Tensor]], Tensor],
        values: Sequence[Tensor],
        name: str,
    ) -> None:
        super().__init__(inputs, output)
        with torch.enable_grad():
            self._leaves = [value.detach().requires_grad_() for value in values]
            self._y = function(self._leaves)
            if once_only(self._y):
                raise Unrecordable(f"its {name} has no second derivative")
            self._cotangent = torch.zeros_like(self._y, requires_grad=True)
            self._gradients = self._vjp(self._y, self._leaves, self._cotangent, graph=True)
        self._second_gradients: list[Tensor] = []

    def forward(self, moved: Tangents) -> Tensor:
        """The derivative, with respect to a cotangent, of the pull-back's product with the tangents."""
        pairs = [(p, dx) for p, dx in zip(self._gradients, moved, strict=True) if dx is not None and p.requires_grad]
        if not pairs:
            return torch.zeros_like(self._y, requires_grad=False)
        vjp, tangents = zip(*pairs, strict=True)
        found = torch.autograd.grad(vjp, self._cotangent, tangents, retain_graph=True, allow_unused=True)[0]
        return torch.zeros_like(self._cotangent, requires_grad=False) if found is None else found

    def keep(self, g: Tensor) -> None:
        """The pull-back of g, on a graph."""
        with torch.enable_grad():
            self._second_gradients = self._vjp(self._y, self._leaves, g, graph=True)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """Both parts by autograd."""
        found: list[Tensor | None] = [None for _ in self._leaves]
        if u is not None:
            found = list(self._vjp(self._y, self._leaves, u, graph=False))
        pairs = [
            (b, dx) for b, dx in zip(self._second_gradients, moved, strict=False) if dx is not None and b.requires_grad
        ]
        if pairs:
            hvp, tangents = zip(*pairs, strict=True)
            changes = torch.autograd.grad(hvp, self._leaves, tangents, retain_graph=True, allow_unused=True)
            found = [c if f is None else f if c is None else f + c for f, c in zip(found, changes, strict=True)]
        return list(found)

    def tensors(self) -> Iterator[Tensor]:
        """Those that go in and come out; what the graph between holds is not counted."""
        return iter([*self._leaves, self._y, *self._gradients, *self._second_gradients])

    def _vjp(self, y: Tensor, leaves: Sequence[Tensor], u: Tensor, graph: bool) -> list[Tensor]:
        if not y.requires_grad:
            return [torch.zeros_like(x) for x in leaves]
        found = torch.autograd.grad(y, leaves, u, retain_graph=True, create_graph=graph, allow_unused=True)
        return [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)]


class ClosedFormStep(Step):
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

    def forward(self, moved: Tangents) -> Tensor:
        """``dy``."""
        return self._form.jvp(*self._tensors, change=self._spread(moved))

    def keep(self, g: Tensor) -> None:
        """What the second derivative is taken around."""
        self._g = g

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """The gradient of ``<u, y>``, and how that of ``<g, y>`` changes."""
        asked = [False] * self._form.inputs
        for place, want in zip(self._places, wanted, strict=True):
            asked[place] = want
        found: Parts = (None,) * self._form.inputs
        if any(dx is not None for dx in moved):
            assert self._g is not None
            change = self._spread(moved)
            found = self._form.hvp(*self._tensors, g=self._g, change=change, wanted=asked, pushing=False, of_g=u)
        elif u is not None:
            found = self._form.vjp(*self._tensors, g=u, wanted=asked)
        return [found[place] for place in self._places]

    def _spread(self, moved: Tangents) -> Parts:
        change: list[Tensor | None] = [None] * self._form.inputs
        for place, dx in zip(self._places, moved, strict=True):
            change[place] = dx
        return tuple(change)

    def tensors(self) -> Iterator[Tensor]:
        """What it holds."""
        return (tensor for tensor in (*self._tensors, self._g) if tensor is not None)
