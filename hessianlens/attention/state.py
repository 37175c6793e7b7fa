"""One head at one batch: everything its Hessian is made of, and how each parameter enters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessianlens.attention.activations import Activation
from hessianlens.attention.moments import attention_entropy
from hessianlens.attention.rows import RowMatrices, RowTangent
from hessianlens.attention.sides import FactorLink, InputCurvature, Side
from hessianlens.attention.token_maps import TokenMap
from hessianlens.display import DisplayableRows, Entries, Grid, Picture
from hessianlens.sizes import number_of


@dataclass(frozen=True, eq=False)
class ScorePort:
    """How a matrix parameter W enters the scores: ``dT_i = matrix (dW . vector_i) / scale``.

    The vector of token i contracts one axis of W; the matrix carries the other axis to the key tokens. With rotary
    positions or a norm one of the two depends on both tokens: ``M_i^T matrix_l`` for queries, ``M_l^T vector_i`` for
    keys. These are formed when first asked for, as `matrices` and `vectors`.

    Attributes:
        vector: ``[s, i, .]``, with the name it prints under.
        vector_axis: The axis of W (0 or 1) that the vector contracts.
        matrix: ``[s, l, .]``, on the other axis.
        query_turn: Maps ``M_i`` of the query tokens, whose transposes act on the matrix.
        key_turn: Maps ``M_l`` of the key tokens, whose transposes act on the vector.
        other: The weight that the scores multiply W with, if they are ``X W_Q W_K^T X^T`` and no more.
    """

    vector: Float[Tensor, "s i p"]
    vector_name: str
    vector_axis: int
    matrix: Float[Tensor, "s l q"]
    matrix_name: str
    query_turn: TokenMap | None = None
    key_turn: TokenMap | None = None
    other: Float[Tensor, "d k"] | None = None

    @property
    def turn(self) -> TokenMap | None:
        """The maps of either kind of token."""
        return self.query_turn or self.key_turn

    @property
    def inputs(self) -> Float[Tensor, "s n p"]:
        """What the parameter is multiplied with: the vector of queries, the matrix of keys."""
        return self.vector if self.vector_axis == 0 else self.matrix

    @property
    def matrix_width(self) -> int:
        """Entries of `matrices` for a pair of tokens."""
        return self.matrix.shape[-1] if self.query_turn is None else self.query_turn.width

    @cached_property
    def vectors(self) -> Float[Tensor, "s i *p"]:
        """The vector of every query token ``[s, i, .]`` or, with a turn at the keys, of every pair ``[s, i, l, .]``."""
        return self.vector if self.key_turn is None else self.key_turn.turn_back(self.vector).transpose(1, 2)

    @cached_property
    def matrices(self) -> Float[Tensor, "s *l q"]:
        """The matrix for all query tokens ``[s, l, .]`` or, with a turn at the queries, for each ``[s, i, l, .]``."""
        return self.matrix if self.query_turn is None else self.query_turn.turn_back(self.matrix)

    def matrices_at(self, start: int, stop: int) -> Float[Tensor, "s n l q"]:
        """The matrix of a range of query tokens; one for all of them where they share it."""
        return self.matrix[:, None] if self.query_turn is None else self.matrices[:, start:stop]

    def at(self, kept: Int[Tensor, " n"], vector: Tensor) -> ScorePort:
        """The same port at some query tokens only, with the vectors of these."""
        turn = None if self.query_turn is None else self.query_turn.at(kept)
        return replace(self, vector=vector, query_turn=turn)


@dataclass(frozen=True, eq=False)
class ValuePort:
    """How a matrix parameter W enters the values: ``dF_i = readout^T dW^T vector_i`` with ``vector = A content``.

    Where values pass a map of their token, as the Jacobian of a norm, it is
    ``readout^T sum_l A_il M_l dW^T content_l``.

    Attributes:
        content: ``[s, l, .]``, what attention averages before W acts on it; possibly relative to its mean.
        weights: ``A``.
        width: Columns of W.
        readout: The fixed matrix behind W, ``[., f]``; ``None`` for the identity.
        whole: The content as it is, if that is not `content`.
        turn: ``M_l``, from what W puts out to the values; None for the identity.
    """

    content: Float[Tensor, "s l p"]
    content_name: str
    weights: Float[Tensor, "s i l"]
    vector_name: str
    width: int
    readout: Float[Tensor, "q f"] | None = None
    readout_name: str = ""
    whole: Float[Tensor, "s l p"] | None = None
    turn: TokenMap | None = None

    @cached_property
    def vector(self) -> Float[Tensor, "s i p"]:
        """``A content``, formed when first asked for: products of scores do without."""
        return self.weights @ (self.content if self.whole is None else self.whole)


@dataclass(frozen=True, eq=False)
class LinkedFactors:
    """What the second derivative of two parameters is made of, of which one acts on what the other puts out.

    With ``y_n = W_out^T psi(W_in^T u_n)`` it is ``sum_n v_nb J_n[a,d] u_nc`` between ``W_out[a,b]`` and ``W_in[c,d]``.

    Attributes:
        link: Their names, and J.
        inputs: ``u``, what the inner one is multiplied with, ``[s, n, c]``.
        gradient: ``v``, of the loss with respect to y, ``[s, n, b]``.
        scores: Whether they enter through the scores.
    """

    link: FactorLink
    inputs: Float[Tensor, "s n c"]
    gradient: Float[Tensor, "s n b"]
    scores: bool


@dataclass(frozen=True, eq=False, repr=False)
class HeadState(DisplayableRows):
    """One head evaluated at a batch X of shape (s, L, d).

    Attributes:
        queries: Rows x_i of the query tokens; all tokens, or those that `at` has kept.
        tokens: Rows x_l of all tokens.
        scores: ``T = Q K^T / scale`` plus any bias, before the activation.
        visible: Entries that take part.
        weights: ``A = a(T)``.
        values: ``V = X W_V``, rows v_l.
        scale: ``s = t sqrt(d_K)``, or ``t`` with a single query-key matrix.
        score_ports: Parameters that enter through the scores.
        value_ports: Parameters that enter through the values.
        score_pair: Two parameters whose product forms the scores, if there are two.
        query_names: Parameters of the queries.
        key_names: Parameters of the keys.
        query_curvature: Second derivatives of the queries; None where they are linear in their parameters.
        key_curvature: Those of the keys.
        value_pair: Two parameters whose product forms the values, if there are two.
        value_names: Parameters of the values in front of the readout, where they pass maps of their token.
        value_curvature: Second derivatives of the values; None where they are linear in their parameters.
        query_links: Parameters of the queries of which one acts on what the other puts out.
        key_links: Those of the keys.
        value_links: Those of the values.
    """

    queries: Float[Tensor, "s i d"]
    tokens: Float[Tensor, "s l e"]
    scores: Float[Tensor, "s i l"]
    visible: Bool[Tensor, "s i l"]
    weights: Float[Tensor, "s i l"]
    values: Float[Tensor, "s l f"]
    scale: float
    activation: Activation
    score_ports: dict[str, ScorePort]
    value_ports: dict[str, ValuePort]
    score_pair: tuple[str, str] | None = None
    value_pair: tuple[str, str] | None = None
    query_names: tuple[str, ...] = ()
    key_names: tuple[str, ...] = ()
    query_curvature: InputCurvature | None = None
    key_curvature: InputCurvature | None = None
    value_names: tuple[str, ...] = ()
    value_curvature: InputCurvature | None = None
    query_links: tuple[FactorLink, ...] = ()
    key_links: tuple[FactorLink, ...] = ()
    value_links: tuple[FactorLink, ...] = ()

    @cached_property
    def output(self) -> Float[Tensor, "s i f"]:
        """``F = A V`` of this head."""
        return self.weights @ self.values

    def __repr__(self) -> str:
        sequences, queries, tokens = self.weights.shape
        seen = f"{queries} of {tokens} tokens" if queries < tokens else number_of(tokens, "token")
        return f"HeadState of {number_of(sequences, 'sequence')} with {seen}, {self.activation}"

    def _records(self) -> list[dict[str, Any]]:
        sound = bool((self.weights >= 0).all())
        spread = attention_entropy(self.weights.detach()).mean(-1) if sound else None
        return [
            {
                "sequence": s,
                "tokens": weights.shape[1],
                "entropy": None if spread is None else float(spread[s]),
                "largest_weight": float(weights.max(-1).values.mean()),
                "largest_score": float(self.scores[s][self.visible[s]].abs().max()) if self.visible[s].any() else 0.0,
            }
            for s, weights in enumerate(self.weights.detach())
        ]

    def _picture(self, asked: bool) -> Picture | None:
        """The attention of the first sequence: a row per token that looks, a column per token that is looked at."""
        return attention_picture(self.weights[0].detach())

    @cached_property
    def jacobian(self) -> RowMatrices:
        """``J_i = dA_i/dT_i`` for every query token."""
        return self.activation.jacobian(self.scores, self.visible)

    def with_sides(self, queries: Side, keys: Side, values: Side | None = None) -> HeadState:
        """The same head, with how its queries and keys, and perhaps its values, are made of their parameters."""
        found = replace(
            self,
            query_names=tuple(queries.inputs),
            key_names=tuple(keys.inputs),
            query_curvature=queries.curvature,
            key_curvature=keys.curvature,
            query_links=queries.links,
            key_links=keys.links,
        )
        if values is None:
            return found
        return replace(
            found, value_names=tuple(values.inputs), value_curvature=values.curvature, value_links=values.links
        )

    def at(self, kept: Int[Tensor, " n"]) -> HeadState:
        """The same head at some of its query tokens only; every token stays a key."""
        cut = {id(port.vector): port.vector[:, kept] for port in self.score_ports.values()}  # shared ones once
        cut[id(self.queries)] = self.queries[:, kept]
        score_ports = {name: port.at(kept, cut[id(port.vector)]) for name, port in self.score_ports.items()}
        weights = self.weights[:, kept]
        value_ports = {name: replace(port, weights=weights) for name, port in self.value_ports.items()}
        return replace(
            self,
            queries=cut[id(self.queries)],
            scores=self.scores[:, kept],
            visible=self.visible[:, kept],
            weights=weights,
            score_ports=score_ports,
            value_ports=value_ports,
            query_curvature=None if self.query_curvature is None else self.query_curvature.at(kept),
            query_links=tuple(link.at(kept) for link in self.query_links),
        )

    def apart(self) -> HeadState:
        """The same head with copies of the weights that it refers to: it does not see what becomes of them."""
        score_ports = {n: replace(p, other=_copied(p.other)) for n, p in self.score_ports.items()}
        value_ports = {n: replace(p, readout=_copied(p.readout)) for n, p in self.value_ports.items()}
        return replace(self, score_ports=score_ports, value_ports=value_ports)

    def centred(self) -> HeadState:
        """The same derivatives from centred tokens, keys and values: a common component would only cancel.

        Where ``J_i 1 = 0`` (weights that do not change when all scores move together, as softmax) the keys may be
        shifted; where ``1^T J_i = 0`` (weights that sum to one) the values may be. The output moves with the values.
        """
        score_ports, value_ports, tokens, values = self.score_ports, self.value_ports, self.tokens, self.values
        found: dict[int, Tensor] = {}

        def shifted(rows: Tensor) -> Tensor:
            """Tokens enter in several places; they are held once."""
            if id(rows) not in found:
                found[id(rows)] = _shifted(rows)
            return found[id(rows)]

        moving = {n: p for n, p in score_ports.items() if self.may_shift(p)}
        if moving:
            score_ports = score_ports | {n: replace(p, matrix=shifted(p.matrix)) for n, p in moving.items()}
        if len(moving) == len(score_ports):
            tokens = shifted(tokens)
        if self.activation.fixed_sum:
            alike = {n: p for n, p in value_ports.items() if p.turn is None}
            value_ports = value_ports | {
                n: replace(p, content=shifted(p.content), whole=p.content) for n, p in alike.items()
            }
            values = shifted(values)
        return replace(self, tokens=tokens, values=values, score_ports=score_ports, value_ports=value_ports)

    def input_curvatures(
        self, score_gradient: Float[Tensor, "s i l"], gradient: Float[Tensor, "s i f"]
    ) -> dict[tuple[str, str], Float[Tensor, "s n p r"]]:
        """Second derivatives of queries, keys and values along the gradient of the loss, by two parameters of one side.

        Args:
            score_gradient: ``E / s``, the gradient of the loss with respect to the scores, over the scale.
            gradient: ``g``, that with respect to the output.
        """
        found: dict[tuple[str, str], Tensor] = {}
        if self.query_curvature is not None:
            found |= self.query_curvature.along(self._to_queries(score_gradient))
        if self.key_curvature is not None:
            found |= self.key_curvature.along(self._to_keys(score_gradient))
        if self.value_curvature is not None:
            found |= self.value_curvature.along(self._to_values(gradient))
        return found

    def linked_factors(
        self, score_gradient: Float[Tensor, "s i l"], gradient: Float[Tensor, "s i f"]
    ) -> list[LinkedFactors]:
        """Parameters of which one acts on what the other puts out, with what their second derivative is made of.

        Args:
            score_gradient: ``E / s``.
            gradient: ``g``.
        """
        found = []
        for links, along, of in (
            (self.query_links, self._to_queries, score_gradient),
            (self.key_links, self._to_keys, score_gradient),
        ):
            for link in links:
                turn, inner = self.score_ports[link.outer].turn, self.score_ports[link.inner].inputs
                w = along(of)
                found.append(LinkedFactors(link, inner, w if turn is None else turn.turn_own_back(w), scores=True))
        for link in self.value_links:
            turn, w = self.value_ports[link.outer].turn, self._to_values(gradient)
            v = w if turn is None else turn.turn_own_back(w)
            found.append(LinkedFactors(link, self.value_ports[link.inner].content, v, scores=False))
        if self.value_pair is not None:
            for name in self.value_names:
                port = self.value_ports[name]
                assert port.turn is not None
                link = FactorLink(self.value_pair[1], name, port.turn.matrices())
                found.append(LinkedFactors(link, port.content, self.weights.mT @ gradient, scores=False))
        return found

    def _to_queries(self, score_gradient: Tensor) -> Tensor:
        """The gradient of the loss with respect to the queries."""
        return score_gradient @ self.score_ports[self.query_names[0]].matrix

    def _to_keys(self, score_gradient: Tensor) -> Tensor:
        return score_gradient.mT @ self.score_ports[self.key_names[0]].vector

    def _to_values(self, gradient: Tensor) -> Tensor:
        readout = self.value_ports[self.value_names[0]].readout
        return self.weights.mT @ (gradient if readout is None else gradient @ readout.T)

    def may_shift(self, port: ScorePort) -> bool:
        """Whether the same vector added to all keys, or to what a key weight takes, leaves the weights as they are.

        Keys that pass maps of their own tokens are not alike.
        """
        return self.activation.shift_invariant and port.key_turn is None

    def tangent(self, gradient: Float[Tensor, "s i f"], vjp: Float[Tensor, "s i l"]) -> RowTangent:
        """Products with ``J_i`` and ``D_i(w_i)``, for a gradient and the w that it is pulled back to."""
        own = self.activation.tangent(self.weights, vjp)
        return RowTangent(lambda: self.jacobian, lambda: self.curvature(gradient)) if own is None else own

    def curvature(self, gradient: Float[Tensor, "s i f"]) -> RowMatrices:
        """``D_i(w_i)`` with ``w_ij = g_i . v_j``: the activation's second derivative as the loss sees it."""
        return self.activation.curvature(self.scores, self.visible, self.vjp_to_weights(gradient))

    def vjp_to_weights(self, gradient: Float[Tensor, "s i f"]) -> Float[Tensor, "s i l"]:
        """``w_ij = g_i . v_j``, the gradient of the loss with respect to A."""
        return gradient @ self.values.transpose(-1, -2)


def _copied(weight: Float[Tensor, "p q"] | None) -> Float[Tensor, "p q"] | None:
    return None if weight is None else weight.clone()


def _shifted(rows: Float[Tensor, "s l p"]) -> Float[Tensor, "s l p"]:
    """Rows relative to their sequence's mean row."""
    return rows - rows.mean(1, keepdim=True)


_CELLS = 40
"""Tokens up to which every weight is a cell with its number in a tooltip."""


def attention_picture(A: Float[Tensor, "i l"], label: str = "attention: row looks at column") -> Picture:
    """Attention weights as a picture."""
    if max(A.shape) > _CELLS:
        return Entries(A.tolist(), label)
    return Grid((), (), A.tolist(), label, log=False)
