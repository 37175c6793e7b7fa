"""The curvature of cross-entropy at its logits, kept as probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, diagonal

from hessianlens.losses.curvature_forms import TokenCurvature, UncoupledCurvature
from hessianlens.near_one_hot import Peak
from hessianlens.operators.term import Factor


@dataclass(frozen=True, eq=False)
class SoftmaxCurvature(UncoupledCurvature):
    """``C_i = w_i (diag p_i - p_i p_i^T)``, the covariance of a distribution over f classes, for every token.

    An HVP takes f multiply-adds per token instead of f^2, and no f x f matrix is held.

    Args:
        weight: ``w``, (B, L).
        probabilities: ``p``, (B, L, f); rows sum to one.

    >>> import torch
    >>> C = SoftmaxCurvature(torch.ones(1, 1), torch.tensor([[[0.5, 0.5]]]))
    >>> C.matrices[0, 0]
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    >>> C.apply(torch.tensor([[[[1.0, 0.0]]]]))
    tensor([[[[ 0.2500, -0.2500]]]])
    """

    weight: Tensor
    probabilities: Tensor

    @cached_property
    def _peak(self) -> Peak:
        return Peak(self.probabilities)

    @cached_property
    def _scaled(self) -> Tensor:
        """``w_i p_i``."""
        return self.weight[..., None] * self.probabilities

    @cached_property
    def _variances(self) -> Tensor:
        """``w_i p_i (1 - p_i)``, the diagonals."""
        return self._scaled * self._peak.complement

    @cached_property
    def matrices(self) -> Tensor:
        """``C_i`` as a matrix for every token, ``[s, i, f, f]``."""
        root = self.weight.sqrt()[..., None] * self.probabilities
        found = -root[..., :, None] * root[..., None, :]
        diagonal(found, dim1=-2, dim2=-1).copy_(self._variances)
        return found

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return self._variances.any(-1)

    def at(self, kept: Tensor | slice) -> SoftmaxCurvature:
        """The curvature at some of the tokens only."""
        return SoftmaxCurvature(self.weight[:, kept], self.probabilities[:, kept])

    def of_sequences(self, start: int, stop: int) -> SoftmaxCurvature:
        """The curvature of a range of sequences only."""
        return SoftmaxCurvature(self.weight[start:stop], self.probabilities[start:stop])

    def restricted(self, rows: slice, columns: slice) -> TokenCurvature:
        """Parts of the matrices."""
        return TokenCurvature(self.matrices[..., rows, columns])

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """One matrix per token."""
        return (Factor("C", "s" + row[0] + row[1] + column[1], self.matrices),)

    def apply(self, change: Tensor) -> Tensor:
        """Differences from the mean, times the probabilities."""
        return self._peak.centre_(change).mul_(self._scaled)

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """A covariance of every token."""
        return left[:, None] @ self.times(right[:, None].mT)

    def times(self, matrices: Tensor) -> Tensor:
        """Differences of the rows from their mean, times the probabilities."""
        if self._peak.close_to_one:
            place = self._peak.place[..., None].expand(*self.probabilities.shape[:-1], 1, matrices.shape[-1])
            matrices = matrices - matrices.expand(*self.probabilities.shape, -1).gather(-2, place)
            return (matrices - self._peak.others[..., None, :] @ matrices).mul_(self._scaled[..., None])
        return (matrices - self.probabilities[..., None, :] @ matrices).mul_(self._scaled[..., None])

    def diagonals(self, like: Tensor) -> Tensor:
        """Variances."""
        return self._variances
