"""A map whose outputs reach the rest of the network through an elementwise function and the next map alone.

That is the first map of an MLP, or a gate: ``a_t = phi(z_s)`` entry by entry, and nothing else depends on ``z_s``. Then

    C_s = diag(phi') W_t C_t W_t^T diag(phi') + diag(phi'' * W_t g_t)

at every position, from the curvature at the outputs of the next map, which usually has fewer of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.curvature import SiteCurvature
from hessianlens.network.linear_maps.taps import Taps
from hessianlens.network.linear_maps.uses import Kind, Use
from hessianlens.network.recognition import entrywise_slope
from hessianlens.problems import Batch, Problem


@dataclass(frozen=True, eq=False)
class Elementwise:
    """What follows a map.

    Attributes:
        use: How the weight of the next map enters.
        weight: It, inputs by outputs.
        first: phi', ``[position, feature]``.
        second: phi'', the same.
    """

    use: Use
    weight: Tensor
    first: Tensor
    second: Tensor

    def rows(self, behind: SiteCurvature, slope: Tensor, features: Tensor, size: int) -> Iterator[dict[str, Tensor]]:
        """Rows of both parts of ``C_s`` at every position, ``[row, position, feature]``, from the diagonal on.

        Args:
            behind: ``C_t``, every position by itself.
            slope: ``g_t``, ``[position, output]``.
            features: Rows and columns that are asked for.
            size: Rows at a time.
        """
        W, first = self.weight[features], self.first[:, features]
        own = self.second[:, features] * (slope @ W.T)
        parts = {"ggn": behind.ggn, "functional": behind.functional}
        squeezed = {part: C.squeeze(3).squeeze(1) for part, C in parts.items()}
        for start in range(0, len(features), size):
            chosen = slice(start, start + size)
            found = {}
            for part, C in squeezed.items():
                rows = (W[chosen] @ C) @ W[start:].T  # [position, row, feature]
                rows *= first[:, chosen, None]
                rows *= first[:, None, start:]
                if part == "functional":
                    rows.diagonal(dim1=1, dim2=2).add_(own[:, chosen])
                found[part] = rows.transpose(0, 1)
            yield found


def elementwise_behind(problem: Problem, batch: Batch, site: int) -> Elementwise | None:
    """What follows a map, if it is an elementwise function and the next map alone; None if not.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        site: The map.
    """
    with problem.scope(), torch.enable_grad(), Taps(problem.params, cut=True) as taps:
        outputs = problem.forward(problem.params, batch)
    leaf = taps.leaves.get(site)
    if leaf is None:
        return None
    followers = [use for use in taps.record.uses if use.inputs is not None and _depends(use.inputs, leaf)]
    if len(followers) != 1 or _depends(outputs, leaf) or followers[0].kind not in (Kind.IN_OUT, Kind.OUT_IN):
        return None
    use = followers[0]
    assert use.inputs is not None
    if use.inputs.shape != leaf.shape:
        return None
    first = entrywise_slope(use.inputs, leaf, graph=True)
    if first is None:
        return None
    second = entrywise_slope(first, leaf) if first.requires_grad else torch.zeros_like(first)
    if second is None:
        return None
    weight = use.matrix(problem.params[use.parameter].detach())
    return Elementwise(use, weight, first.detach().flatten(0, -2), second.detach().flatten(0, -2))


def _depends(value: Tensor, leaf: Tensor) -> bool:
    if not value.requires_grad:
        return False
    (found,) = torch.autograd.grad(value, leaf, torch.ones_like(value), retain_graph=True, allow_unused=True)
    return found is not None
