"""Products with the row derivatives of an activation, for some vectors per row, which may be overwritten."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.rows import RowColumns, RowMatrices

Changes = Float[Tensor, "z s i l"]


class RowTangent:
    """How weights, and the gradient with respect to scores, change with the scores: ``J``, ``J^T`` and ``D(w)``.

    Args:
        jacobian: Gives ``J_i`` for every row, when first needed.
        curvature: Gives ``D_i(w_i)`` for the weights w of a gradient, when first needed.
    """

    def __init__(self, jacobian: Callable[[], RowMatrices], curvature: Callable[[], RowMatrices]) -> None:
        self._jacobian, self._make_curvature = jacobian, curvature

    @cached_property
    def _curvature(self) -> RowMatrices:
        return self._make_curvature()

    def seen(self, change: Changes) -> Changes:
        """A change of scores without what J and D do not see; the other two methods are given it in this form."""
        return change

    def jvp(self, change: Changes) -> Changes:
        """``J t``, the change of the weights."""
        return self._jacobian().apply_rows(change)

    def vjp(self, weights: Changes | None, change: Changes | None) -> Changes:
        """``J^T w + D(w_0) t``, with at least one of the two."""
        first = None if weights is None else self._jacobian().transpose().apply_rows(weights)
        if change is None:
            assert first is not None
            return first
        second = self._curvature.apply_rows(change)
        return second if first is None else first + second

    def jacobian_columns(self) -> RowColumns | None:
        """J as diagonal and columns; None if it is dense."""
        return self._jacobian().columns()

    def curvature_columns(self) -> RowColumns | None:
        """``D(w)`` as diagonal and columns; None if it is dense."""
        return self._curvature.columns()

    def held_tensors(self) -> list[Tensor]:
        """The numbers that a product reads."""
        parts = [(m.diagonal, m.left, m.right, m.dense) for m in (self._jacobian(), self._curvature)]
        return [tensor for part in parts for tensor in part if tensor is not None]
