"""Second derivatives of an attention layer with respect to its inputs, for layers and embeddings before it.

Its queries, keys and values are ``x_i W_Q``, ``x_l W_K`` and ``x_l W_V``. With ``P`` the Jacobian of the output by the
tokens, that of the attention by its queries, keys and values times these maps, and with the loss's g and C,

    C^X  =  P^T C P  +  sum_ab W_a (d^2 (g . F) / da db) W_b^T        over a, b among queries, keys and values,

in place of an HVP for every position and feature.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from hessianlens.attention import SelfAttention
from hessianlens.errors import InputError, expect
from hessianlens.layer.attention_core import AttentionCore, Between, ByOperand


@dataclass(frozen=True, eq=False)
class TokenDerivatives:
    """First and second derivatives of a loss with respect to the tokens of one sequence that enter a layer.

    Attributes:
        gradient: ``dl/dx_k``.
        ggn: The Gauss-Newton part of ``d^2 l / dx_k dx_l``.
        functional: The rest.
    """

    gradient: Float[Tensor, "l d"]
    ggn: Float[Tensor, "l d l d"]
    functional: Float[Tensor, "l d l d"]

    @property
    def full(self) -> Float[Tensor, "l d l d"]:
        """The sum of both parts."""
        return self.ggn + self.functional


def input_curvature(
    layer: SelfAttention,
    X: Float[Tensor, "l d"],
    grad: Float[Tensor, "l f"],
    curvature: Float[Tensor, "l f *more"],
    residual: bool = False,
) -> TokenDerivatives:
    """The curvature of a loss at the inputs of an attention layer, ``F = A X W_V``, or ``X + F``.

    Args:
        layer: With any activation, mask, bias, temperature and sink; without norms of queries and keys and gates.
        X: One sequence.
        grad: ``g_i = dl/dF_i``.
        curvature: ``C_i = d^2 l / dF_i^2`` of every token, (L, f, f), or of all pairs of them, (L, f, L, f).
        residual: Whether the loss sees ``X + F`` in place of F.

    >>> import torch
    >>> layer = SelfAttention.random(2, dtype=torch.float64)
    >>> X, g = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    >>> found = input_curvature(layer, X, g, torch.eye(2, dtype=torch.float64).expand(2, 2, 2))
    >>> found.ggn.shape, float(found.functional.norm())
    (torch.Size([2, 2, 2, 2]), 0.0)
    """
    _check(layer, X, grad, curvature, residual)
    inputs = _AtTokens.of(layer, X, residual)
    ggn = inputs.ggn(curvature) if curvature.ndim == 3 else inputs.ggn_of_coupled(curvature)
    return TokenDerivatives(inputs.vjp(grad[..., None])[..., 0], ggn, inputs.second_derivative(grad))


def _check(layer: SelfAttention, X: Tensor, grad: Tensor, curvature: Tensor, residual: bool) -> None:
    plain = type(layer) is SelfAttention and all(
        getattr(layer, name, None) is None for name in ("query_norm", "key_norm", "gate", "value_gate")
    )
    if not plain:
        raise InputError(f"layer: got {layer}, expected a SelfAttention without norms and gates.")
    length, width = (*X.shape, 0)[:2]
    values = layer.W_V.shape[1]
    expect(X.shape == (length, len(layer.W_V)), f"X: got shape {tuple(X.shape)}, expected (L, {len(layer.W_V)}).")
    expect(grad.shape == (length, values), f"grad: got shape {tuple(grad.shape)}, expected {(length, values)}.")
    shapes = (length, values, values), (length, values, length, values)
    got = f"curvature: got shape {tuple(curvature.shape)}"
    expect(tuple(curvature.shape) in shapes, f"{got}, expected {shapes[0]} or, coupling tokens, {shapes[1]}.")
    expect(
        not residual or values == width,
        f"residual: got values of width {values} beside tokens of width {width}; expected equal widths.",
    )


@dataclass(frozen=True, eq=False)
class _AtTokens:
    """A layer at a sequence.

    Attributes:
        core: Its attention, from the tokens on.
        residual: Whether what enters is added to what comes out.
    """

    core: AttentionCore
    residual: bool

    @classmethod
    def of(cls, layer: SelfAttention, X: Tensor, residual: bool) -> _AtTokens:
        """A sink is a last token of zeros among the keys."""
        state = layer.attend(X[None])
        q, k, v = X[None] @ layer.W_Q, state.tokens @ layer.W_K, state.tokens @ layer.W_V
        core = AttentionCore(k, q, v, state.scores, state.visible, state.activation, 1 / state.scale)
        return cls(core.through(layer.W_Q[None], layer.W_K[None], layer.W_V[None]), residual)

    @property
    def _length(self) -> int:
        return self.core.r.shape[1]

    def vjp(self, cotangents: Float[Tensor, "l f x"]) -> Float[Tensor, "l d x"]:
        """Cotangents at the tokens."""
        total = self._at_tokens(self.core.vjp(cotangents[None]))
        return total + cotangents if self.residual else total

    def _at_tokens(self, by_operand: ByOperand) -> Tensor:
        return by_operand["q"][0] + (by_operand["k"] + by_operand["v"])[0, : self._length]

    def ggn_of_coupled(self, curvature: Float[Tensor, "l f l f"]) -> Float[Tensor, "l d l d"]:
        """``P^T C P``, from the left and from the right."""
        half = self.vjp(curvature.flatten(2)).unflatten(-1, curvature.shape[2:])
        shape = half.shape[:2]
        return self.vjp(half.permute(2, 3, 0, 1).flatten(2)).unflatten(-1, shape)

    def ggn(self, curvature: Float[Tensor, "l f f"]) -> Float[Tensor, "l d l d"]:
        """The same where the loss couples no two tokens."""
        total = self._summed(self.core.ggn(curvature[None]))
        if self.residual:
            half = self._at_tokens(self.core.vjp_by_position(curvature[None]))
            total += half
            total += half.permute(2, 3, 0, 1)
            total.diagonal(dim1=0, dim2=2).add_(curvature.movedim(0, -1))
        return total

    def second_derivative(self, gradient: Tensor) -> Tensor:
        """``d^2 (g . F)`` by the tokens."""
        return self._summed(self.core.second_derivative(gradient[None]))

    def _summed(self, found: Iterable[Between]) -> Tensor:
        """Over queries, keys and values, which are all made of the tokens; a sink is none."""
        length, width = self._length, self.core.p.shape[-1]
        total = self.core.p.new_zeros(length, width, length, width)
        for (first, second), matrix in found:
            own = matrix[0, :length, :, :length]
            total += own
            if first != second:
                total += own.permute(2, 3, 0, 1)
        return total
