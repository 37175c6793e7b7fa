r"""The Hessian of a layer with output gates: ``F = sum_h s^h * O^h``, ``s^h = sigmoid(z^h)``, ``z^h = W_G^hT x``.

F is a function of the outputs and of the logits side by side, ``y = [O^1 .. O^H, z^1 .. z^H]``, of every token alone,
and y is what heads without gates put out. So the closed forms of these hold, with what the loss sees of y:

    g_y = J' g            C_y = J' C J   (outer)    +    sum_e g_e d^2 F_e / dy dy   (functional)

    J = [.. diag(s^h) .. diag(O^h * s'^h) ..],   second derivatives g * s' of O^h and z^h, g * O^h * s'' of z^h.

Between the gate and the weights of its head stands, beside the curvature of the loss, ``g * s'`` times the first
derivative of the output. A single logit per head is spread over its features.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.head import AttentionHead
from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.attention.side_by_side import SideBySideAttention, TokenwiseHead
from hessianlens.attention.state import HeadState
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.losses import (
    CoupledCurvature,
    LossDerivatives,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    OutputCurvature,
    TokenCurvature,
    UncoupledCurvature,
)
from hessianlens.operators import BlockGrid

Name = Hashable


@dataclass(frozen=True, eq=False)
class GatedOutput:
    """``F = sum_h s^h * O^h`` of every token, with its derivatives by ``y = [O, z]``.

    Attributes:
        values: ``O^h`` of every head, ``[s, i, f]``.
        logits: ``z^h``, ``[s, i, w]`` with w either f or 1; None for a head without a gate.
    """

    values: Sequence[Tensor]
    logits: Sequence[Tensor | None]

    def _spread(self, h: int) -> Tensor:
        """From logits to features, ``[f, w]``."""
        out, z = self.values[h], self.logits[h]
        assert z is not None
        if z.shape[-1] == 1:
            return out.new_ones(out.shape[-1], 1)
        return torch.eye(out.shape[-1], dtype=out.dtype, device=out.device)

    @cached_property
    def output(self) -> Tensor:
        """F."""
        each = [out if z is None else out * torch.sigmoid(z) for out, z in zip(self.values, self.logits, strict=True)]
        return sum(each[1:], each[0])

    @cached_property
    def jacobian(self) -> Tensor:
        """``dF_i / dy_i``, ``[s, i, f, y]``."""
        by_output, by_logit = list[Tensor](), list[Tensor]()
        for h, (out, z) in enumerate(zip(self.values, self.logits, strict=True)):
            if z is None:
                by_output.append(torch.diag_embed(torch.ones_like(out)))
                continue
            s = torch.sigmoid(z)
            by_output.append(torch.diag_embed(s.expand_as(out)))
            by_logit.append(out[..., None] * self._spread(h) * (s * (1 - s))[..., None, :])
        return torch.cat([*by_output, *by_logit], -1)

    def second_derivative(self, gradient: Tensor) -> Tensor:
        """``sum_e g_e d^2 F_e / dy dy`` of every token, ``[s, i, y, y]``."""
        width = self.jacobian.shape[-1]
        found = gradient.new_zeros(*gradient.shape[:2], width, width)
        start, f = len(self.values) * gradient.shape[-1], gradient.shape[-1]
        for h, (out, z) in enumerate(zip(self.values, self.logits, strict=True)):
            if z is None:
                continue
            s, own, at = torch.sigmoid(z), slice(h * f, (h + 1) * f), slice(start, start + z.shape[-1])
            first = s * (1 - s)
            mixed = gradient[..., None] * self._spread(h) * first[..., None, :]
            found[..., own, at], found[..., at, own] = mixed, mixed.mT
            found[..., at, at] = torch.diag_embed((gradient * out) @ self._spread(h) * first * (1 - 2 * s))
            start = at.stop
        return found


def curvature_before(curvature: OutputCurvature, jacobian: Tensor) -> OutputCurvature:
    """``J_i' C_ij J_j``, the curvature in front of a map of every token with the Jacobian J, ``[s, i, f, y]``."""
    if isinstance(curvature, LowRankTokenCurvature):
        return LowRankTokenCurvature(jacobian.mT @ curvature.root)
    if isinstance(curvature, UncoupledCurvature):
        return TokenCurvature(jacobian.mT @ curvature.times(jacobian))
    if isinstance(curvature, LowRankCoupledCurvature):
        return LowRankCoupledCurvature(jacobian.mT @ curvature.root)
    assert isinstance(curvature, CoupledCurvature)
    return CoupledCurvature(torch.einsum("sifa,sifjg,sjgb->siajb", jacobian, curvature.matrices, jacobian))


