"""Every parameter against the table: what it claims to be, and in which layer of which stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn

from hessianlens.models.discovery.paths import inside, layer_splits, module_at, parent, plain_splits
from hessianlens.models.discovery.rules import Rule, registered
from hessianlens.models.discovery.table import TABLE
from hessianlens.models.discovery.wrapped import Name, read_names

_PROJECTIONS = {f"{kind}.{role}" for kind in ("attn", "cross") for role in ("q", "k", "v", "o", "qk", "qkv")}


@dataclass(frozen=True)
class ParameterClaim:
    """What a parameter is read as.

    Attributes:
        parameter: Its name in the model.
        name: That name taken apart.
        roles: Names behind the layer's, several if packed; none if nothing is known about it.
        packing: How several roles lie in it.
        shards: In how many stretches.
        stack: Path of its layer with ``*`` for numbers; None outside the layers.
        key: The numbers.
    """

    parameter: str
    name: Name
    roles: tuple[str, ...] = ()
    packing: str = "joined"
    shards: int = 1
    stack: str | None = None
    key: tuple[int, ...] = ()


def read_claims(model: nn.Module, parameters: Iterable[str]) -> list[ParameterClaim]:
    """A claim for every parameter; without roles everywhere if there is no attention in the model."""
    blank = [ParameterClaim(parameter, name) for parameter, name in read_names(parameters).items()]
    rules = (*registered(), *TABLE)
    claims = _with_attention([_numbered(model, claim, rules) for claim in blank])
    if not any(claim.stack is not None for claim in claims):
        claims = _with_attention(_unnumbered(model, blank, rules))
    stacks = {claim.stack for claim in claims if claim.stack is not None}
    if not stacks:
        return blank
    return [claim if claim.roles else _outside(model, claim, rules, stacks) for claim in claims]


def _match(
    model: nn.Module, claim: ParameterClaim, rest: str, rules: tuple[Rule, ...], scopes: tuple[str, ...]
) -> ParameterClaim:
    owner = type(module_at(model, parent(claim.name.path))).__name__
    for rule in rules:
        roles = rule.roles_of(rest, owner) if rule.scope in scopes else ()
        if roles:
            return replace(claim, roles=roles, packing=rule.packing, shards=rule.shards)
    return claim


def _numbered(model: nn.Module, claim: ParameterClaim, rules: tuple[Rule, ...]) -> ParameterClaim:
    """A parameter behind the number of a layer."""
    for stack, key, rest in layer_splits(claim.name.path):
        found = _match(model, claim, rest, rules, ("layer",))
        if found.roles:
            return replace(found, stack=stack, key=key)
    return claim


def _unnumbered(model: nn.Module, claims: list[ParameterClaim], rules: tuple[Rule, ...]) -> list[ParameterClaim]:
    """The parameters of single layers that no number counts, such as a lone `nn.TransformerEncoderLayer`."""
    found = []
    for claim in claims:
        candidates = (
            (before, _match(model, claim, rest, rules, ("layer",))) for before, rest in plain_splits(claim.name.path)
        )
        found.append(next((replace(c, stack=before) for before, c in candidates if c.roles), claim))
    stacks = sorted({claim.stack for claim in found if claim.stack is not None}, key=len)
    # A norm next to the attention and the attention itself belong to one layer, that of the outer path.
    outer = {stack: next(other for other in stacks if inside(stack, other)) for stack in stacks}
    return [c if c.stack is None else replace(c, stack=outer[c.stack]) for c in found]


def _with_attention(claims: list[ParameterClaim]) -> list[ParameterClaim]:
    """Claims without those in stacks that have no attention, such as lists of experts."""
    known = {claim.stack for claim in claims if _PROJECTIONS & set(claim.roles)}
    return [claim if claim.stack in known else replace(claim, roles=(), stack=None, key=()) for claim in claims]


def _outside(model: nn.Module, claim: ParameterClaim, rules: tuple[Rule, ...], stacks: set[str]) -> ParameterClaim:
    """A parameter outside the layers: embeddings, final norm, heads."""
    containers = [stack.partition("*")[0].rstrip(".") for stack in stacks]
    for before, rest in plain_splits(claim.name.path):
        around = any(inside(container, before) for container in containers)
        found = _match(model, claim, rest, rules, ("stack", "model") if around else ("model",))
        if found.roles:
            return found
    return claim
