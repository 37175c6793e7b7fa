"""Products of two tensors, entry by entry and of matrices; factors are moved into the smaller operand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hessianlens.curvature.tape.elementwise import ElementwiseStep
from hessianlens.curvature.tape.step import Cotangent, LinearStep, Step, Tangents, plus


def fuse_scaled_products(steps: Sequence[Step]) -> list[Step]:
    """The same steps, with ``y = c (a b)`` as one of them, also where the product is seen in another shape between."""
    maker = {step.output: step for step in steps}
    uses = Counter(node for step in steps for node in step.inputs)
    gone: set[Step] = set()
    for step in steps:
        if not isinstance(step, ElementwiseStep) or step.second_slope is not None or not _is_number(step.slope):
            continue
        before = maker.get(step.inputs[0])
        source = _source(before, maker, uses)
        if before is not None and source is not None and source.absorbs:
            source.scale(float(step.slope))
            before.output = step.output
            maker[step.output] = before
            gone.add(step)
    return [step for step in steps if step not in gone]


def _is_number(slope: Tensor | float) -> bool:
    return isinstance(slope, float) and slope != 1


def _source(step: Step | None, maker: dict[int, Step], uses: Counter[int]) -> MatrixProduct | None:
    """The product that a step passes on, if nobody else reads it on the way."""
    while step is not None and uses[step.output] == 1:
        if isinstance(step, MatrixProduct):
            return step
        step = maker.get(step.inputs[0]) if isinstance(step, LinearStep) else None
    return None


class _Bilinear(Step):
    """A product of two tensors, of which one may be a constant.

    Args:
        inputs: Numbers of those that depend on the leaves, left one first.
        output: Number of the product.
        left: The left one.
        right: The right one.
        active: Which of the two depend on the leaves.
    """

    def __init__(
        self, inputs: Sequence[int], output: int, left: Tensor, right: Tensor, active: tuple[bool, bool]
    ) -> None:
        super().__init__(inputs, output)
        self._shapes = (left.shape, right.shape)
        # Neither is read where the other one is a constant.
        self.left = left if active[1] else None
        self.right = right if active[0] else None
        self._active = active
        self.g: Tensor | None = None
        self.reads_moved = all(active)

    def keep(self, g: Tensor) -> None:
        """Only a product of two variables has a second derivative."""
        self.g = g if all(self._active) else None

    def _both(self, each: Sequence[Any], otherwise: Any) -> list[Any]:
        """Something for either side, from what is there for the active ones."""
        found = iter(each)
        return [next(found) if active else otherwise for active in self._active]


class EntrywiseProduct(_Bilinear):
    """``y = a b`` entry by entry, with broadcasting: ``dy = da b + a db``."""

    def forward(self, moved: Tangents) -> Tensor:
        """``da b + a db``."""
        da, db = self._both(moved, None)
        found = None if da is None else da * self.right
        if db is None:
            assert found is not None
            return found
        return self.left * db if found is None else _multiplied_in(found, self.left, db)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``u b + g db`` and ``u a + g da``, summed where an operand was repeated."""
        da, db = self._both(moved, None) if moved else (None, None)
        asked = self._both(wanted, False)
        sides = ((self.right, db, self._shapes[0]), (self.left, da, self._shapes[1]))
        found: list[Cotangent] = []
        for active, want, (other, change, shape) in zip(self._active, asked, sides, strict=True):
            if not active:
                continue
            total = self._side(u, other, change) if want else None
            found.append(None if total is None else total.sum_to_size(shape))
        return found

    def _side(self, u: Tensor | None, other: Tensor | None, change: Tensor | None) -> Tensor | None:
        first = None if u is None or other is None else u * other
        if change is None or self.g is None:
            return first
        return self.g * change if first is None else _multiplied_in(first, self.g, change)


class MatrixProduct(_Bilinear):
    """``y = c a b`` of two matrices, or of two stacks of them, with a number c that is 1 at first."""

    _factor = 1.0

    @property
    def absorbs(self) -> bool:
        """Whether a number is better multiplied with what it holds of a and b than with the product."""
        product = math.prod(self._shapes[0][:-1]) * self._shapes[1][-1]
        return sum(side.numel() for side in (self.left, self.right) if side is not None) < product

    def scale(self, factor: float) -> None:
        """Multiply c with a number, before anything is kept: it goes with a, with b and with the cotangent."""
        self._factor *= factor
        self.left, self.right = (None if side is None else side * factor for side in (self.left, self.right))

    def keep(self, g: Tensor) -> None:
        """``c g``."""
        super().keep(g if self._factor == 1 else g * self._factor)

    def forward(self, moved: Tangents) -> Tensor:
        """``c (da b + a db)``."""
        da, db = self._both(moved, None)
        found = None if da is None else da @ self.right
        if db is None:
            assert found is not None
            return found
        return _added(found, self.left, db)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``c (u b^T + g db^T)`` and ``c (a^T u + da^T g)``."""
        da, db = self._both(moved, None) if moved else (None, None)
        want_left, want_right = self._both(wanted, False)
        sides: list[Tensor | None] = [None, None]
        if want_left:
            first = None if u is None else u @ _turned(self.right)
            sides[0] = first if db is None or self.g is None else _added(first, self.g, _turned(db))
        if want_right:
            first = None if u is None else _turned(self.left) @ u
            sides[1] = first if da is None or self.g is None else _added(first, _turned(da), self.g)
        return [side for active, side in zip(self._active, sides, strict=True) if active]


def _multiplied_in(to: Tensor, left: Tensor | None, right: Tensor) -> Tensor:
    """``to + left right``, entry by entry; in place, since nobody else knows `to`, where it is large enough."""
    assert left is not None
    if to.shape == torch.broadcast_shapes(to.shape, left.shape, right.shape):
        return to.addcmul_(left, right)
    return torch.addcmul(to, left, right)


def _turned(matrix: Tensor | None) -> Tensor:
    assert matrix is not None
    return matrix.transpose(-1, -2)


def _added(to: Tensor | None, left: Tensor | None, right: Tensor) -> Tensor:
    """``to + left right``, in place: nobody else knows `to`."""
    assert left is not None
    if to is None:
        return left @ right
    return to.addmm_(left, right) if to.ndim == 2 else to.baddbmm_(left, right)


class Sum(Step):
    """``y = sum_k c_k x_k``, with broadcasting.

    Args:
        inputs: Numbers of the x.
        output: Number of y.
        factors: The c.
        shapes: Those of the x.
        shape: That of y.
    """

    def __init__(
        self,
        inputs: Sequence[int],
        output: int,
        factors: Sequence[float],
        shapes: Sequence[torch.Size],
        shape: torch.Size,
    ) -> None:
        super().__init__(inputs, output)
        self._factors, self._shapes, self._shape = tuple(factors), tuple(shapes), shape

    def forward(self, moved: Tangents) -> Tensor:
        """``sum_k c_k dx_k``."""
        found: Tensor | None = None
        for dx, factor in zip(moved, self._factors, strict=True):
            if dx is not None:
                found = plus(found, dx if factor == 1 else dx * factor)
        assert found is not None
        return found.expand(self._shape)

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """``c_k u``, summed where an x was repeated."""
        if u is None:
            return [None for _ in self.inputs]
        found: list[Cotangent] = []
        for want, factor, shape in zip(wanted, self._factors, self._shapes, strict=True):
            own = u.sum_to_size(shape) if want else None
            found.append(own if own is None or factor == 1 else own * factor)
        return found
