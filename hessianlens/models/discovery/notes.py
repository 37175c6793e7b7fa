"""The lines that say what discovery decided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

_DEPTH = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def listed(names: Iterable[str], shown: int = 4) -> str:
    """The first few of some names.

    >>> listed("abcdef")
    'a, b, c, d, ... (6 in all)'
    """
    found = list(names)
    return ", ".join(found[:shown]) + (f", ... ({len(found)} in all)" if len(found) > shown else "")


def architecture_notes(model: nn.Module, layers: Sequence[str]) -> list[str]:
    """Whether the model is known, has several stacks, or uses a layer more than once."""
    kind = type(model).__name__
    if not layers:
        return [f"{kind} is not an architecture known here: every parameter is a block under its own name."]
    stacks = list(dict.fromkeys(name.rpartition("layer")[0].rstrip(".") for name in layers))
    if len(stacks) > 1:
        return [f"{kind} has several stacks of layers: their names begin with {listed(filter(None, stacks))}."]
    config = getattr(model, "config", None)
    stated = next((v for v in (getattr(config, name, None) for name in _DEPTH) if isinstance(v, int)), 0)
    if stated <= len(layers):
        return []
    return [f"{kind} applies {stated} layers but has the parameters of {len(layers)}: layers share their blocks."]


def packing_notes(interleaved: Sequence[str], uncut: Sequence[str]) -> list[str]:
    """How packed parameters were read, where that is not just one part after the other."""
    lines = []
    if interleaved:
        lines.append(
            f"{listed(_kinds(interleaved))}: read as q, k, v of one head (or group) after the other; each is one "
            "block, its heads in order."
        )
    if uncut:
        lines.append(f"{listed(uncut)}: packed in an order that is not known here, so it is one block.")
    return lines


def _kinds(layers: Sequence[str]) -> list[str]:
    """Module names without what they are in."""
    return list(dict.fromkeys(path.rpartition(".")[2] for path in layers))


def tie_notes(aliases: Mapping[str, tuple[str, str]], parameters: Mapping[str, str]) -> list[str]:
    """A line for every pair of names, or pair of layers, that share parameters."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for alias, (name, _) in aliases.items():
        layers = _layer(alias), _layer(name)
        groups[layers if all(layers) else (alias, name)].append(name)
    lines = []
    for (alias, name), names in groups.items():
        if alias in aliases:
            lines.append(f"{name} and {alias} are one tensor ({parameters[name]}): its block is {name}.")
        else:
            lines.append(f"{alias} shares {len(names)} blocks with {name}: they have the names of {name}.")
    return lines


def _layer(name: str) -> str:
    head, found, rest = name.partition("layer")
    number = rest.partition(".")[0]
    return head + found + number if number.isdigit() else ""


def unknown_notes(own: Sequence[str], contested: Sequence[str], layers: Sequence[str]) -> list[str]:
    """Parameters that keep their own names in a model that is known otherwise."""
    lines = []
    if own and layers:
        lines.append(f"No common name is known for {listed(own)}: blocks under the parameters' own names.")
    if contested:
        lines.append(f"Several parameters would have one name: {listed(contested)} keep their own.")
    return lines


def head_notes(headless: Sequence[str]) -> list[str]:
    """Attentions whose heads are not known."""
    if not headless:
        return []
    return [f"The number of heads of {listed(headless)} is not stated or does not fit: no blocks by head there."]
