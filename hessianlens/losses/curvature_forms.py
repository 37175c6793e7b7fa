"""The second derivative of a loss at the output of a layer, in the form in which it is smallest.

``C[(s,i,f), (s,j,g)] = d^2 l / dF_sif dF_sjg``. Sequences are never coupled. Each form writes itself as factors in
index notation, so that every closed form serves all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hessianlens.operators.term import Factor

if TYPE_CHECKING:
    from typing import Self


class OutputCurvature(ABC):
    """C, as factors between a row output (token, feature) and a column output."""

    coupled: bool = False
    """Whether two different tokens of a sequence are coupled."""

    @abstractmethod
    def has_curvature(self) -> Tensor:
        """``[s, i]``: whether a token has any curvature at all."""

    @abstractmethod
    def at(self, kept: Tensor | slice) -> OutputCurvature:
        """The curvature at some of the tokens only."""

    @abstractmethod
    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """C between (token, feature) letters; without coupling the two token letters must be the same."""

    @abstractmethod
    def apply(self, change: Tensor) -> Tensor:
        """``C dF`` for some changes of the output, ``[z, s, i, f]``, which may be overwritten."""

    @abstractmethod
    def restricted(self, rows: slice, columns: slice) -> OutputCurvature:
        """C between some features and others, as it is seen by heads that put out different ones."""

    def tensors(self) -> list[Tensor]:
        """The numbers that it holds."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]


class UncoupledCurvature(OutputCurvature):
    """C_i for every token by itself."""

    @abstractmethod
    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """``left C_i right^T`` for matrices ``[s, l, f]`` and ``[s, m, f]``: ``[s, i, l, m]``."""

    def times(self, matrices: Tensor) -> Tensor:
        """``C_i M_i`` for a matrix of every token, ``[s, i, f, b]``."""
        return self.apply(matrices.permute(3, 0, 1, 2).clone()).permute(1, 2, 3, 0)

    def diagonals(self, like: Tensor) -> Tensor:
        """``(C_i)_ff``, ``[s, i, f]``, shaped as the outputs."""
        eye = torch.eye(like.shape[2], dtype=like.dtype, device=like.device)
        return torch.diagonal(self.times(eye.expand(*like.shape[:2], -1, -1)), dim1=-2, dim2=-1)

    @abstractmethod
    def at(self, kept: Tensor | slice) -> UncoupledCurvature:
        """The curvature at some of the tokens only."""

    @abstractmethod
    def restricted(self, rows: slice, columns: slice) -> UncoupledCurvature:
        """C between some features and others."""

    def of_sequences(self, start: int, stop: int) -> Self:
        """The curvature of a range of sequences only: every form begins with them."""
        cut = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                object.__setattr__(cut, name, value[start:stop])
        return cut


@dataclass(frozen=True, eq=False)
class ScalarCurvature(UncoupledCurvature):
    """``C_i = c_i I``, a number for every token."""

    values: Tensor
    width: int

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return self.values != 0

    def at(self, kept: Tensor | slice) -> ScalarCurvature:
        """The curvature at some of the tokens only."""
        return ScalarCurvature(self.values[:, kept], self.width)

    def restricted(self, rows: slice, columns: slice) -> UncoupledCurvature:
        """The same number; between different features parts of an identity."""
        if rows == columns:
            return ScalarCurvature(self.values, len(range(self.width)[rows]))
        eye = torch.eye(self.width, dtype=self.values.dtype, device=self.values.device)[rows, columns]
        return TokenCurvature(self.values[..., None, None] * eye)

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """A number per token and an identity on the features."""
        return Factor("c", "s" + row[0], self.values), Factor.identity(row[1] + column[1], self.width)

    def apply(self, change: Tensor) -> Tensor:
        """Every token by its number."""
        return change.mul_(self.values[..., None])

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """One Gram matrix, scaled for every token."""
        return self.values[..., None, None] * (left @ right.transpose(-1, -2))[:, None]

    def times(self, matrices: Tensor) -> Tensor:
        """Every token by its number."""
        return self.values[..., None, None] * matrices


@dataclass(frozen=True, eq=False)
class TokenCurvature(UncoupledCurvature):
    """``C_i``, a symmetric matrix for every token."""

    matrices: Tensor

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return self.matrices.flatten(2).any(-1)

    def at(self, kept: Tensor | slice) -> TokenCurvature:
        """The curvature at some of the tokens only."""
        return TokenCurvature(self.matrices[:, kept])

    def restricted(self, rows: slice, columns: slice) -> TokenCurvature:
        """Parts of the matrices."""
        return TokenCurvature(self.matrices[..., rows, columns])

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """One matrix per token."""
        return (Factor("C", "s" + row[0] + row[1] + column[1], self.matrices),)

    def apply(self, change: Tensor) -> Tensor:
        """Every token by its matrix."""
        return torch.einsum("sifg,zsig->zsif", self.matrices, change)

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """A Gram matrix of every token."""
        return left[:, None] @ self.matrices @ right[:, None].transpose(-1, -2)

    def times(self, matrices: Tensor) -> Tensor:
        """A product per token."""
        return self.matrices @ matrices

    def diagonals(self, like: Tensor) -> Tensor:
        """Those of the matrices."""
        return torch.diagonal(self.matrices, dim1=-2, dim2=-1)


