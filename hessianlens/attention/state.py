"""One head at one batch: everything its Hessian is made of, and how each parameter enters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessianlens.attention.activations import Activation
from hessianlens.attention.rows import RowMatrices


@dataclass(frozen=True, eq=False)
class ScorePort:
    """How a matrix parameter W enters the scores: ``dT_i = matrix (dW . vector_i) / scale``.

    The vector of token i contracts one axis of W; the matrix carries the other axis to the key tokens.

    Attributes:
        vector: ``[s, i, .]``, with the name it prints under.
        vector_axis: The axis of W (0 or 1) that the vector contracts.
        matrix: ``[s, l, .]``, on the other axis.
    """

    vector: Float[Tensor, "s i p"]
    vector_name: str
    vector_axis: int
    matrix: Float[Tensor, "s l q"]
    matrix_name: str


@dataclass(frozen=True, eq=False)
class ValuePort:
    """How a matrix parameter W enters the values: ``dF_i = readout^T dW^T vector_i`` with ``vector = A content``.

    Attributes:
        content: ``[s, l, .]``, what attention averages before W acts on it.
        vector: ``[s, i, .] = A content``.
        width: Columns of W.
        readout: The fixed matrix behind W, ``[., f]``; ``None`` for the identity.
    """

    content: Float[Tensor, "s l p"]
    content_name: str
    vector: Float[Tensor, "s i p"]
    vector_name: str
    width: int
    readout: Float[Tensor, "q f"] | None = None
    readout_name: str = ""


@dataclass(frozen=True, eq=False)
class HeadState:
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
        value_pair: Two parameters whose product forms the values, if there are two.
    """

    queries: Float[Tensor, "s i d"]
    tokens: Float[Tensor, "s l d"]
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

    @cached_property
    def output(self) -> Float[Tensor, "s i f"]:
        """``F = A V`` of this head."""
        return self.weights @ self.values

    @cached_property
    def jacobian(self) -> RowMatrices:
        """``J_i = dA_i/dT_i`` for every query token."""
        return self.activation.jacobian(self.scores, self.visible)

    def at(self, kept: Int[Tensor, " n"]) -> HeadState:
        """The same head at some of its query tokens only; every token stays a key."""
        score_ports = {name: replace(port, vector=port.vector[:, kept]) for name, port in self.score_ports.items()}
        value_ports = {name: replace(port, vector=port.vector[:, kept]) for name, port in self.value_ports.items()}
        return replace(
            self,
            queries=self.queries[:, kept],
            scores=self.scores[:, kept],
            visible=self.visible[:, kept],
            weights=self.weights[:, kept],
            score_ports=score_ports,
            value_ports=value_ports,
        )

    def curvature(self, gradient: Float[Tensor, "s i f"]) -> RowMatrices:
        """``D_i(w_i)`` with ``w_ij = g_i . v_j``: the activation's second derivative as the loss sees it."""
        return self.activation.curvature(self.scores, self.visible, self.pulled_back(gradient))

    def pulled_back(self, gradient: Float[Tensor, "s i f"]) -> Float[Tensor, "s i l"]:
        """``w_ij = g_i . v_j``, the gradient of the loss with respect to A."""
        return gradient @ self.values.transpose(-1, -2)
