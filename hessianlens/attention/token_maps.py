"""Linear maps for every token: what stands between a weight and the queries or keys that meet in the scores.

Rotary positions turn every query and key; the Jacobian of a norm projects it. Whatever it is, queries move as
``dq_n = M_n dW^T x_n``, and the closed forms know M through the few products below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def rotate_half(vectors: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """``(-second half, first half)`` of the last axis: a quarter turn in every plane of two paired entries.

    >>> import torch
    >>> rotate_half(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [-3.0, -4.0, 1.0, 2.0]
    """
    first, second = vectors.chunk(2, -1)
    return torch.cat([-second, first], -1)


class TokenMap(ABC):
    """A linear map ``M_n`` for every token n of every sequence, from p numbers to k.

    Vectors are ``[..., s, n, .]``, or one for all tokens of a sequence, ``[..., s, 1, .]``.
    """

    @property
    @abstractmethod
    def width(self) -> int:
        """p, the numbers that a map takes."""

    @abstractmethod
    def turn(self, vectors: Float[Tensor, "*z p"]) -> Float[Tensor, "*y k"]:
        """``M_n v_n``."""

    @abstractmethod
    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y p"]:
        """``M_n^T v_n``."""

    def turn_back(self, vectors: Float[Tensor, "s m k"]) -> Float[Tensor, "s n m p"]:
        """``M_n^T v_m`` for every pair of tokens."""
        each = vectors.transpose(0, 1)[:, :, None]
        return self.turn_own_back(each).permute(1, 2, 0, 3)

    @abstractmethod
    def matrices(self) -> Float[Tensor, "#s n k p"]:
        """``M_n`` in full."""

    @abstractmethod
    def at(self, kept: Int[Tensor, " n"]) -> TokenMap:
        """The maps of some tokens only."""


@dataclass(frozen=True, eq=False)
class Rotation(TokenMap):
    """``R_n q = cos_n * q + sin_n * rotate_half(q)``.

    Attributes:
        cos: ``[s, n, k]``; a single sequence serves all of them.
        sin: The same.
    """

    cos: Float[Tensor, "#s n k"]
    sin: Float[Tensor, "#s n k"]

    @property
    def width(self) -> int:
        """Columns of the tables."""
        return self.cos.shape[-1]

    def turn(self, vectors: Float[Tensor, "*z s n k"]) -> Float[Tensor, "*z s n k"]:
        """``R_n v_n``."""
        return self.cos * vectors + self.sin * rotate_half(vectors)

    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y k"]:
        """``R_n^T v_n``."""
        return self.cos * vectors - rotate_half(self.sin * vectors)

    def turn_back(self, vectors: Float[Tensor, "s m k"]) -> Float[Tensor, "s n m k"]:
        """``R_n^T v_m`` for every pair of tokens."""
        cos, sin, each = self.cos[:, :, None], self.sin[:, :, None], vectors[:, None]
        return cos * each - rotate_half(sin * each)

    def matrices(self) -> Float[Tensor, "#s n k k"]:
        """``R_n`` in full, ``[s, n, e, b]``."""
        width = self.cos.shape[-1]
        quarter = rotate_half(torch.eye(width, dtype=self.cos.dtype, device=self.cos.device)).T
        return torch.diag_embed(self.cos) + self.sin[..., None] * quarter

    def at(self, kept: Int[Tensor, " n"]) -> Rotation:
        """The maps of some tokens only."""
        return Rotation(self.cos[:, kept], self.sin[:, kept])


@dataclass(frozen=True, eq=False)
class Scaling(TokenMap):
    """``v -> f_n * v``, entry by entry.

    Attributes:
        factors: ``[s, n, k]``; a single sequence, or a single token, serves all of them.
    """

    factors: Float[Tensor, "#s #n k"]

    @property
    def width(self) -> int:
        """Factors of a token."""
        return self.factors.shape[-1]

    def turn(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y k"]:
        """``f_n * v_n``."""
        return self.factors * vectors

    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y k"]:
        """The same: it is symmetric."""
        return self.factors * vectors

    def matrices(self) -> Float[Tensor, "#s n k k"]:
        """Diagonal matrices."""
        return torch.diag_embed(self.factors)

    def at(self, kept: Int[Tensor, " n"]) -> Scaling:
        """The factors of some tokens only."""
        return self if self.factors.shape[1] == 1 else Scaling(self.factors[:, kept])


@dataclass(frozen=True, eq=False)
class MatrixMap(TokenMap):
    """Matrices that are given.

    Attributes:
        given: ``[s, n, k, p]``.
    """

    given: Float[Tensor, "#s n k p"]

    @property
    def width(self) -> int:
        """Columns of a matrix."""
        return self.given.shape[-1]

    def turn(self, vectors: Float[Tensor, "*z p"]) -> Float[Tensor, "*y k"]:
        """``M_n v_n``."""
        return (self.given @ vectors[..., None])[..., 0]

    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y p"]:
        """``M_n^T v_n``."""
        return (self.given.mT @ vectors[..., None])[..., 0]

    def turn_back(self, vectors: Float[Tensor, "s m k"]) -> Float[Tensor, "s n m p"]:
        """``M_n^T v_m``, one product per token."""
        return vectors[:, None] @ self.given

    def matrices(self) -> Float[Tensor, "#s n k p"]:
        """What is given."""
        return self.given

    def at(self, kept: Int[Tensor, " n"]) -> MatrixMap:
        """The matrices of some tokens only."""
        return MatrixMap(self.given[:, kept])


@dataclass(frozen=True, eq=False)
class ComposedMap(TokenMap):
    """One map behind another.

    Attributes:
        maps: In the order in which they act.
    """

    maps: tuple[TokenMap, ...]

    @property
    def width(self) -> int:
        """What the first one takes."""
        return self.maps[0].width

    def turn(self, vectors: Float[Tensor, "*z p"]) -> Float[Tensor, "*y k"]:
        """The first one first."""
        for each in self.maps:
            vectors = each.turn(vectors)
        return vectors

    def turn_own_back(self, vectors: Float[Tensor, "*z k"]) -> Float[Tensor, "*y p"]:
        """The last one first."""
        for each in reversed(self.maps):
            vectors = each.turn_own_back(vectors)
        return vectors

    def matrices(self) -> Float[Tensor, "#s n k p"]:
        """Their product."""
        found = self.maps[0].matrices()
        for each in self.maps[1:]:
            found = each.matrices() @ found
        return found

    def at(self, kept: Int[Tensor, " n"]) -> ComposedMap:
        """The maps of some tokens only."""
        return ComposedMap(tuple(each.at(kept) for each in self.maps))


def compose_maps(maps: Sequence[TokenMap | None]) -> TokenMap | None:
    """Maps in the order in which they act, without those that are none; None if none is left."""
    found = tuple(each for each in maps if each is not None)
    return None if not found else found[0] if len(found) == 1 else ComposedMap(found)
