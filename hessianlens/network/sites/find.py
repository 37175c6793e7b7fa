"""Find the last attention layer of a problem's model, and make sure it is what the closed forms take it for."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of
from hessianlens.models.adapters.scope import differentiable_twice
from hessianlens.network.sites.gpt2 import gpt2_site
from hessianlens.network.sites.llama import llama_site
from hessianlens.network.sites.site import AttentionSite
from hessianlens.network.sites.toy import toy_site
from hessianlens.problems import Batch, Problem

FINDERS = (toy_site, gpt2_site, llama_site)
_WEIGHTS = 64
"""Powers of two in use; their span is far from overflow in single precision."""
_TERMS = 2.0**16
"""More than a sum over the features and outputs of a position has terms."""


def frozen_copy(problem: Problem) -> nn.Module | None:
    """A copy of the problem's model that holds the problem's own parameters, so that nothing touches the user's."""
    if not isinstance(problem.source, nn.Module):
        return None
    # Parameters are handed over, not copied: a copy of the model costs no more than its other attributes.
    handed = {
        id(parameter): nn.Parameter(problem.params[name], requires_grad=False)
        for name, parameter in problem.source.named_parameters()
    }
    try:
        model = copy.deepcopy(problem.source, handed).to(device=problem.device, dtype=problem.dtype)
    except (RuntimeError, TypeError):  # some models hold what cannot be copied, such as outputs with their graph
        return None
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
    found = site.network_output
    if found.shape != expected.shape or expected.ndim != 3:
        return False
    tolerance = 100 * torch.finfo(expected.dtype).eps * float(expected.abs().max())
    return float((found - expected).abs().max()) <= tolerance * max(1, site.tokens.shape[1])


def _position_wise(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    """Whether no position reaches another, in the Jacobian behind the layer and in the Hessian of the loss."""
    with torch.enable_grad():
        F = site.output.detach().requires_grad_()
        outputs = site.behind(F)
        point = outputs.detach().requires_grad_()
        value = problem.loss(point, batch)
        expect_twice_differentiable("loss", value)
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
    with refusals_of(lambda: "loss"):
        return _acts_alone(outputs, F) and (not slope.requires_grad or _acts_alone(slope, point))


def _acts_alone(value: Tensor, at: Tensor) -> bool:
    """Whether ``J^T (w u) = w J^T u`` for weights w of the positions and a random u: then J couples no two of them.

    The weights are powers of two, with which rounding commutes, so the two sides agree to the last bit unless a
    position reaches another one of a different weight. Two positions differ in a digit of their numbers, so a product
    for every digit is enough.
    """
    # Numbers too small to be normal are rounded more coarsely; what they could hide is as small.
    smallest = _TERMS * torch.finfo(value.dtype).tiny
    if smallest > torch.finfo(value.dtype).eps:  # float16, in which that is not small
        return False
    number = torch.arange(value.shape[0] * value.shape[1], device=value.device).reshape(*value.shape[:2], 1)
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value)
    (alone,) = torch.autograd.grad(value, at, u, retain_graph=True)
    while bool((number > 0).any()):
        weights = torch.exp2((number % _WEIGHTS).to(value))
        (weighted,) = torch.autograd.grad(value, at, weights * u, retain_graph=True)
        if not bool(((weighted - weights * alone).abs() <= smallest * weights).all()):
            return False
        number = number // _WEIGHTS
    return True
