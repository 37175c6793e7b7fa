"""The last attention layer of any model, located at its attention and at the linear maps around it.

One forward pass in which every linear map puts out a leaf shows what its queries, keys and values are made of, what is
done to its scores and where its outputs go. Heads are made of that; where something is not as the closed forms take
it, the answer is why.
"""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of
from hessianlens.errors import Refusal
from hessianlens.models.transformer import Transformer
from hessianlens.network.base.attention_calls import AttentionCall, AttentionCalls
from hessianlens.network.base.dry_run import sequences_of
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.operands import NO_SOURCE, by_head, score_rule, sites_before
from hessianlens.network.base.recognition import couples_no_groups
from hessianlens.network.routes.last_attention.output_map import depends
from hessianlens.network.routes.last_attention.rotated import rotated_site
from hessianlens.network.routes.last_attention.site import AttentionSite, toy_site
from hessianlens.network.routes.last_attention.smooth_projections import linked_sites, smooth_site
from hessianlens.network.routes.last_attention.surroundings import AttentionByHead, AttentionSurroundings
from hessianlens.problems import Batch, Problem


def locate_attention(problem: Problem, batch: Batch, factored: bool = False) -> AttentionSite | Refusal:
    """The site at a batch; a refusal where there is none.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        factored: Whether maps in front of those of queries, keys and values belong to it, as those of latent attention.
    """
    found = _located(problem, batch)
    if factored:
        linked = found if isinstance(found, Refusal) else linked_sites(found, _taken(found))
        return linked if isinstance(linked, Refusal) else _site(_located(problem, batch, linked=linked), factored=True)
    site = _site(found)
    if isinstance(site, Refusal) and site.reason.endswith(NO_SOURCE.reason):
        return _site(_located(problem, batch, cut_gains=True))  # which operation takes the place of the map
    return site


def _located(
    problem: Problem, batch: Batch, cut_gains: bool = False, linked: Container[int] = ()
) -> AttentionSurroundings | Refusal:
    hooked = Hooks(problem.params, cut=True, cut_gains=cut_gains, linked=linked)
    with problem.scope(), torch.enable_grad(), hooked as hooks, AttentionCalls(cut=True) as calls:
        problem.forward(problem.params, batch)
    if calls.last is None:
        return Refusal("no products of queries with keys were seen in front of a softmax, with values behind it")
    sequences = _sequences(calls.last, max(1, sequences_of(batch)))
    return AttentionSurroundings(problem, hooks, calls.last, sequences, calls.earlier, linked)


def _sequences(call: AttentionCall, examples: int) -> int:
    """Sequences that attention sees: several of an example where a model folds choices or windows into its batch."""
    first = call.q.shape[0]
    return first if call.q.ndim == 4 and first % examples == 0 else examples


def _taken(around: AttentionSurroundings) -> dict[str, Tensor] | Refusal:
    """Queries, keys and values by head, with products of queries and keys and what the heads put out."""
    tensors = {name: by_head(getattr(around.call, name), around.sequences) for name in ("q", "k", "v", "raw", "output")}
    found = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    if len(found) < len(tensors):
        return Refusal("its heads and sequences cannot be separated")
    heads = found["raw"].shape[1]
    return found | {name: found[name].expand(-1, heads, -1, -1) for name in "qkv"}


def _holds_more_products(around: AttentionSurroundings) -> bool:
    """Whether other products of the same queries or keys are part of the scores."""
    call, leaves = around.call, around.hooks.leaves
    further = [factors for *factors, product in call.further if depends(call.scores, [product])]
    if not further:
        return False
    own = sites_before([call.q, call.k], leaves)
    return any(own & sites_before(factors, leaves) for factors in further)


def _site(around: AttentionSurroundings | Refusal, factored: bool = False) -> AttentionSite | Refusal:
    if isinstance(around, Refusal):
        return around
    with torch.enable_grad():
        taken = _taken(around)
        if isinstance(taken, Refusal):
            return taken
        raw, output = taken.pop("raw"), taken.pop("output")
        if _holds_more_products(around):
            return Refusal("its scores are sums of several products, as with relative positions")
        rule = score_rule(around.call.raw, around.call.scores, raw.shape)
        if isinstance(rule, Refusal):
            more = depends(around.call.scores, list(around.hooks.leaves.values()))
            return Refusal("its scores hold more than the products of queries and keys") if more else rule
        attention = AttentionByHead(around, taken, rule, output)
        found = Refusal("") if factored else rotated_site(attention)
        return smooth_site(attention) if isinstance(found, Refusal) else found


def find_site(
    problem: Problem, batch: Batch, own: Transformer | None, factored: bool = False
) -> AttentionSite | Refusal:
    """The last attention layer at a batch; a refusal where there is none that the closed forms know.

    Whether what lies behind acts on every position alone is checked here for the library's own models, of which that
    rest can be called, and for others when their output projection is looked at.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        own: A copy of its model, if that is one of the library's own.
        factored: Whether maps in front of those of queries, keys and values belong to it.
    """
    if own is None:
        return locate_attention(problem, batch, factored)
    with torch.no_grad():
        site = toy_site(own, batch)
        if isinstance(site, Refusal):
            return site
        if site.tokens.ndim != 3:
            return Refusal("its tokens have no batch axis")
        if site.output_use.parameter not in problem.params:
            return Refusal("its output projection is that of another layer too")
        if not _position_wise(problem, site, batch):
            return Refusal("the layers after it mix positions")
        return site


def _position_wise(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    """Whether no position reaches another, in the Jacobian behind the layer and in the Hessian of the loss."""
    assert site.downstream is not None
    with torch.enable_grad():
        F = site.output.detach().requires_grad_()
        outputs = site.downstream(F)
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

    def vjp(cotangent: Tensor) -> list[Tensor]:
        (found,) = torch.autograd.grad(value, at, cotangent.reshape(value.shape), retain_graph=True)
        return [found.flatten(0, 1)]

    return couples_no_groups(vjp, u, positions, positions)
