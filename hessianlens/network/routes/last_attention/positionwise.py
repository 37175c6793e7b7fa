"""The exact Hessian of attention weights inside a network.

Everything behind the last attention layer of a decoder acts on each position alone: output projection, residual,
norms, MLP, unembedding, loss. So the network enters through its gradient ``g_i`` and curvature ``C_i`` at the attention
output of each token, and the closed forms of a single layer are the exact blocks in the whole network. The curvature
splits as

    C_i = C_i^ggn + C_i^head:   J_i^T Lambda_i J_i   +   sum_k (dl/do_k) d^2 o_k / dF_i^2

with J the Jacobian of the outputs o (logits) and Lambda the Hessian of the loss there. The Gauss-Newton matrix of the
network takes C^ggn; its functional Hessian is the rest, C^head and the attention's own second derivative. With
piecewise linear activations and no norm behind the attention, C^head is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.derivatives.difference import random_like
from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of
from hessianlens.layer.assembly import hessian_at
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.losses import LossDerivatives, TokenCurvature, UncoupledCurvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.operators import BlockGrid

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class PositionDerivatives:
    """A position-wise network behind an attention layer, at its output F of shape (B, L, d).

    Attributes:
        gradient: ``g``, (B, n, d), at the n positions that carry a loss.
        ggn: ``C^ggn`` there.
        head: ``C^head`` there, (B, n, d, d); None where it is exactly zero.
        positions: Those n positions.
    """

    gradient: Tensor
    ggn: UncoupledCurvature
    head: Tensor | None
    positions: Tensor

    def seen_by(self, part: str) -> tuple[LossDerivatives, str]:
        """What a part of the network's Hessian sees as the loss of the layer, and the layer's part that it then is.

        Args:
            part: "full", "ggn" or "functional".
        """
        if part == "ggn":
            return LossDerivatives(self.gradient, self.ggn), "outer"
        if self.head is None:
            return LossDerivatives(self.gradient, self.ggn), part
        curvature = self.head if part == "functional" else token_matrices(self.ggn) + self.head
        return LossDerivatives(self.gradient, TokenCurvature(curvature)), "full"


def position_derivatives(
    F: Tensor, outputs: Tensor, downstream_at: Callable[[Tensor], Map], loss: Map
) -> PositionDerivatives:
    """Gradient and curvature of ``loss(behind(F))`` at every position, for a network that acts on each position alone.

    Positions that carry no loss are left out. All others are differentiated at once: a cotangent in output k at every
    position gives row k of every Jacobian.

    Args:
        F: Attention output, (B, L, d).
        outputs: The network's outputs there, (B, L, v).
        downstream_at: From some positions to the rest of the network at those, F to outputs.
        loss: Outputs at all positions to the loss.
    """
    with torch.enable_grad():
        at = outputs.detach().requires_grad_()
        value = loss(at)
        expect_twice_differentiable("loss", value)
        (slope,) = torch.autograd.grad(value, at, create_graph=True)
        Lambda = _position_hessian(slope, at)
        positions = _carrying(slope.detach(), Lambda)
        Lambda = Lambda[:, positions]
        point = F[:, positions].detach().requires_grad_()
        found = downstream_at(positions)(point)
        expect_twice_differentiable("model: what stands behind the attention layer", found)
        (gradient,) = torch.autograd.grad(found, point, slope.detach()[:, positions], create_graph=True)
        J = _position_jacobian(found, point)
        with refusals_of(lambda: "model: what stands behind the attention layer"):
            head = _head_curvature(gradient, point)
    return PositionDerivatives(gradient.detach(), _ggn_at_positions(Lambda, J), head, positions)


def position_curvature(gradient: Tensor, ggn: Tensor, head: Tensor) -> PositionDerivatives:
    """The same from what is known at every position.

    Args:
        gradient: ``g``, (B, L, d).
        ggn: ``C^ggn``, (B, L, d, d).
        head: ``C^head``, the same.
    """
    seen = (gradient != 0).any(-1) | (ggn != 0).flatten(2).any(-1) | (head != 0).flatten(2).any(-1)
    positions = _some(seen)
    kept = None if not bool(head.any()) else head[:, positions]
    return PositionDerivatives(gradient[:, positions], TokenCurvature(ggn[:, positions]), kept, positions)


def _ggn_at_positions(Lambda: Tensor, J: Tensor) -> UncoupledCurvature:
    """``J^T Lambda J``, factored where there are few outputs."""
    left, right = J.transpose(-1, -2), (Lambda @ J).transpose(-1, -2)
    if 2 * J.shape[-2] < J.shape[-1]:
        return FactoredTokenCurvature(left, right)
    return TokenCurvature(left @ right.transpose(-1, -2))


def _carrying(slope: Tensor, Lambda: Tensor) -> Tensor:
    return _some((slope != 0).any(-1) | (Lambda != 0).flatten(2).any(-1))


def _some(seen: Tensor) -> Tensor:
    """Positions that are seen in some sequence; the first one if there is none."""
    found = seen.any(0).nonzero()[:, 0]
    return found if len(found) else found.new_zeros(1)


def _position_hessian(slope: Tensor, at: Tensor) -> Tensor:
    """``Lambda[b, i, k, m] = d^2 loss / do_ik do_im``, a tangent at every position at once."""
    columns = []
    for k in range(at.shape[-1]):
        tangent = torch.zeros_like(at)
        tangent[..., k] = 1
        found = torch.autograd.grad(slope, at, tangent, retain_graph=True)[0] if slope.requires_grad else tangent * 0
        columns.append(found)
    return torch.stack(columns, -1)


def _position_jacobian(outputs: Tensor, point: Tensor) -> Tensor:
    """``J[b, i, k, f] = do_ik / dF_if``, row by row."""
    rows = []
    for k in range(outputs.shape[-1]):
        cotangent = torch.zeros_like(outputs)
        cotangent[..., k] = 1
        rows.append(torch.autograd.grad(outputs, point, cotangent, retain_graph=True)[0])
    return torch.stack(rows, -2)


def _head_curvature(gradient: Tensor, point: Tensor) -> Tensor | None:
    """``C^head`` column by column; None if a random product shows that there is none."""
    if not gradient.requires_grad:
        return None
    if not bool(_second(gradient, point, random_like(point)).any()):
        return None
    columns = []
    for f in range(point.shape[-1]):
        tangent = torch.zeros_like(point)
        tangent[..., f] = 1
        columns.append(_second(gradient, point, tangent))
    return torch.stack(columns, -1)


def _second(vjp: Tensor, point: Tensor, tangent: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(vjp, point, tangent, retain_graph=True, allow_unused=True)
    return torch.zeros_like(point) if found is None else found


class InNetworkHessian:
    """The Hessian of the last attention layer of a network, as that of a layer with what lies behind it for a loss.

    Args:
        layer: The layer with the network's weights; its output is the F at which `derivatives` were taken.
        X: Tokens that enter it, (B, L, d).
        derivatives: Of what lies behind it.
    """

    def __init__(self, layer: MultiHeadAttention, X: Tensor, derivatives: PositionDerivatives) -> None:
        self._derivatives = derivatives
        loss, _ = derivatives.seen_by("ggn")
        self._first = hessian_at(layer, X, derivatives.positions, loss)
        self._parts: dict[str, tuple[AttentionHessian, str]] = {"ggn": (self._first, "outer")}

    def seen_by(self, part: str) -> tuple[AttentionHessian, str]:
        """The layer as a part of the network's Hessian sees it, and the layer's part that it then is; made once."""
        if part not in self._parts:
            loss, own = self._derivatives.seen_by(part)
            alone = self._derivatives.head is None
            self._parts[part] = (self._first if alone else self._first.with_loss(loss)), own
        return self._parts[part]

    def part(self, name: str) -> BlockGrid:
        """The blocks of "full", "ggn" or "functional"."""
        layer, own = self.seen_by(name)
        return layer.part(own)


def token_matrices(curvature: UncoupledCurvature) -> Tensor:
    """``C_i`` in full, (B, n, d, d)."""
    if isinstance(curvature, FactoredTokenCurvature):
        return curvature.left @ curvature.right.transpose(-1, -2)
    assert isinstance(curvature, TokenCurvature)
    return curvature.matrices
