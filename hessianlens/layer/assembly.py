"""The exact Hessian of an attention layer at a batch: its heads evaluated, and the loss at what they put out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from hessianlens.attention.head import AttentionHead
from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.attention.side_by_side import SideBySideAttention
from hessianlens.attention.state import HeadState
from hessianlens.attention.tokens import as_batch, as_key_batch
from hessianlens.attention.value_gate import GatedValues
from hessianlens.checks import all_finite
from hessianlens.errors import InputError, expect
from hessianlens.layer.gated import GatedHessian, GatedOutput, gated_places, without_gates
from hessianlens.layer.gated_values import ValueGatedHessian, with_values_as_parameters
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.losses import Loss, LossDerivatives, OutputCurvature, given_derivatives
from hessianlens.state_guard import restores_state

Name = Hashable
Place = tuple[int, str]
Layer = AttentionHead | MultiHeadAttention


@restores_state
def attention_hessian(
    layer: AttentionHead | MultiHeadAttention,
    X: Tensor,
    loss: Loss | None = None,
    *,
    X_kv: Tensor | None = None,
    grad: Tensor | None = None,
    curvature: float | Tensor | OutputCurvature | None = None,
) -> AttentionHessian:
    """The exact Hessian of a loss on an attention layer's output, with respect to the layer's weights.

    The loss enters only through its gradient ``g = dl/dF`` and curvature ``C = d^2 l/dF^2`` at the layer's output F.

    Args:
        layer: `SelfAttention`, `SingleMatrixAttention`, `FactoredValueAttention` or `MultiHeadAttention`.
        X: Tokens, (L, d) or a batch (B, L, d).
        loss: `SquareLoss`, `CrossEntropyLoss`, `CustomLoss` or any `Loss`; or give `grad` and `curvature` instead.
        X_kv: For cross-attention, the tokens for keys and values, (S, d) or (B, S, d); default: X.
        grad: ``dl/dF``, in the shape of F.
        curvature: ``d^2 l/dF^2``: a number, a tensor per token or per pair of tokens, or a low-rank form; see
            `hessianlens.losses.as_curvature`.

    >>> import hessianlens as hl
    >>> layer = hl.SelfAttention.random(d_model=4, d_k=3, seed=0, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    >>> H = attention_hessian(layer, X, hl.SquareLoss(Y))
    >>> H
    AttentionHessian 40x40: blocks Q 4x3, K 4x3, V 4x4; parts outer, functional, full, t_outer, t_functional
    >>> H.functional["V", "V"].frobenius_norm().item()
    0.0
    >>> bool(torch.allclose(H.full[:].to_dense(), (H.outer + H.functional).to_dense()))
    True
    """
    if not isinstance(layer, (AttentionHead, MultiHeadAttention)):
        raise InputError(
            f"layer: got {type(layer).__name__}, expected an attention layer such as hessianlens.SelfAttention."
        )
    with torch.no_grad():
        batch, keys = as_batch(X).detach().clone(), as_key_batch(X, X_kv)
        keys = None if keys is None else keys.detach().clone()
        gated = any(head.gate is not None for head in _heads(layer))
        heads = _evaluated(without_gates(layer) if gated else layer, batch, keys)
        values = _gated_values(layer, batch, keys)
        F = _gates(layer, heads).output if gated else _output(layer, heads)
        _expect_finite("output", F)
        derivatives = _derivatives(loss, grad, curvature, F)
        _expect_finite("loss gradient", derivatives.gradient)
        kept = derivatives.with_loss()
        if len(kept) < F.shape[1]:
            heads, derivatives = [head.at(kept) for head in heads], derivatives.at(kept)
    return _assembled(layer, heads, derivatives, values)


@restores_state
def hessian_at(layer: Layer, X: Tensor, positions: Tensor, derivatives: LossDerivatives) -> AttentionHessian:
    """The Hessian from derivatives that are known, and already checked, at some positions only.

    Args:
        layer: The layer.
        X: Tokens, (B, L, d).
        positions: The positions that carry a loss.
        derivatives: Gradient and curvature of the loss at those positions.
    """
    with torch.no_grad():
        heads = [head.at(positions) for head in _evaluated(layer, X)]
        values = _gated_values(layer, X)
    return _assembled(layer, heads, derivatives, values)


def _evaluated(layer: Layer, batch: Tensor, keys: Tensor | None = None) -> list[HeadState]:
    """Every head at a batch. Blocks are built later, so they must not see what becomes of the weights meanwhile.

    Most weights are not needed any more once they have met the tokens; only the others are copied.
    """
    several = isinstance(layer, MultiHeadAttention)
    heads = [head.attend(batch, keys).apart() for head in _heads(layer)]
    for h, head in enumerate(heads):
        _expect_finite(f"scores of head {h}" if several else "scores", head.scores)
        _expect_finite(f"attention weights of head {h}" if several else "attention weights", head.weights)
    return heads


def _heads(layer: Layer) -> Sequence[AttentionHead]:
    return layer.heads if isinstance(layer, MultiHeadAttention) else (layer,)


def _gates(layer: Layer, heads: Sequence[HeadState]) -> GatedOutput:
    """The gates of a layer, from its heads in front of them and the logits behind these."""
    own = _heads(layer)
    logits = iter(heads[len(own) :])
    each = [None if head.gate is None else next(logits).output for head in own]
    return GatedOutput([state.output for state in heads[: len(own)]], each)


def _gated_values(layer: Layer, batch: Tensor, keys: Tensor | None = None) -> dict[int, GatedValues]:
    """How values behind a gate of their own are made, by head."""
    found = {h: head.gated_values(batch, keys) for h, head in enumerate(_heads(layer))}
    return {h: values.apart() for h, values in found.items() if values is not None}


def _assembled(
    layer: Layer, heads: Sequence[HeadState], derivatives: LossDerivatives, values: Mapping[int, GatedValues]
) -> AttentionHessian:
    shapes: dict[Name, tuple[int, int]] = {name: (w.shape[0], w.shape[1]) for name, w in layer.parameters.items()}
    places = _places(layer)
    if not values:
        return _of_heads(layer, heads, derivatives, places, shapes)
    by_values = _of_heads(layer, heads, derivatives, *with_values_as_parameters(places, shapes, values))
    return ValueGatedHessian(places, shapes, by_values, values)


def _places(layer: Layer) -> dict[Name, Place]:
    if any(head.gate is not None for head in _heads(layer)):
        return gated_places(layer)
    return {name: (name[1], name[0]) if isinstance(name, tuple) else (0, str(name)) for name in layer.parameters}


def _of_heads(
    layer: Layer,
    heads: Sequence[HeadState],
    derivatives: LossDerivatives,
    places: dict[Name, Place],
    shapes: dict[Name, tuple[int, int]],
) -> AttentionHessian:
    """That of parameters of its heads, whose outputs a gate may multiply."""
    if any(head.gate is not None for head in _heads(layer)):
        side_by_side = without_gates(layer).outputs
        return GatedHessian(places, shapes, heads, side_by_side, _gates(layer, heads), derivatives)
    outputs = layer.outputs if isinstance(layer, SideBySideAttention) else None
    return AttentionHessian(places, shapes, heads, derivatives, outputs)


def _output(layer: Layer, heads: Sequence[HeadState]) -> Tensor:
    """That of all heads together, which nobody keeps."""
    if isinstance(layer, SideBySideAttention):
        return torch.cat([head.output for head in heads], -1)
    total = heads[0].weights @ heads[0].values
    for head in heads[1:]:
        total.baddbmm_(head.weights, head.values)
    return total


def _expect_finite(what: str, found: Tensor) -> None:
    expect(
        all_finite(found),
        f"{what}: not finite at these weights and tokens in {found.dtype}; scale them down, or use float64.",
    )


def _derivatives(
    loss: Loss | None, grad: Tensor | None, curvature: float | Tensor | OutputCurvature | None, F: Tensor
) -> LossDerivatives:
    if loss is not None:
        expect(grad is None and curvature is None, "loss: give either a loss or grad and curvature, not both.")
        if not isinstance(loss, Loss):
            raise InputError(
                f"loss: got {type(loss).__name__}, expected a Loss such as SquareLoss(Y), or CustomLoss(function)."
            )
        return loss.derivatives(F)
    if grad is None or curvature is None:
        raise InputError(
            "loss: nothing to differentiate; give loss=SquareLoss(Y), or both grad=dl/dF and curvature=d2l/dF2."
        )
    return given_derivatives(grad, curvature, F)
