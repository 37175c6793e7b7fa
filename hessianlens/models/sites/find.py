"""Find the last attention layer of a problem's model, and make sure it is what the closed forms take it for."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hessianlens.models.adapters.scope import differentiable_twice
from hessianlens.models.sites.gpt2 import gpt2_site
from hessianlens.models.sites.site import AttentionSite
from hessianlens.models.sites.toy import toy_site
from hessianlens.problem import Batch, Problem

FINDERS = (toy_site, gpt2_site)


def frozen_copy(problem: Problem) -> nn.Module | None:
    """A copy of the problem's model that holds the problem's own parameters, so that nothing touches the user's."""
    if not isinstance(problem.source, nn.Module):
        return None
    model = copy.deepcopy(problem.source).to(device=problem.device, dtype=problem.dtype)
    for name, parameter in model.named_parameters():
        parameter.data = problem.params[name]
        parameter.requires_grad_(False)
    return model.eval()


def find_site(problem: Problem, model: nn.Module, batch: Batch) -> AttentionSite | None:
    """The last attention layer at a batch; None if the model is of no known kind or does not behave like one.

    The rest of the network applied to the closed form's own output must give the model's outputs: that catches rotary
    positions, sliding windows, logit soft-capping and whatever else a variant adds.
    """
    with differentiable_twice(model), torch.no_grad():
        for finder in FINDERS:
            site = finder(model, batch)
            if site is not None:
                return site if _same_outputs(problem, site, batch) else None
    return None


def _same_outputs(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    with problem.scope():
        expected = problem.forward(problem.params, batch)
    found: Tensor = site.behind(site.layer(site.tokens))
    if found.shape != expected.shape or expected.ndim != 3:
        return False
    tolerance = 100 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return float((found - expected).abs().max()) <= tolerance * max(1, site.tokens.shape[1])
