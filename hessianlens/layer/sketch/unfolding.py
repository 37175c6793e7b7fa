"""A block read as a map between two pairs of its four axes, which random small matrices see through tokens alone.

A block between two parameters has the axes (a, b) of its rows and (c, d) of its columns. One of each pair, say a and c,
is carried by vectors ``u_n, v_n`` of the tokens; the other two, b and d, by small matrices ``G_n``. Read as

    Omega[b, d]  ->  Y[a, c] = sum_bd H[(a, b), (c, d)] Omega[b, d]  =  sum_n <G_n, Omega> u_n v_n^T,

it has the same entries, hence the same Frobenius norm, and ``E |Y|^2 = |H|^2`` for a random Omega with independent
entries of variance one. With ``Omega = r^(-1/2) sum_i b_i e_i^T`` of random signs nothing of the size of ``G_n`` is
formed. The transposed map, ``Y -> sum_n (u_n^T Y v_n) G_n``, makes the part of the norm along some directions exact.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Points:
    """Some Y, in coordinates in which the inner product of two is that of a vector and a covector.

    Attributes:
        vectors: ``[k, .]``.
        covectors: ``[k, .]``; the same where the coordinates are orthonormal.
    """

    vectors: Tensor
    covectors: Tensor

    def inner(self, other: Points) -> Tensor:
        """``<Y_i, Y'_j>``."""
        return self.covectors @ other.vectors.T

    def squares(self) -> Tensor:
        """``|Y_i|^2``."""
        return torch.linalg.vecdot(self.covectors, self.vectors)

    def combined(self, weights: Tensor) -> Points:
        """``sum_i weights_ji Y_i``."""
        if self.covectors is self.vectors:
            both = weights @ self.vectors
            return Points(both, both)
        return Points(weights @ self.vectors, weights @ self.covectors)

    def plus(self, other: Points) -> Points:
        """The sum, one by one."""
        if self.covectors is self.vectors:
            both = self.vectors + other.vectors
            return Points(both, both)
        return Points(self.vectors + other.vectors, self.covectors + other.covectors)

    @classmethod
    def joined(cls, some: list[Points]) -> Points:
        """One after the other."""
        vectors = torch.cat([points.vectors for points in some])
        if all(points.covectors is points.vectors for points in some):
            return cls(vectors, vectors)
        return cls(vectors, torch.cat([points.covectors for points in some]))

    def __len__(self) -> int:
        return len(self.vectors)


class Unfolding(ABC):
    """A block as a map from small matrices to pairs of token vectors.

    Attributes:
        left: Size of the axis b.
        right: Size of the axis d.
        unit: What every Y and every small matrix is divided by, so that squares stay within the range of numbers.
    """

    left: int
    right: int
    unit: float = 1.0

    @abstractmethod
    def responses(self, left: Tensor, right: Tensor) -> Points:
        """Y of ``sum_i left_i right_i^T`` for some pairs of stacks ``[k, r, b]`` and ``[k, r, d]``."""

    @abstractmethod
    def mean(self) -> Points:
        """``sum_n u_n v_n^T``: where all tokens respond alike."""

    @abstractmethod
    def small(self, directions: Points) -> Tensor:
        """``sum_n (u_n^T Y v_n) G_n`` for some Y, ``[k, b, d]``."""

    @cached_property
    def constant(self) -> float:
        """What the squared norm has beside that of the sum over tokens."""
        return 0.0

    @property
    @abstractmethod
    def probe_cost(self) -> float:
        """Multiply-adds of one response to a matrix of rank `RANK`."""

    @property
    @abstractmethod
    def direction_cost(self) -> float:
        """Multiply-adds of the part of the norm along one direction."""

    @property
    @abstractmethod
    def set_up_cost(self) -> float:
        """Multiply-adds that are needed once."""


RANK = 8
"""Rank of the random matrices: more of it costs more, less of it spreads more."""


