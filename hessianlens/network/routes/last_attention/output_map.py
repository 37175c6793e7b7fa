"""What stands between the heads and their output projection: a gate, a norm, or both.

It acts on every position alone, ``a_n = psi(y_n)`` with y the outputs of the heads and what further linear maps put
out, such as the logits of a gate, side by side. With ``A_n = W_O^T dpsi/dy`` and the gradient g and curvature C at
what the projection puts out,

    g_y = A' g,        C_y = A' C A   +   sum_e (W_O g)_e d^2 psi_e / dy dy       (the last one functional),

so the closed forms hold for heads that stand beside these logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.operands import is_curved
from hessianlens.network.base.recognition import Grouping, groupings
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.last_attention.smooth import SmoothSource, smooth_operand
from hessianlens.sizes import readable

CHANGED = Refusal("the output of its heads is changed before its output projection")


@dataclass(frozen=True, eq=False)
class OutputMap:
    """``psi`` at one batch.

    Attributes:
        rows: ``a``, ``[sequence, position, e]``, on the graph of the heads' outputs and of the leaves of the sources.
        heads: What the heads put out, ``[sequence, head, position, r]``.
        outputs: The same as the model has it, in parts that stand side by side in every head.
        sources: Further linear maps whose outputs enter.
        weight: Of the output projection, in the order ``a @ W``.
    """

    rows: Tensor
    heads: Tensor
    outputs: tuple[Tensor, ...]
    sources: tuple[SmoothSource, ...]
    weight: Tensor

    @property
    def _leaves(self) -> list[Tensor]:
        return [*self.outputs, *(source.leaf for source in self.sources)]

    def _by_position(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Cotangents of the leaves side by side, ``[sequence, position, y]``."""
        given = [
            torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(self._leaves, grads, strict=True)
        ]
        count, shape = len(self.outputs), self.heads.shape[:3]
        by_head = torch.cat([grad.reshape(*shape, -1) for grad in given[:count]], -1)
        found = [by_head.transpose(1, 2).flatten(2)]
        for source, grad in zip(self.sources, given[count:], strict=True):
            found.append(source.grouping.arrange(grad.reshape(-1, grad.shape[-1]))[..., source.of_head(0)])
        return torch.cat(found, -1)

    def _vjp(self, cotangent: Tensor, graph: bool = False) -> Tensor:
        grads = torch.autograd.grad(
            self.rows, self._leaves, cotangent, retain_graph=True, create_graph=graph, allow_unused=True
        )
        return self._by_position(grads)

    def jacobian(self) -> Tensor:
        """``dpsi/dy``, ``[sequence, position, e, y]``."""
        found = []
        for e in range(self.rows.shape[-1]):
            cotangent = torch.zeros_like(self.rows)
            cotangent[..., e] = 1
            found.append(self._vjp(cotangent))
        return torch.stack(found, 2)

    def second_derivative(self, w: Tensor) -> Tensor:
        """``sum_e w_e d^2 psi_e / dy dy``, ``[sequence, position, y, y]``."""
        with torch.enable_grad():
            slope = self._vjp(w.detach(), graph=True)
            columns = []
            for each in range(slope.shape[-1]):
                if not slope.requires_grad:
                    return slope.new_zeros(*slope.shape, slope.shape[-1])
                total = slope[..., each].sum()
                columns.append(
                    self._by_position(torch.autograd.grad(total, self._leaves, retain_graph=True, allow_unused=True))
                )
        return torch.stack(columns, -1)

    def curvature_before(self, gradient: Tensor, ggn: Tensor, functional: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradient, Gauss-Newton and functional curvature at y, from those at what the projection puts out.

        Args:
            gradient: ``g``, ``[sequence, position, d]``.
            ggn: Gauss-Newton part of C, ``[sequence, position, d, d]``.
            functional: The rest of it.
        """
        w = gradient @ self.weight.T
        A = self.weight.T @ self.jacobian()
        own = self.second_derivative(w) if is_curved(self.rows, self._leaves) else 0
        return (gradient[..., None, :] @ A)[..., 0, :], A.mT @ ggn @ A, A.mT @ functional @ A + own


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """Where what the heads put out goes.

    Attributes:
        use: The linear map.
        grouping: Which of its positions are those of a sequence.
        between: What stands in front of it; None where it takes the heads side by side.
    """

    use: Use
    grouping: Grouping
    between: OutputMap | None = None


def projection_behind(
    outputs: tuple[Tensor, ...],
    heads: Tensor,
    uses: Sequence[Use],
    leaves: Mapping[int, Tensor],
    params: Mapping[str, Tensor],
) -> OutputProjection | Refusal:
    """The only linear map that what the heads put out reaches, and what happens on the way; else a refusal.

    Args:
        outputs: What the heads put out, as the model has it, in parts that stand side by side in every head.
        heads: The same, ``[sequence, head, position, r]``.
        uses: Of the parameters of the network.
        leaves: What the linear maps put out, by site.
        params: The parameters.
    """
    reached = [use for use in uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN) and _reaches(outputs, use)]
    if len(reached) != 1:
        return Refusal(f"the output of its heads goes into {len(reached)} linear maps") if reached else CHANGED
    (use,) = reached
    assert use.inputs is not None
    weight = use.matrix(params[use.parameter].detach())
    for grouping, rows in _arranged(use, heads):
        plain = OutputMap(rows, heads, outputs, (), weight)
        if not _acts_alone(plain):
            continue
        sources: tuple[SmoothSource, ...] = ()
        if depends(rows, list(leaves.values())):
            operand = smooth_operand(rows[:, None], leaves)
            if isinstance(operand, Refusal):
                return Refusal(f"what enters its output projection beside its heads {operand}")
            sources = operand.sources
        found = OutputMap(rows, heads, outputs, sources, weight)
        width = heads.shape[1] * heads.shape[3] + sum(source.features.shape[1] for source in sources)
        held = 3 * rows.shape[0] * rows.shape[1] * width * (width + rows.shape[2]) * rows.element_size()
        free = available_bytes(rows.device)
        if held > SAFE_SHARE * free:
            return Refusal(
                f"its output gates need {readable(held)} for their derivatives, and {readable(free)} are free"
            )
        return OutputProjection(use, grouping, found)
    return CHANGED


def _reaches(outputs: Sequence[Tensor], use: Use) -> bool:
    if use.inputs is None or not use.inputs.requires_grad or use.inputs.grad_fn is None:
        return False
    slopes = torch.autograd.grad(use.inputs, outputs, random_like(use.inputs), retain_graph=True, allow_unused=True)
    return any(slope is not None and bool(slope.any()) for slope in slopes)


def _arranged(use: Use, heads: Tensor) -> Iterator[tuple[Grouping, Tensor]]:
    """Inputs of a map by sequence and position, in every way that fits."""
    assert use.inputs is not None
    sequences, _, length, _ = heads.shape
    for grouping in groupings(tuple(use.inputs.shape), sequences):
        if grouping.groups == sequences and grouping.members == length:
            yield grouping, grouping.arrange(use.inputs.flatten(0, -2))


def _acts_alone(output: OutputMap) -> bool:
    """Whether a position of the heads reaches that position alone: numbered cotangents come back with their numbers."""
    drawn = random_like(output.rows)
    numbers = 1 + torch.arange(drawn[..., 0].numel(), device=drawn.device).reshape(*drawn.shape[:2], 1)
    alone, numbered = (output._vjp(cotangent) for cotangent in (drawn, numbers * drawn))
    return bool(((numbered - numbers * alone).abs() <= 1e-6 * (numbers * alone).abs() + 1e-12).all())


def depends(rows: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether rows come from any of some leaves."""
    if not leaves:
        return False
    slopes = torch.autograd.grad(rows, leaves, random_like(rows), retain_graph=True, allow_unused=True)
    return any(slope is not None and bool(slope.any()) for slope in slopes)
