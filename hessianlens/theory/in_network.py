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

from hessianlens.attention.layer import AttentionHead, MultiHeadAttention
from hessianlens.errors import expect
from hessianlens.losses import LossDerivatives, TokenCurvature
from hessianlens.operators import BlockGrid
from hessianlens.theory.hessian import AttentionHessian, hessian_at

Behind = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class PositionDerivatives:
    """A position-wise network behind an attention layer, at its output F of shape (B, L, d).

    Attributes:
        gradient: ``g``, (B, L, d).
        ggn: ``C^ggn``, (B, n, d, d), of the n positions that carry a loss.
        head: ``C^head`` likewise; None where it is exactly zero.
        positions: Those n positions.
    """

    gradient: Tensor
    ggn: Tensor
    head: Tensor | None
    positions: Tensor


@dataclass(frozen=True, eq=False)
class InNetworkHessian:
    """The blocks of a network's last attention layer: Gauss-Newton, functional and full, each a grid."""

    ggn: BlockGrid
    functional: BlockGrid
    full: BlockGrid

    def part(self, name: str) -> BlockGrid:
        """A grid by name."""
        grid = {"ggn": self.ggn, "functional": self.functional, "full": self.full}[name]
        return grid


def position_derivatives(F: Tensor, behind: Behind, loss: Behind) -> PositionDerivatives:
    """Gradient and curvature of ``loss(behind(F))`` at every position, for a network that acts on each position alone.

    All positions are differentiated at once: a tangent in feature f at every position gives column f of every C_i.

    Args:
        F: Attention output, (B, L, d).
        behind: The rest of the network, F to outputs (B, L, v).
        loss: Outputs to the loss.
    """
    with torch.enable_grad():
        point = F.detach().requires_grad_()
        outputs = behind(point)
        at = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(at), at, create_graph=True)
        (gradient,) = torch.autograd.grad(outputs, point, slope.detach(), retain_graph=True)
        Lambda = _position_hessian(slope, at)
        positions = _carrying(gradient, Lambda)
        J = _position_jacobian(outputs, point)[:, positions]
        weighted = Lambda[:, positions] @ J
        head = _head_curvature(outputs, point, slope.detach(), positions)
    return PositionDerivatives(gradient, J.transpose(-1, -2) @ weighted, head, positions)


def _carrying(gradient: Tensor, Lambda: Tensor) -> Tensor:
    seen = (gradient != 0).any(-1) | (Lambda != 0).flatten(2).any(-1)
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


def _head_curvature(outputs: Tensor, point: Tensor, slope: Tensor, positions: Tensor) -> Tensor | None:
    """``C^head`` column by column; None if a random product shows that there is none."""
    (pulled,) = torch.autograd.grad(outputs, point, slope, create_graph=True)
    if not pulled.requires_grad:
        return None
    generator = torch.Generator(device="cpu").manual_seed(0)
    probe = torch.randn(point.shape, generator=generator, dtype=torch.float64).to(point)
    if not bool(_second(pulled, point, probe).any()):
        return None
    columns = []
    for f in range(point.shape[-1]):
        tangent = torch.zeros_like(point)
        tangent[..., f] = 1
        columns.append(_second(pulled, point, tangent)[:, positions])
    return torch.stack(columns, -1)


def _second(pulled: Tensor, point: Tensor, tangent: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(pulled, point, tangent, retain_graph=True, allow_unused=True)
    return torch.zeros_like(point) if found is None else found


def in_network_hessian(
    layer: AttentionHead | MultiHeadAttention, X: Tensor, derivatives: PositionDerivatives
) -> InNetworkHessian:
    """The exact blocks of the last attention layer of a network.

    Args:
        layer: The layer with the network's weights; its output is the F at which `derivatives` were taken.
        X: Tokens that enter it, (B, L, d).
        derivatives: From `position_derivatives`.
    """
    expect(
        derivatives.gradient.shape[:2] == X.shape[:2],
        f"derivatives: taken at {tuple(derivatives.gradient.shape[:2])} tokens, expected {tuple(X.shape[:2])} as in X.",
    )
    positions, head = derivatives.positions, derivatives.head
    g = derivatives.gradient[:, positions]

    def at(gradient: Tensor, curvature: Tensor) -> AttentionHessian:
        return hessian_at(layer, X, positions, LossDerivatives(gradient, TokenCurvature(curvature)))

    full = at(g, derivatives.ggn if head is None else derivatives.ggn + head)
    if head is None:
        return InNetworkHessian(full.outer, full.functional, full.full)
    return InNetworkHessian(at(torch.zeros_like(g), derivatives.ggn).outer, at(g, head).full, full.full)
