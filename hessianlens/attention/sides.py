"""Queries, keys or values as a smooth function of every token: ``q_n = phi(W^T x_n)``, with both of its derivatives.

A layer sees a weight of queries, keys or values through three things: what it is multiplied with (``u_n``), the
Jacobian from there to the queries (``M_n``), and the second derivative along the gradient with respect to the queries
(the `InputCurvature`). Rotary positions and norms, in either order, are made of these. Where a weight acts on what
another one puts out, as in a map of low rank, the two have a second derivative of their own (the `FactorLink`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxtyping import Float, Int
from torch import Tensor

from hessianlens.attention.query_key_norm import NormalisedRows, QueryKeyNorm
from hessianlens.attention.token_maps import Rotation, Scaling, TokenMap, compose_maps


class InputCurvature(ABC):
    """The second derivatives of queries, or of keys, with respect to what their parameters put out."""

    @abstractmethod
    def along(self, cotangents: Float[Tensor, "s n k"]) -> dict[tuple[str, str], Float[Tensor, "s n p r"]]:
        """``sum_e w_ne d^2 q_ne / dz dz'`` by the names of two parameters; of (a, b) and (b, a) only one is there."""

    @abstractmethod
    def at(self, kept: Int[Tensor, " n"]) -> InputCurvature:
        """That of some tokens only."""


@dataclass(frozen=True, eq=False)
class FactorLink:
    """Two factors of one map: a parameter acts on what another one puts out, with a smooth function between.

    Attributes:
        outer: The parameter that acts last.
        inner: The one that acts first.
        jacobian: Of what the outer one is multiplied with, by what the inner one puts out, ``[s, n, r, t]``.
    """

    outer: str
    inner: str
    jacobian: Float[Tensor, "s n r t"]

    def at(self, kept: Int[Tensor, " n"]) -> FactorLink:
        """That of some tokens only."""
        return replace(self, jacobian=self.jacobian[:, kept])


@dataclass(frozen=True, eq=False)
class Side:
    """Queries, keys or values.

    Attributes:
        rows: As they meet in the scores, ``[s, n, k]``.
        inputs: What every parameter is multiplied with, ``u_n``, ``[s, n, .]``.
        maps: From what a parameter puts out to the rows; None for the identity.
        curvature: Their second derivatives; None where they are linear in what all parameters put out.
        links: Parameters of which one acts on what the other puts out.
    """

    rows: Float[Tensor, "s n k"]
    inputs: Mapping[str, Float[Tensor, "s n p"]]
    maps: Mapping[str, TokenMap | None]
    curvature: InputCurvature | None = None
    links: tuple[FactorLink, ...] = ()


@dataclass(frozen=True, eq=False)
class NormCurvature(InputCurvature):
    """That of ``gain * n(z)``.

    Attributes:
        weight: Name of the weight in front of the norm.
        gain: Name of the gain; None where there is none.
        normalised: n, and its derivatives.
        factors: The gain itself; None for one.
        before: What acts in front of the norm.
        behind: What acts behind the gain.
    """

    weight: str
    gain: str | None
    normalised: NormalisedRows
    factors: Float[Tensor, " k"] | None
    before: TokenMap | None
    behind: TokenMap | None

    def along(self, cotangents: Float[Tensor, "s n k"]) -> dict[tuple[str, str], Float[Tensor, "s n p r"]]:
        """The norm's own second derivative, and its Jacobian between the weight and the gain."""
        w = cotangents if self.behind is None else self.behind.turn_own_back(cotangents)
        own = self.normalised.second_derivative(w if self.factors is None else w * self.factors)
        found = {(self.weight, self.weight): own}
        if self.gain is not None:
            found[self.weight, self.gain] = self.normalised.matrices() * w[..., None, :]
        if self.before is None:
            return found
        R = self.before.matrices()
        found = {names: R.mT @ matrices for names, matrices in found.items()}
        return found | {(self.weight, self.weight): found[self.weight, self.weight] @ R}

    def at(self, kept: Int[Tensor, " n"]) -> NormCurvature:
        """That of some tokens only."""
        before, behind = (None if each is None else each.at(kept) for each in (self.before, self.behind))
        return replace(self, normalised=self.normalised.at(kept), before=before, behind=behind)


def plain_side(name: str, X: Tensor, W: Tensor, rotation: Rotation | None = None) -> Side:
    """``R_n W^T x_n``.

    Args:
        name: Of the weight.
        X: Tokens.
        W: The weight.
        rotation: Positions; None where there are none.
    """
    rows = X @ W
    return Side(rows if rotation is None else rotation.turn(rows), {name: X}, {name: rotation})


def normed_side(
    name: str, X: Tensor, W: Tensor, norm: QueryKeyNorm, ones: Tensor, rotation: Rotation | None, rotated_first: bool
) -> Side:
    """``R_n (gain * n(W^T x_n) + shift)``, or the norm behind the rotation.

    Args:
        name: Of the weight, "Q" or "K".
        X: Tokens.
        W: The weight.
        norm: The norm.
        ones: ``[s, n, 1]``, what gain and shift are multiplied with.
        rotation: Positions; None where there are none.
        rotated_first: Whether the norm acts behind the rotation.
    """
    before, behind = (rotation, None) if rotated_first else (None, rotation)
    z = X @ W
    normalised = norm.normalised(z if before is None else before.turn(z))
    gain = None if norm.gain is None else norm.gain.clone()
    q = normalised.rows if gain is None else normalised.rows * gain
    q = q if norm.shift is None else q + norm.shift * ones
    scaling = None if gain is None else Scaling(gain[None, None])
    inputs, maps = {name: X}, {name: compose_maps([before, normalised, scaling, behind])}
    if norm.gain is not None:
        inputs[f"gain_{name}"], maps[f"gain_{name}"] = ones, compose_maps([Scaling(normalised.rows), behind])
    if norm.shift is not None:
        inputs[f"shift_{name}"], maps[f"shift_{name}"] = ones, behind
    curvature = NormCurvature(name, None if gain is None else f"gain_{name}", normalised, gain, before, behind)
    return Side(q if behind is None else behind.turn(q), inputs, maps, curvature)
