"""A map whose outputs reach the rest of the network through an elementwise function and the next map alone.

That is the first map of an MLP, or a gate: ``a_t = phi(z_s)`` entry by entry, and nothing else depends on ``z_s``. Then

    C_s = diag(phi') W_t C_t W_t^T diag(phi') + diag(phi'' * W_t g_t)

at every position, from the curvature at the outputs of the next map, which usually has fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.curvature import SiteCurvature
from hessianlens.network.linear_maps.hooks import Hooks
from hessianlens.network.linear_maps.streamed import Strip
from hessianlens.network.linear_maps.uses import Kind, Use
from hessianlens.network.recognition import entrywise_slope
from hessianlens.problems import Batch, Problem


@dataclass(frozen=True, eq=False)
class FollowingMap:
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

    def strips(self, behind: SiteCurvature, slope: Tensor, features: Tensor, size: int) -> Iterator[Strip]:
        """Both parts of ``C_s``.

        Args:
            behind: ``C_t``, every position by itself.
            slope: ``g_t``, ``[position, output]``.
            features: Rows and columns that are asked for.
            size: Rows of a strip.
        """
        W, first = self.weight[features], self.first[:, features]
        own = self.second[:, features] * (slope @ W.T)
        parts = [part.squeeze(3).squeeze(1) for part in (behind.ggn, behind.functional)]
        room = [C.new_empty(len(C) * min(size, len(W)) * len(W)) for C in parts]
        for start in range(0, len(features), size):
            cut = slice(start, start + size)
            columns = first[:, start:].clone()
            columns[:, size:] *= math.sqrt(2)
            rows = [self._strip(C, W, first[:, cut], columns, start, to) for C, to in zip(parts, room, strict=True)]
            rows[1].diagonal(dim1=1, dim2=2).add_(own[:, cut])
            yield Strip(start, *rows)

    @staticmethod
    def _strip(C: Tensor, W: Tensor, rows: Tensor, columns: Tensor, start: int, room: Tensor) -> Tensor:
        """``diag(rows) W C W^T diag(columns)`` of every position, into a room that all strips share."""
        left = torch.matmul(W[start : start + rows.shape[1]], C).mul_(rows[..., None])
        found = room[: left.shape[0] * left.shape[1] * columns.shape[1]].view(-1, columns.shape[1])
        torch.mm(left.flatten(0, 1), W[start:].T, out=found)
        return found.view(*left.shape[:2], -1).mul_(columns[:, None])


def elementwise_behind(problem: Problem, batch: Batch, site: int) -> FollowingMap | None:
    """What follows a map, if it is an elementwise function and the next map alone; None if not.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        site: The map.
    """
    with problem.scope(), torch.enable_grad(), Hooks(problem.params, cut=True) as hooks:
        outputs = problem.forward(problem.params, batch)
    leaf = hooks.leaves.get(site)
    if leaf is None:
        return None
    followers = [use for use in hooks.record.uses if use.inputs is not None and _depends(use.inputs, leaf)]
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
    return FollowingMap(use, weight, first.detach().flatten(0, -2), second.detach().flatten(0, -2))


def _depends(value: Tensor, leaf: Tensor) -> bool:
    if not value.requires_grad:
        return False
    (found,) = torch.autograd.grad(value, leaf, torch.ones_like(value), retain_graph=True, allow_unused=True)
    return found is not None
