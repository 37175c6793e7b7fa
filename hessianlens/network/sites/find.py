"""Find the last attention layer of a model; whether it is what the closed forms take it for is certified later."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of
from hessianlens.derivatives.potential import random_like
from hessianlens.errors import Refusal
from hessianlens.models.transformer import Transformer
from hessianlens.network.decoupling import couples_no_groups
from hessianlens.network.sites.located import locate_attention
from hessianlens.network.sites.site import AttentionSite
from hessianlens.network.sites.toy import toy_site
from hessianlens.problems import Batch, Problem


def find_site(problem: Problem, batch: Batch, own: Transformer | None) -> AttentionSite | Refusal:
    """The last attention layer at a batch; a refusal where there is none that the closed forms know.

    Whether what lies behind acts on every position alone is checked here for the library's own models, of which that
    rest can be called, and for others when their output projection is looked at.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        own: A copy of its model, if that is one of the library's own.
    """
    if own is None:
        return locate_attention(problem, batch)
    with torch.no_grad():
        site = toy_site(own, batch)
        if isinstance(site, Refusal):
            return site
        if site.tokens.ndim != 3:
            return Refusal("its tokens have no axis for the sequences of a batch")
        if not _position_wise(problem, site, batch):
            return Refusal("what lies behind it mixes positions")
        return site


def _position_wise(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    """Whether no position reaches another, in the Jacobian behind the layer and in the Hessian of the loss."""
    assert site.behind is not None
    with torch.enable_grad():
        F = site.output.detach().requires_grad_()
        outputs = site.behind(F)
        point = outputs.detach().requires_grad_()
        value = problem.loss(point, batch)
        expect_twice_differentiable("loss", value)
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
    with refusals_of(lambda: "loss"):
        return acts_alone(outputs, F) and (not slope.requires_grad or acts_alone(slope, point))


def acts_alone(value: Tensor, at: Tensor) -> bool:
    """Whether the derivative of a value by what it is taken at couples no two positions."""
    u = random_like(value).flatten(0, 1)
    positions = torch.arange(len(u), device=u.device)

    def pulled(cotangent: Tensor) -> list[Tensor]:
        (found,) = torch.autograd.grad(value, at, cotangent.reshape(value.shape), retain_graph=True)
        return [found.flatten(0, 1)]

    return couples_no_groups(pulled, u, positions, positions)
