"""Every parameter against the table: what it claims to be, in which layer of which stack; claims become names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from hessianlens.models.discovery.name_rules import TABLE, Rule, registered_rules
from hessianlens.models.discovery.paths import Name, inside, layer_splits, module_at, parent, plain_splits, read_names

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
    rules = _Rules((*registered_rules(), *TABLE))
    claims = _with_attention([_numbered(model, claim, rules) for claim in blank])
    if not any(claim.stack is not None for claim in claims):
        claims = _with_attention(_unnumbered(model, blank, rules))
    stacks = {claim.stack for claim in claims if claim.stack is not None}
    if not stacks:
        return blank
    return [claim if claim.roles else _outside(model, claim, rules, stacks) for claim in claims]


def _match(
    model: nn.Module, claim: ParameterClaim, rest: str, rules: _Rules, scopes: tuple[str, ...]
) -> ParameterClaim:
    owner = type(module_at(model, parent(claim.name.path))).__name__
    roles, packing, shards = rules.first(rest, owner, scopes)
    return replace(claim, roles=roles, packing=packing, shards=shards) if roles else claim


class _Rules:
    """Rules in their order, each path looked up once: the layers of a stack have the same."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._found: dict[tuple[str, str, tuple[str, ...]], tuple[tuple[str, ...], str, int]] = {}

    def first(self, rest: str, owner: str, scopes: tuple[str, ...]) -> tuple[tuple[str, ...], str, int]:
        """Roles, packing and shards by the first rule that applies; no roles if none does."""
        key = rest, owner, scopes
        if key not in self._found:
            applying = ((rule.roles_of(rest, owner), rule) for rule in self._rules if rule.scope in scopes)
            self._found[key] = next(((r, rule.packing, rule.shards) for r, rule in applying if r), ((), "", 1))
        return self._found[key]


def _numbered(model: nn.Module, claim: ParameterClaim, rules: _Rules) -> ParameterClaim:
    """A parameter behind the number of a layer."""
    for stack, key, rest in layer_splits(claim.name.path):
        found = _match(model, claim, rest, rules, ("layer",))
        if found.roles:
            return replace(found, stack=stack, key=key)
    return claim


def _unnumbered(model: nn.Module, claims: list[ParameterClaim], rules: _Rules) -> list[ParameterClaim]:
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


def _outside(model: nn.Module, claim: ParameterClaim, rules: _Rules, stacks: set[str]) -> ParameterClaim:
    """A parameter outside the layers: embeddings, final norm, heads."""
    containers = [stack.partition("*")[0].rstrip(".") for stack in stacks]
    for before, rest in plain_splits(claim.name.path):
        around = any(inside(container, before) for container in containers)
        found = _match(model, claim, rest, rules, ("stack", "model") if around else ("model",))
        if found.roles:
            return found
    return claim


LayerKey = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Names:
    """The names of the blocks in every parameter, without suffixes, and those of the layers in model order."""

    of: dict[str, tuple[str, ...]]
    layers: tuple[str, ...]


def name_claims(model: nn.Module, claims: list[ParameterClaim]) -> Names:
    """Names such as ``layer0.attn.q`` for every claim that has roles."""
    roots = stack_roots(dict.fromkeys(claim.stack for claim in claims if claim.stack is not None))
    layers = _layers(model, claims, roots)
    present: dict[LayerKey, set[str]] = defaultdict(set)
    anywhere: dict[str, set[str]] = defaultdict(set)
    for claim in claims:
        if claim.stack is not None:
            present[claim.stack, claim.key].update(claim.roles)
            anywhere[claim.stack].update(claim.roles)
    names = {}
    for claim in claims:
        if claim.stack is None:
            before = next(
                (f"{label}." for label, root in roots.values() if label and inside(claim.name.path, root)), ""
            )
            names[claim.parameter] = tuple(before + role for role in claim.roles)
            continue
        place = (claim.stack, claim.key)
        roles = (_settled(role, present[place], anywhere[claim.stack]) for role in claim.roles)
        names[claim.parameter] = tuple(f"{layers[place]}.{role}" for role in roles)
    return Names(names, tuple(dict.fromkeys(layers.values())))