@dataclass(frozen=True, eq=False)
class LowRankTokenCurvature(UncoupledCurvature):
    """``C_i = R_i R_i^T`` for every token, kept factored.

    Args:
        root: ``R``, shape (L, d_V, r) or (B, L, d_V, r).
    """

    root: Tensor

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return (self.root != 0).any(-1).any(-1)

    def at(self, kept: Tensor | slice) -> LowRankTokenCurvature:
        """The curvature at some of the tokens only."""
        return LowRankTokenCurvature(self.root[:, kept])

    def restricted(self, rows: slice, columns: slice) -> UncoupledCurvature:
        """Rows of the roots."""
        left, right = self.root[:, :, rows], self.root[:, :, columns]
        return LowRankTokenCurvature(left) if rows == columns else FactoredTokenCurvature(left, right)

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """Two thin factors."""
        return Factor("R", "s" + row[0] + row[1] + "r", self.root), Factor(
            "R", "s" + row[0] + column[1] + "r", self.root
        )

    def apply(self, change: Tensor) -> Tensor:
        """Two thin products per token."""
        return torch.einsum("sifr,zsir->zsif", self.root, torch.einsum("sigr,zsig->zsir", self.root, change))

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """Product of two thin matrices of every token."""
        return (left[:, None] @ self.root) @ (right[:, None] @ self.root).transpose(-1, -2)

    def diagonals(self, like: Tensor) -> Tensor:
        """Squares of the rows of the roots."""
        return self.root.square().sum(-1)


@dataclass(frozen=True, eq=False)
class FactoredTokenCurvature(UncoupledCurvature):
    """``C_i = L_i R_i^T``, symmetric but of any sign, for every token, kept factored.

    Args:
        left: ``L``, shape (B, L, d_V, r).
        right: ``R``, the same shape.

    >>> J, Lambda = torch.tensor([[[[1.0], [2.0]]]]), -3.0
    >>> FactoredTokenCurvature(J, Lambda * J).between(torch.eye(2)[None], torch.eye(2)[None])[0, 0]
    tensor([[ -3.,  -6.],
            [ -6., -12.]])
    """

    left: Tensor
    right: Tensor

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return ((self.left != 0) & (self.right != 0).any(-2, keepdim=True)).any(-1).any(-1)

    def at(self, kept: Tensor | slice) -> FactoredTokenCurvature:
        """The curvature at some of the tokens only."""
        return FactoredTokenCurvature(self.left[:, kept], self.right[:, kept])

    def restricted(self, rows: slice, columns: slice) -> FactoredTokenCurvature:
        """Rows of both factors."""
        return FactoredTokenCurvature(self.left[:, :, rows], self.right[:, :, columns])

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """Two thin factors."""
        return Factor("L", "s" + row[0] + row[1] + "r", self.left), Factor(
            "R", "s" + row[0] + column[1] + "r", self.right
        )

    def apply(self, change: Tensor) -> Tensor:
        """Two thin products per token."""
        return torch.einsum("sifr,zsir->zsif", self.left, torch.einsum("sigr,zsig->zsir", self.right, change))

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """Product of two thin matrices of every token."""
        return (left[:, None] @ self.left) @ (right[:, None] @ self.right).transpose(-1, -2)


@dataclass(frozen=True, eq=False)
class CoupledCurvature(OutputCurvature):
    """``C_ij`` for every pair of tokens of a sequence."""

    matrices: Tensor
    coupled = True

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return (self.matrices != 0).flatten(2).any(-1)

    def at(self, kept: Tensor | slice) -> CoupledCurvature:
        """The curvature at some of the tokens only."""
        return CoupledCurvature(self.matrices[:, kept][:, :, :, kept])

    def restricted(self, rows: slice, columns: slice) -> CoupledCurvature:
        """Parts of the matrices."""
        return CoupledCurvature(self.matrices[:, :, rows][..., columns])

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """One matrix per pair of tokens."""
        return (Factor("C", "s" + row[0] + row[1] + column[0] + column[1], self.matrices),)

    def apply(self, change: Tensor) -> Tensor:
        """All tokens of a sequence by one matrix."""
        return torch.einsum("sifjg,zsjg->zsif", self.matrices, change)


@dataclass(frozen=True, eq=False)
class LowRankCoupledCurvature(OutputCurvature):
    """``C = R R^T`` over all tokens and features of a sequence, kept factored.

    Args:
        root: ``R``, shape (L, d_V, r) or (B, L, d_V, r); r is shared by the tokens of a sequence.
    """

    root: Tensor
    coupled = True

    def has_curvature(self) -> Tensor:
        """Whether a token has any curvature at all."""
        return (self.root != 0).any(-1).any(-1)

    def at(self, kept: Tensor | slice) -> LowRankCoupledCurvature:
        """The curvature at some of the tokens only."""
        return LowRankCoupledCurvature(self.root[:, kept])

    def restricted(self, rows: slice, columns: slice) -> OutputCurvature:
        """Rows of the roots."""
        left, right = self.root[:, :, rows], self.root[:, :, columns]
        if rows == columns:
            return LowRankCoupledCurvature(left)
        return CoupledCurvature(torch.einsum("sifr,sjgr->sifjg", left, right))

    def factors(self, row: tuple[str, str], column: tuple[str, str]) -> tuple[Factor, ...]:
        """Two thin factors that share their rank index."""
        return Factor("R", "s" + row[0] + row[1] + "r", self.root), Factor(
            "R", "s" + column[0] + column[1] + "r", self.root
        )

    def apply(self, change: Tensor) -> Tensor:
        """Two thin products per sequence."""
        return torch.einsum("sifr,zsr->zsif", self.root, torch.einsum("sjgr,zsjg->zsr", self.root, change))
