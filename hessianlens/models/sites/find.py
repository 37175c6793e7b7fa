"""Find the last attention layer of a problem's model, and make sure it is what the closed forms take it for."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hessianlens.models.adapters.scope import differentiable_twice
from hessianlens.models.sites.gpt2 import gpt2_site
from hessianlens.models.sites.llama import llama_site
from hessianlens.models.sites.site import AttentionSite
from hessianlens.models.sites.toy import toy_site
from hessianlens.problem import Batch, Problem

FINDERS = (toy_site, gpt2_site, llama_site)


def frozen_copy(problem: Problem) -> nn.Module | None:
    """A copy of the problem's model that holds the problem's own parameters, so that nothing touches the user's."""
    if not isinstance(problem.source, nn.Module):
        return None
    try:
        model = copy.deepcopy(problem.source).to(device=problem.device, dtype=problem.dtype)
    except (RuntimeError, TypeError):  # some models hold what cannot be copied, such as outputs with their graph
        return None
    for name, parameter in model.named_parameters():
        parameter.data = problem.params[name]
        parameter.requires_grad_(False)
    return model.eval()


def find_site(problem: Problem, model: nn.Module, batch: Batch) -> AttentionSite | None:
    """The last attention layer at a batch; None if the model is of no known kind or does not behave like one.

    The rest of the network applied to the closed form's own output must give the model's outputs: that catches norms
    of queries and keys, score soft-capping and whatever else a variant adds. It and the loss must act on every
    position alone: that catches pooling and losses that compare positions or sequences.
    """
    with differentiable_twice(model), torch.no_grad():
        for finder in FINDERS:
            site = finder(model, batch)
            if site is not None:
                fits = _same_outputs(problem, site, batch) and _position_wise(problem, site, batch)
                return site if fits else None
    return None


def _same_outputs(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    with problem.scope():
        expected = problem.forward(problem.params, batch)
    found: Tensor = site.behind(site.layer(site.tokens))
    if found.shape != expected.shape or expected.ndim != 3:
        return False
    tolerance = 100 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return float((found - expected).abs().max()) <= tolerance * max(1, site.tokens.shape[1])


def _position_wise(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    """Whether no position reaches another, in the Jacobian behind the layer and in the Hessian of the loss.

    Two positions differ in a bit of their numbers, so a product for each bit is enough: a random vector on the
    positions that have it must leave the others at zero.
    """
    with torch.enable_grad():
        F = site.layer(site.tokens).detach().requires_grad_()
        outputs = site.behind(F)
        point = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(problem.loss(point, batch), point, create_graph=True)
    maps = [(outputs, F)] + ([(slope, point)] if slope.requires_grad else [])
    number = torch.arange(F.shape[0] * F.shape[1], device=F.device).reshape(F.shape[:2])
    generator = torch.Generator().manual_seed(0)
    for bit in range((number.numel() - 1).bit_length()):
        chosen = (number >> bit & 1).bool()[..., None]
        for value, at in maps:
            noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
            (reached,) = torch.autograd.grad(value, at, torch.where(chosen, noise, 0), retain_graph=True)
            if bool((reached.masked_fill(chosen, 0) != 0).any()):
                return False
    return True