class TokenPairs:
    """Y as weights of the pairs ``u_n v_n^T`` of tokens.

    Few tokens have their Gram matrix ``(u_n . u_m) (v_n . v_m)``; for many the entries of Y are the coordinates.

    Args:
        u: ``[n, a]``.
        v: ``[n, c]``.
    """

    def __init__(self, u: Tensor, v: Tensor) -> None:
        self.u, self.v = u, v
        self.by_gram = len(u) <= u.shape[1] * v.shape[1] / 8 and len(u) <= 4096

    @cached_property
    def _gram(self) -> Tensor:
        one = (self.u @ self.u.T).double()
        return one.square_() if self.v is self.u else one.mul_(self.v @ self.v.T)

    def points(self, weights: Tensor) -> Points:
        """Y of weights ``[k, n]``."""
        if self.by_gram:
            return Points(weights, weights @ self._gram)
        rows = torch.stack([(self.u.T * each) @ self.v for each in weights.to(self.u)]).flatten(1).double()
        return Points(rows, rows)

    def along(self, directions: Points) -> Tensor:
        """``u_n^T Y v_n``, ``[k, n]``."""
        if self.by_gram:
            return directions.covectors
        Y = directions.vectors.view(-1, self.u.shape[1], self.v.shape[1]).to(self.u)
        return torch.linalg.vecdot(self.u @ Y, self.v).double()

    @property
    def set_up_cost(self) -> float:
        """Multiply-adds of the Gram matrix."""
        n = len(self.u)
        return float(n * n * (self.u.shape[1] + (0 if self.v is self.u else self.v.shape[1]))) if self.by_gram else 0.0

    @property
    def point_cost(self) -> float:
        """Multiply-adds of one Y."""
        n = len(self.u)
        return float(n * n if self.by_gram else n * self.u.shape[1] * self.v.shape[1])


class SeveralBlocks(Unfolding):
    """The same random matrices for all of them; their responses side by side.

    Args:
        blocks: How often each counts, and the block; all of them have axes of the same sizes.
    """

    def __init__(self, blocks: Sequence[tuple[int, Unfolding]]) -> None:
        first = blocks[0][1]
        assert all((block.left, block.right) == (first.left, first.right) for _, block in blocks)
        self.left, self.right = first.left, first.right
        self.unit = max(block.unit for _, block in blocks)
        self._blocks = [(math.sqrt(times) * block.unit / self.unit, block) for times, block in blocks]

    def responses(self, left: Tensor, right: Tensor) -> Points:
        """Side by side."""
        return self._beside([block.responses(left, right) for _, block in self._blocks])

    def mean(self) -> Points:
        """Where all tokens of all of them respond alike."""
        return self._beside([block.mean() for _, block in self._blocks])

    def _beside(self, found: Sequence[Points]) -> Points:
        sizes = [size for size, _ in self._blocks]
        self._widths = [points.vectors.shape[1] for points in found]
        vectors = torch.cat([size * points.vectors for size, points in zip(sizes, found, strict=True)], 1)
        if all(points.covectors is points.vectors for points in found):
            return Points(vectors, vectors)
        covectors = [size * points.covectors for size, points in zip(sizes, found, strict=True)]
        return Points(vectors, torch.cat(covectors, 1))

    def small(self, directions: Points) -> Tensor:
        """The sum of all of them."""
        split = [each.split(self._widths, 1) for each in (directions.vectors, directions.covectors)]
        total: Tensor | None = None
        for (size, block), vectors, covectors in zip(self._blocks, *split, strict=True):
            found = size * block.small(Points(vectors, covectors))
            total = found if total is None else total + found
        assert total is not None
        return total

    @cached_property
    def constant(self) -> float:
        """The sum of all of them."""
        return sum(size**2 * block.constant for size, block in self._blocks)

    @property
    def set_up_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.set_up_cost for _, block in self._blocks)

    @property
    def probe_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.probe_cost for _, block in self._blocks)

    @property
    def direction_cost(self) -> float:
        """The sum of all of them."""
        return sum(block.direction_cost for _, block in self._blocks)
