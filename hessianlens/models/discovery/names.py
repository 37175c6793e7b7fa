"""Claims become names: layers are counted, norms numbered, stacks told apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from hessianlens.models.discovery.claims import ParameterClaim
from hessianlens.models.discovery.paths import inside, module_at

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
    """A label that tells each stack from the others, and the path at which it begins; both empty for a single stack.

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