def _settled(role: str, layer: set[str], stack: set[str]) -> str:
    """A role in the company of the others of its layer and of its stack."""
    if role.startswith("norm@"):
        # By the stack: a norm that one layer lacks leaves a gap there, and norm2 is the same in all layers.
        return f"norm{sorted(other for other in stack if other.startswith('norm@')).index(role) + 1}"
    if role == "mlp.gate" and "mlp.in" not in layer:
        return "mlp.in"  # w1 without w3: nothing is gated
    if role.startswith("cross.") and not any(other.startswith("attn.") for other in stack):
        return "attn." + role.removeprefix("cross.")
    return role


def _layers(model: nn.Module, claims: list[ParameterClaim], roots: dict[str, tuple[str, str]]) -> dict[LayerKey, str]:
    """The name of every layer, ``layer0`` or ``decoder.layer0``."""
    keys: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    for claim in claims:
        if claim.stack is not None:
            keys[claim.stack][claim.key] = None
    names = {}
    for stack, found in keys.items():
        before = f"{roots[stack][0]}." if roots[stack][0] else ""
        literal = _counts_layers_only(model, stack)
        for rank, key in enumerate(sorted(found)):
            names[stack, key] = f"{before}layer{key[0] if literal else rank}"
    return names


def _counts_layers_only(model: nn.Module, stack: str) -> bool:
    """Whether the model's own numbers count layers: they do in a list, not in a sequence of all kinds of modules."""
    container, star, rest = stack.partition("*")
    if not star or rest or not container.endswith("."):
        return False
    return isinstance(module_at(model, container.rstrip(".")), nn.ModuleList)


def stack_roots(stacks: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A label that distinguishes each stack from the others, and the path of its beginning; both empty for one stack.

    >>> stack_roots(["model.encoder.layers.*", "model.decoder.layers.*"])["model.decoder.layers.*"]
    ('decoder', 'model.decoder')
    """
    parts = {stack: [part for part in stack.split(".") if part] for stack in stacks}
    if len(parts) == 1:
        return {stack: ("", "") for stack in parts}
    shared = 0
    while len({tuple(p[: shared + 1]) for p in parts.values()}) == 1:
        shared += 1
    heads = [tuple(p[: shared + 1]) for p in parts.values()]
    length = shared + 1 if len(set(heads)) == len(heads) else None
    return {
        stack: (".".join(p for p in found[shared:length] if p != "*"), ".".join(found[:length]))
        for stack, found in parts.items()
    }


def groups_of(parameters: Mapping[str, Tensor]) -> list[list[str]]:
    """The names of every tensor, the first being that of ``named_parameters``."""
    groups: dict[int, list[str]] = defaultdict(list)
    for name, tensor in parameters.items():
        groups[id(tensor)].append(name)
    return list(groups.values())


def settle(
    claims: list[ParameterClaim], names: Mapping[str, tuple[str, ...]], groups: list[list[str]]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The names without those that several tensors claim, and the parameters that lost theirs.

    None of the claimants gets a contested name: which one deserves it is not ours to guess.
    """
    own = {claim.parameter: claim.name.own for claim in claims}
    tensor_of = {name: number for number, group in enumerate(groups) for name in group}
    settled = {claim.parameter: tuple(name + claim.name.suffix for name in names[claim.parameter]) for claim in claims}
    lost: list[str] = []
    while True:
        claimants: dict[str, set[int]] = defaultdict(set)
        for parameter, given in settled.items():
            for name in given or (own[parameter],):
                claimants[name].add(tensor_of[parameter])
        losers = [p for p, given in settled.items() if any(len(claimants[name]) > 1 for name in given)]
        if not losers:
            return {p: names[p] if given else () for p, given in settled.items()}, lost
        lost += losers
        settled.update(dict.fromkeys(losers, ()))
