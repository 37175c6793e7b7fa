"""Parameter names taken apart: wrappers (compiled and distributed models, LoRA), the leaf, the numbers of layers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import nn

_NUMBERED = re.compile(r"(?:\w*(?:layer|block))?_?(\d+)")
_WEIGHTS = ("weight", "w", "scale", "gamma")
_BIASES = ("bias", "b", "shift", "beta")
_OUTER = ("module", "base_model.model")
_INNER = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")


def unwrap_names(parameters: Iterable[str]) -> dict[str, str]:
    """Parameters' names in the model without wrappers that compile it, distribute it or hold adapters.

    As they are if two parameters would have one name.

    >>> list(unwrap_names(["module._orig_mod.h.0.weight", "module._orig_mod.h.1.base_layer.weight"]).values())
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
    if (own := module._modules.get(name)) is not None:
        return own
    with suppress(AttributeError):
        return module.get_submodule(name)
    for wrapper in (*_INNER, *_OUTER):
        with suppress(AttributeError):
            return _child(module.get_submodule(wrapper), name)
    return None


_ADDED = re.compile(
    r"(?P<layer>.+?)\.(?:lora\.(?P<nested>[ABab]|down|up)|(?:lora\.)?(?P<kind>(?:lora|ia3|vera|hada|lokr|b?oft)_\w+))"
    r"(?:\.(?!weight$|bias$)(?P<adapter>[^.]+))?(?:\.(?P<leaf>weight|bias))?"
)
_BARE = re.compile(r"(?P<layer>.+)\.(?P<kind>[AB])(?:\.(?P<leaf>weight|bias))?")
_HALVES = {
    **dict.fromkeys(("a", "down", "lora_a", "lora_down", "lora_embedding_a"), "lora_a"),
    **dict.fromkeys(("b", "up", "lora_b", "lora_up", "lora_embedding_b"), "lora_b"),
}
_COPY = re.compile(r"(?P<before>.+)\.modules_to_save\.(?P<adapter>[^.]+)\.(?P<rest>.+)")
_ORIGINAL = re.compile(r"(?P<before>.+)\.original_module\.(?P<rest>.+)")


@dataclass(frozen=True)
class Name:
    """A parameter's name taken apart.

    Attributes:
        own: The name in the model without its wrappers.
        path: The path of its layer there.
        suffix: ``.bias``, ``.lora_a``, ``.lora_b.other.bias`` ...; nothing for a weight.
        added: Whether an adapter added it to the layer.
    """

    own: str
    path: str
    suffix: str
    added: bool = False


def read_names(parameters: Iterable[str]) -> dict[str, Name]:
    """Every parameter's name taken apart.

    What an adapter adds is named behind the layer it is wrapped around, with the adapter's own name unless that is
    ``default``; the layer inside counts as the layer itself. A copy that is trained in place of a layer has its name.

    >>> found = read_names(["h.0.q.base_layer.weight", "h.0.q.lora_A.default.weight", "h.0.q.lora_B.other.weight"])
    >>> [(name.path, name.suffix) for name in found.values()]
    [('h.0.q', ''), ('h.0.q', '.lora_a'), ('h.0.q', '.lora_b.other')]
    """
    plain = unwrap_names(parameters)
    added = _added(plain.values())
    inside = _inside({layer for layer, _ in added.values()}, [name for name in plain.values() if name not in added])
    copied = {found["before"] for found in map(_COPY.fullmatch, plain.values()) if found}
    names = {}
    for parameter, name in plain.items():
        if name in added:
            names[parameter] = Name(name, *added[name], added=True)
            continue
        where, which = _copy(name, copied)
        module = parent(where)
        own = inside.get(module, module) + where.removeprefix(module)
        path, bias = canonical(own)
        names[parameter] = Name(own if where == name else name, path, which + bias)
    if len({name.own for name in names.values()}) < len(names):
        return {parameter: replace(name, own=parameter) for parameter, name in names.items()}
    return names


def _added(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Layer and suffix of what adapters add."""
    children: dict[str, set[str]] = defaultdict(set)
    found = {}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            children[".".join(parts[:depth])].add(parts[depth])
        match = _ADDED.fullmatch(name)
        if match is not None:
            found[name] = match["layer"], _suffix(match["kind"] or match["nested"], match["adapter"], match["leaf"])
    for name in names:
        match = _BARE.fullmatch(name)
        # Two matrices A and B are an adapter's in the company of one layer, and of nothing else.
        if match is not None and name not in found and _pair_and_layer(children[match["layer"]]):
            found[name] = match["layer"], _suffix(match["kind"], None, match["leaf"])
    return found


def _pair_and_layer(children: set[str]) -> bool:
    return {"A", "B"} <= children and len(children - {"A", "B", "bias"}) == 1


def _suffix(kind: str, adapter: str | None, leaf: str | None) -> str:
    which = "" if adapter in (None, "default") else f".{adapter}"
    return f".{_HALVES.get(kind.lower(), kind.lower())}{which}{'.bias' if leaf == 'bias' else ''}"


def _inside(layers: set[str], names: Iterable[str]) -> dict[str, str]:
    """Modules that an adapter is wrapped around, each the only one with parameters there, to the layer's own path."""
    around: dict[str, set[str]] = defaultdict(set)
    for name in names:
        module = parent(name)
        around[parent(module)].add(module)
        around[module].add("")  # a layer with parameters of its own is wrapped around nothing
    return {next(iter(around[layer])): layer for layer in layers if len(around[layer]) == 1 and "" not in around[layer]}


def _copy(name: str, copied: set[str]) -> tuple[str, str]:
    """The name of a layer of which a copy is trained, and what distinguishes this one from the copy in use."""
    copy, original = _COPY.fullmatch(name), _ORIGINAL.fullmatch(name)
    if copy is not None:
        which = "" if copy["adapter"] == "default" else f".modules_to_save.{copy['adapter']}"
        return f"{copy['before']}.{copy['rest']}", which
    if original is not None and original["before"] in copied:
        return f"{original['before']}.{original['rest']}", ".original"
    return name, ""
