"""Parameter names taken apart: wrappers, the leaf, and the numbers that count layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress

from torch import nn

_NUMBERED = re.compile(r"(?:\w*(?:layer|block))?_?(\d+)")
_WEIGHTS = ("weight", "w", "scale", "gamma")
_BIASES = ("bias", "b", "shift", "beta")
_OUTER = ("module", "base_model.model")
_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")


def unwrapped(parameters: Iterable[str]) -> dict[str, str]:
    """Parameters' names in the model without wrappers that compile it, distribute it or hold adapters.

    As they are if two parameters would have one name.

    >>> list(unwrapped(["module._orig_mod.h.0.weight", "module._orig_mod.h.1.base_layer.weight"]).values())
    ['h.0.weight', 'h.1.weight']
    """
    plain = {name: ".".join(part for part in name.split(".") if part not in _INNER) for name in parameters}
    while outer := next((outer for outer in _OUTER if _all_inside(plain.values(), outer)), None):
        plain = {parameter: name.removeprefix(f"{outer}.") for parameter, name in plain.items()}
    return plain if len(set(plain.values())) == len(plain) else {name: name for name in plain}


def _all_inside(names: Collection[str], module: str) -> bool:
    return len(names) > 0 and all(name.startswith(f"{module}.") for name in names)


def canonical(parameter: str) -> tuple[str, str]:
    """The path of a parameter without its leaf, and ``.bias`` if it is a bias.

    >>> canonical("h.0.ln_1.bias"), canonical("attn.b_Q"), canonical("attn.in_proj_bias"), canonical("cls_token")
    (('h.0.ln_1', '.bias'), ('attn.W_Q', '.bias'), ('attn.in_proj_weight', '.bias'), ('cls_token', ''))
    """
    parent, _, leaf = parameter.rpartition(".")
    if parent and leaf in _WEIGHTS:
        return parent, ""
    if parent and leaf in _BIASES:
        return parent, ".bias"
    before = f"{parent}." if parent else ""
    bare = leaf.removeprefix("_")
    if bare.startswith("b_"):
        return f"{before}W_{bare[2:]}", ".bias"
    if bare.startswith("W_"):
        return before + bare, ""
    if leaf.endswith("_bias"):
        return f"{before}{leaf.removesuffix('_bias')}_weight", ".bias"
    return parameter, ""


def layer_splits(path: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Every way to read a number in `path` as that of a layer: the stack, the numbers so far, the rest.

    >>> list(layer_splits("encoder.block.1.layer.0.wi"))
    [('encoder.block.*', (1,), 'layer.0.wi'), ('encoder.block.*.layer.*', (1, 0), 'wi')]
    """
    parts, seen, numbers = path.split("."), [], []
    for position, part in enumerate(parts[:-1]):
        found = _NUMBERED.fullmatch(part)
        seen.append(part if found is None else part[: found.start(1)] + "*")
        if found is not None:
            numbers.append(int(found.group(1)))
            yield ".".join(seen), tuple(numbers), ".".join(parts[position + 1 :])


def plain_splits(path: str) -> Iterator[tuple[str, str]]:
    """Every way to cut a path behind components that are no numbers, the shortest beginning first.

    >>> list(plain_splits("model.norm"))
    [('', 'model.norm'), ('model', 'norm')]
    """
    parts = path.split(".")
    for position in range(len(parts)):
        if position and parts[position - 1].isdigit():
            return
        yield ".".join(parts[:position]), ".".join(parts[position:])


def inside(path: str, ancestor: str) -> bool:
    """Whether `path` is `ancestor` or below it; everything is below the root, ``""``."""
    return not ancestor or path == ancestor or path.startswith(ancestor + ".")


def parent(path: str) -> str:
    """The path one component shorter."""
    return path.rpartition(".")[0]


def module_at(model: nn.Module, path: str) -> nn.Module:
    """The module at a path of the model without its wrappers, or the nearest one around it."""
    module = model
    for part in path.split(".") if path else ():
        inner = _child(module, part)
        if inner is None:
            return module
        module = inner
    return module


def _child(module: nn.Module, name: str) -> nn.Module | None:
    """A child by its name, looked for inside a wrapper too."""
    with suppress(AttributeError):
        return module.get_submodule(name)
    for wrapper in (*_INNER, *_OUTER):
        with suppress(AttributeError):
            return _child(module.get_submodule(wrapper), name)
    return None
