"""A small matrix for every query token, kept as diagonal plus low rank where it is one, and products with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor, einsum

from hessianlens.near_one_hot import Peak
from hessianlens.operators.exponent_scaling import ldexp, size_exponents


@dataclass(frozen=True, eq=False)
class RowColumns:
    """``R_i = diag(diagonal_i) + sum_r c_r left_ri right_ri^T``, column by column: the same tensor may serve several.

    Attributes:
        diagonal: Entries ``[s, i, l]``.
        pairs: A number and two columns ``[s, i, l]`` for every summand of rank one.
    """

    diagonal: Float[Tensor, "s i l"] | None
    pairs: tuple[tuple[float, Float[Tensor, "s i l"], Float[Tensor, "s i l"]], ...]


@dataclass(frozen=True, eq=False)
class RowMatrices:
    """For every sequence s and query token i, an L x L matrix on the key tokens.

    ``R_i = diag(diagonal_i) + left_i right_i^T + dense_i``; each of the three parts may be absent. The derivatives of
    all built-in activations are diagonal plus low rank, so nothing of size L^3 is held for them; derivatives that
    autograd finds for a user's function are dense.

    Attributes:
        shape: Sequences, query tokens, key tokens.
        diagonal: Entries ``[s, i, l]``.
        left: Columns of the low-rank part, ``[s, i, l, r]``.
        right: Rows of the low-rank part, ``[s, i, m, r]``.
        dense: Entries ``[s, i, l, m]``.
    """

    shape: tuple[int, ...]
    diagonal: Float[Tensor, "s i l"] | None = None
    left: Float[Tensor, "s i l r"] | None = None
    right: Float[Tensor, "s i l r"] | None = None
    dense: Float[Tensor, "s i l l"] | None = None

    def tokens(self, start: int, stop: int) -> RowMatrices:
        """The matrices of a range of query tokens."""
        diagonal, left, right, dense = (
            None if p is None else p[:, start:stop] for p in (self.diagonal, self.left, self.right, self.dense)
        )
        return RowMatrices((self.shape[0], stop - start, self.shape[2]), diagonal, left, right, dense)

    def size_exponent(self) -> int:
        """E such that no entry is larger than a few times 2^e; 0 of no parts at all."""
        single = [part for part in (self.diagonal, self.dense) if part is not None]
        sizes = size_exponents(single) if single else []
        if self.left is not None and self.right is not None and self.left.numel():
            sizes.append(sum(size_exponents([self.left, self.right])))
        return max(sizes, default=0)

    def ldexp(self, exponent: int) -> RowMatrices:
        """``2^exponent R_i``."""
        if not exponent:
            return self
        diagonal, left, dense = (
            None if part is None else ldexp(part, exponent) for part in (self.diagonal, self.left, self.dense)
        )
        return RowMatrices(self.shape, diagonal, left, self.right, dense)

    def columns(self) -> RowColumns | None:
        """The same as columns; None if there is a dense part."""
        if self.dense is not None:
            return None
        if self.left is None or self.right is None:
            return RowColumns(self.diagonal, ())
        sides = zip(self.left.unbind(-1), self.right.unbind(-1), strict=True)
        return RowColumns(self.diagonal, tuple((1.0, left, right) for left, right in sides))

    def transpose(self) -> RowMatrices:
        """``R_i^T`` for every token."""
        dense = None if self.dense is None else self.dense.transpose(-1, -2)
        return RowMatrices(self.shape, self.diagonal, self.right, self.left, dense)

    def apply(self, matrix: Float[Tensor, "#s n l p"]) -> Float[Tensor, "s i l p"]:
        """``R_i M_i``; a size-1 sequence or token axis of `matrix` serves all of them."""
        found = None if self.diagonal is None else self.diagonal[..., None] * matrix
        if self.left is not None and self.right is not None:
            shared = matrix.shape[1] == 1 and self.shape[1] > 1
            inner = (
                einsum("silr,slp->sirp", self.right, matrix[:, 0].expand(self.shape[0], -1, -1))
                if shared
                else self.right.transpose(-1, -2) @ matrix
            )
            found = _plus(found, self.left @ inner)
        if self.dense is not None:
            found = _plus(found, self.dense @ matrix)
        if found is not None:
            return found
        return matrix.new_zeros(self.shape[0], self.shape[1], self.shape[2], matrix.shape[-1])

    def apply_rows(self, vectors: Float[Tensor, "z s i l"]) -> Float[Tensor, "z s i l"]:
        """``R_i v_zi`` for some vectors per token."""
        parts = []
        if self.diagonal is not None:
            parts.append(self.diagonal * vectors)
        if self.left is not None and self.right is not None:
            parts.append(einsum("silr,zsir->zsil", self.left, einsum("silr,zsil->zsir", self.right, vectors)))
        if self.dense is not None:
            parts.append(einsum("silm,zsim->zsil", self.dense, vectors))
        return sum(parts[1:], parts[0]) if parts else torch.zeros_like(vectors)

    def to_dense(self) -> Float[Tensor, "s i l l"]:
        """Every matrix in full."""
        sample = next((p for p in (self.diagonal, self.left, self.dense) if p is not None), None)
        length = self.shape[2]
        if sample is None:
            return torch.zeros(*self.shape, length)
        return self.apply(torch.eye(length, dtype=sample.dtype, device=sample.device)[None, None])


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    """A sum, in the memory of the first summand."""
    return more if total is None else total.add_(more)


def quotient_rows(peak: Peak, slopes: Float[Tensor, "s i l"]) -> RowMatrices:
    """``diag(b_i) - A_i b_i^T`` for weights A that sum to one and slopes b: the derivative of a quotient.

    Where a weight is nearly one, its own entry ``b_* - A_* b_*`` would cancel. Split at the largest weight of each row,
    ``A = A_* e_* + A'`` and b alike, the matrix is ``diag(b with b_* (1 - A_*) in its place) - A' b^T - A_* e_* b'^T``,
    of which every summand is as small as the whole.
    """
    shape, A = tuple(slopes.shape), peak.weights
    if not peak.close_to_one:
        parts = slopes, A[..., None], -slopes[..., None]
    else:
        at, others = peak.place, peak.others
        left = torch.stack([others, A - others], -1)
        right = -torch.stack([slopes, slopes.scatter(-1, at, 0.0)], -1)
        parts = slopes.scatter(-1, at, slopes.gather(-1, at) * peak.rest), left, right
    return RowMatrices(shape, *parts)


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
