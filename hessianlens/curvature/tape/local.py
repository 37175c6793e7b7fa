"""A step that nothing is known about but what autograd says of it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from hessianlens.curvature.tape.recording import Unrecordable
from hessianlens.curvature.tape.step import Cotangent, Moved, Step
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
            self._pulled = self._vjp(self._y, self._leaves, self._cotangent, graph=True)
        self._bent: list[Tensor] = []

    def forward(self, moved: Moved) -> Tensor:
        """The derivative, with respect to a cotangent, of the pull-back's product with the tangents."""
        pairs = [(p, dx) for p, dx in zip(self._pulled, moved, strict=True) if dx is not None and p.requires_grad]
        if not pairs:
            return torch.zeros_like(self._y, requires_grad=False)
        pulled, tangents = zip(*pairs, strict=True)
        found = torch.autograd.grad(pulled, self._cotangent, tangents, retain_graph=True, allow_unused=True)[0]
        return torch.zeros_like(self._cotangent, requires_grad=False) if found is None else found

    def keep(self, g: Tensor) -> None:
        """The pull-back of g, on a graph."""
        with torch.enable_grad():
            self._bent = self._vjp(self._y, self._leaves, g, graph=True)

    def backward(
        self, u: Tensor | None, moved: Moved, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """Both parts by autograd."""
        found: list[Tensor | None] = [None for _ in self._leaves]
        if u is not None:
            found = list(self._vjp(self._y, self._leaves, u, graph=False))
        pairs = [(b, dx) for b, dx in zip(self._bent, moved, strict=False) if dx is not None and b.requires_grad]
        if pairs:
            bent, tangents = zip(*pairs, strict=True)
            changes = torch.autograd.grad(bent, self._leaves, tangents, retain_graph=True, allow_unused=True)
            found = [c if f is None else f if c is None else f + c for f, c in zip(found, changes, strict=True)]
        return list(found)

    def tensors(self) -> Iterator[Tensor]:
        """Those that go in and come out; what the graph between holds is not counted."""
        return iter([*self._leaves, self._y, *self._pulled, *self._bent])

    def _vjp(self, y: Tensor, leaves: Sequence[Tensor], u: Tensor, graph: bool) -> list[Tensor]:
        if not y.requires_grad:
            return [torch.zeros_like(x) for x in leaves]
        found = torch.autograd.grad(y, leaves, u, retain_graph=True, create_graph=graph, allow_unused=True)
        return [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)]
