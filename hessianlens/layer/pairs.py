"""Two weights that meet in one product, ``W_Q W_K'`` in the scores or ``W_O W_U`` in the values.

Scores without positions see nothing of queries and keys but their merged matrix: ``dT = X_i N X' / s`` with
``N = dW_Q W_K' + W_Q dW_K'``, and both gradients follow from one, ``G = X_i' dE X / s``: ``G W_K`` and ``G' W_Q``. The
first derivative with respect to the product itself, B, is all of the second derivative between the two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hessianlens.attention.state import HeadState, LinkedFactors, ScorePort

MERGED = "Q K'"
"""What the merged matrix is called among the weights of its head."""
MERGED_MAX_COST_SHARE = 0.9
"""Share of the work below which another way is worth its further calls."""


class MergedScores:
    """The merged query-key matrix of a head, ``[d, d]``.

    Args:
        head: A head whose ports know the weights behind its queries and keys.
    """

    def __init__(self, head: HeadState) -> None:
        assert head.score_pair is not None
        self._queries, self._keys = head.score_pair
        self._others = {name: head.score_ports[name].other for name in head.score_pair}
        self.port = ScorePort(head.queries, "x", 0, head.tokens, "x")
        self._sizes = head.weights.shape

    @staticmethod
    def exist(head: HeadState) -> bool:
        """Whether the scores of a head are those of one matrix."""
        return head.score_pair is not None and all(port.other is not None for port in head.score_ports.values())

    def pay(self, names: Iterable[str]) -> bool:
        """Whether it is less work to go through the merged matrix, for changes of, or gradients with, these weights."""
        (sequences, rows, length), (width, inner) = self._sizes, self._weight(self._queries).shape
        tokens = {self._queries: sequences * rows, self._keys: sequences * length}
        apart = sum(inner * (width * tokens[name] + sequences * rows * length) for name in names)
        forming = sum(width * width * inner for _ in names)
        return forming + width * (width * sequences * rows + sequences * rows * length) < MERGED_MAX_COST_SHARE * apart

    @property
    def weights(self) -> list[Tensor]:
        """``W_K`` and ``W_Q``."""
        return [self._weight(name) for name in self._others]

    def _weight(self, name: str) -> Tensor:
        weight = self._others[name]
        assert weight is not None
        return weight

    def change(self, given: Mapping[str, Tensor]) -> Tensor:
        """``N``, ``[d, d, z]``, for changes ``[d, k, z]`` of one of the weights, or both."""
        total: Tensor | None = None
        for name, moved in given.items():
            by_vector = moved.permute(2, 0, 1)
            other = self._weight(name).expand(len(by_vector), -1, -1)
            left, right = (by_vector, other.mT) if name == self._queries else (other, by_vector.mT)
            total = torch.bmm(left, right) if total is None else total.baddbmm_(left, right)
        assert total is not None
        return total.permute(1, 2, 0)

    def gradient(self, name: str, merged: Tensor) -> Tensor:
        """``[d, k, z]`` for a weight, from G, ``[d, d, z]``."""
        by_vector = merged.permute(2, 0, 1)
        found = (by_vector if name == self._queries else by_vector.mT) @ self._weight(name)
        return found.permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class Pair(ABC):
    """The second derivative between two weights whose product has the gradient B.

    Attributes:
        gradient: ``B``.
        first: Name of the weight that acts first.
        second: Name of the other.
    """

    gradient: Tensor
    first: Hashable
    second: Hashable

    summand: ClassVar[str]
    """The summand of the Hessian that this is part of."""

    def meets(self, rows: Container[Hashable], columns: Container[Hashable]) -> bool:
        """Whether it takes part in a product between these rows and columns."""
        return (self.first in rows and self.second in columns) or (self.second in rows and self.first in columns)

    def products(self, given: Mapping[Hashable, Tensor], rows: Container[Hashable]) -> dict[Hashable, Tensor]:
        """What changes ``[*parameter, z]`` of one or both contribute to the gradients of the other."""
        found: dict[Hashable, Tensor] = {}
        if self.first in rows and self.second in given:
            found[self.first] = self._onto_first(given[self.second])
        if self.second in rows and self.first in given:
            found[self.second] = self._onto_second(given[self.first])
        return found

    @abstractmethod
    def _onto_first(self, second: Tensor) -> Tensor: ...

    @abstractmethod
    def _onto_second(self, first: Tensor) -> Tensor: ...


class ScorePair(Pair):
    """``B[a,c] delta_bd`` between ``W_Q[a,b]`` and ``W_K[c,d]``."""

    summand = "t_functional"

    def _onto_first(self, second: Tensor) -> Tensor:
        return (self.gradient @ second.flatten(1)).view(-1, *second.shape[1:])

    def _onto_second(self, first: Tensor) -> Tensor:
        return (self.gradient.T @ first.flatten(1)).view(-1, *first.shape[1:])


class ValuePair(Pair):
    """``B[a,d] delta_bc`` between ``W_O[a,b]`` and ``W_U[c,d]``."""

    summand = "functional"

    def _onto_first(self, second: Tensor) -> Tensor:
        return (self.gradient @ second.permute(2, 1, 0)).permute(1, 2, 0)

    def _onto_second(self, first: Tensor) -> Tensor:
        return (first.permute(2, 1, 0) @ self.gradient).permute(1, 2, 0)


@dataclass(frozen=True, eq=False)
class FactorPair(Pair):
    """``sum_n v_nb J_n[a,d] u_nc`` between ``W_out[a,b]`` and ``W_in[c,d]``, of which the first acts on the second.

    Attributes:
        jacobian: ``J``, ``[s, n, a, d]``.
        inputs: ``u``, ``[s, n, c]``; v is the gradient.
    """

    jacobian: Tensor
    inputs: Tensor

    def _onto_first(self, second: Tensor) -> Tensor:
        along = torch.einsum("snb,abz->snaz", self.gradient, second)
        return torch.einsum("snc,sndz->cdz", self.inputs, self.jacobian.mT @ along)

    def _onto_second(self, first: Tensor) -> Tensor:
        along = torch.einsum("snc,cdz->sndz", self.inputs, first)
        return torch.einsum("snaz,snb->abz", self.jacobian @ along, self.gradient)


class ScoreFactorPair(FactorPair):
    """Two factors of queries or of keys."""

    summand = "t_functional"


class ValueFactorPair(FactorPair):
    """Two factors of values."""

    summand = "functional"


def factor_pair(factors: LinkedFactors, names: Mapping[str, Hashable]) -> FactorPair:
    """The pair under the names that its weights have in the layer."""
    kind = ScoreFactorPair if factors.scores else ValueFactorPair
    link = factors.link
    return kind(factors.gradient, names[link.inner], names[link.outer], link.jacobian, factors.inputs)