def with_token_curvature(curvature: OutputCurvature, own: Tensor) -> OutputCurvature:
    """A curvature plus a matrix of every token, ``[s, i, y, y]``."""
    if isinstance(curvature, UncoupledCurvature):
        eye = torch.eye(own.shape[-1], dtype=own.dtype, device=own.device).expand_as(own)
        return TokenCurvature(curvature.times(eye) + own)
    if isinstance(curvature, LowRankCoupledCurvature):
        curvature = CoupledCurvature(torch.einsum("sifr,sjgr->sifjg", curvature.root, curvature.root))
    assert isinstance(curvature, CoupledCurvature)
    total = curvature.matrices.clone()
    torch.diagonal(total, dim1=1, dim2=3).add_(own.permute(0, 2, 3, 1))
    return CoupledCurvature(total)


class GatedHessian(AttentionHessian):
    """That of a layer with gates, whose parts see the heads in front of the gates under losses of their own.

    Args:
        places: Head in front of the gates and own name of every parameter.
        shapes: Shape of every parameter.
        heads: The heads in front of the gates, and the logits.
        outputs: Features of y that each puts out.
        gates: From these to the layer's output.
        loss: Gradient and curvature of the loss at that output.
    """

    def __init__(
        self,
        places: Mapping[Name, tuple[int, str]],
        shapes: Mapping[Name, tuple[int, int]],
        heads: Sequence[HeadState],
        outputs: Sequence[slice],
        gates: GatedOutput,
        loss: LossDerivatives,
    ) -> None:
        super().__init__(dict(places), dict(shapes), heads, loss, outputs)
        self._gates = gates

    def with_loss(self, loss: LossDerivatives) -> GatedHessian:
        """The same layer at the same tokens, under another loss."""
        assert self.outputs is not None
        return GatedHessian(self._places, self._shapes, self.heads, self.outputs, self._gates, loss)

    def gradient_of(self, head: int) -> Tensor:
        """Gradient of the loss with respect to what a head puts out in front of its gate."""
        return self._seen["functional"].gradient_of(head)

    @cached_property
    def _seen(self) -> dict[str, AttentionHessian]:
        """The heads in front of the gates under the loss that a part sees."""
        with torch.no_grad():
            J, g = self._gates.jacobian, self.loss.gradient
            gradient, own = (g[..., None, :] @ J)[..., 0, :], self._gates.second_derivative(g)
            outer = curvature_before(self.loss.curvature, J)
            curvatures = {"outer": outer, "functional": TokenCurvature(own), "full": with_token_curvature(outer, own)}
        found, first = dict[str, AttentionHessian](), None
        for part, curvature in curvatures.items():
            seen = LossDerivatives(gradient, curvature)
            if first is None:
                first = AttentionHessian(self._places, self._shapes, self.heads, seen, self.outputs)
            found[part] = first if part == "outer" else first.with_loss(seen)
        return found

    def _grid(self, part: str, names: Sequence[Name] | None = None) -> BlockGrid:
        """A part: in front of the gates, the functional one is the whole Hessian under the gates' own curvature."""
        seen, own = _SEEN[part]
        return self._seen[seen]._grid(own, names)


_SEEN = {
    "outer": ("outer", "outer"),
    "functional": ("functional", "full"),
    "full": ("full", "full"),
    "t_outer": ("full", "t_outer"),
    "t_functional": ("functional", "t_functional"),
}
"""By part, the loss that the heads see, and the part of their Hessian that it then is."""


def without_gates(layer: AttentionHead | MultiHeadAttention) -> SideBySideAttention:
    """The heads in front of their gates and, behind them, the logits of the gates."""
    heads = layer.heads if isinstance(layer, MultiHeadAttention) else (layer,)
    logits = [TokenwiseHead(head.gate) for head in heads if head.gate is not None]
    return SideBySideAttention([*(replace(head, gate=None) for head in heads), *logits])


def gated_places(layer: AttentionHead | MultiHeadAttention) -> dict[Name, tuple[int, str]]:
    """Where every parameter of a layer with gates is among the heads of `without_gates`."""
    several = isinstance(layer, MultiHeadAttention)
    heads = layer.heads if isinstance(layer, MultiHeadAttention) else (layer,)
    found, gates = dict[Name, tuple[int, str]](), len(heads)
    for h, head in enumerate(heads):
        for name in head.parameters:
            found[(name, h) if several else name] = (gates, "G") if name == "gate" else (h, name)
        gates += head.gate is not None
    return found
