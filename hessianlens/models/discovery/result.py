"""`Discovery`: the blocks of a model, and the lines that say what was decided."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from hessianlens.errors import InputError
from hessianlens.models.discovery.heads import HeadLayout, split_heads
from hessianlens.problems import Block

_DEPTH = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


def list_names(names: Iterable[str], shown: int = 4) -> str:
    """The first few of some names.

    >>> list_names("abcdef")
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
        return [f"{kind} has several stacks of layers: their names begin with {list_names(filter(None, stacks))}."]
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
            f"{list_names(_kinds(interleaved))}: read as q, k, v of one head (or group) after the other; each is one "
            "block, its heads in order."
        )
    if uncut:
        lines.append(f"{list_names(uncut)}: packed in an order that is not known here, so it is one block.")
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
        lines.append(f"No common name is known for {list_names(own)}: blocks under the parameters' own names.")
    if contested:
        lines.append(f"Several parameters would have one name: {list_names(contested)} keep their own.")
    return lines


def head_notes(headless: Sequence[str]) -> list[str]:
    """Attentions whose heads are not known."""
    if not headless:
        return []
    return [f"The number of heads of {list_names(headless)} is not stated or does not fit: no blocks by head there."]


@dataclass(frozen=True)
class Discovery:
    """The named blocks of a model.

    Attributes:
        blocks: Every block by name, in the order of ``named_parameters``. Together they cover every entry of every
            parameter exactly once; with ``heads=True`` the parts of the heads follow the whole they are parts of.
        notes: What was decided on the way, a line each.
        layer_names: ``layer0``, ``layer1`` ..., or ``encoder.layer0`` ... where there are several stacks.
        layouts: Heads by attention, ``layer0.attn`` or ``decoder.layer0.cross``, where they are known.
        aliases: Other names of shared parameters, to the name of the block.
        head_axes: The axis along which heads follow each other, by block.
    """

    blocks: dict[str, Block]
    notes: tuple[str, ...] = ()
    layer_names: tuple[str, ...] = ()
    layouts: dict[str, HeadLayout] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    head_axes: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> int:
        """Number of layers that have parameters of their own or share them under their own name."""
        return len(self.layer_names)

    @property
    def heads(self) -> dict[int, HeadLayout]:
        """Heads of the self-attention by layer, counted through all stacks, where they are known."""
        known = {number: self.layouts.get(f"{name}.attn") for number, name in enumerate(self.layer_names)}
        return {number: layout for number, layout in known.items() if layout is not None}

    def block(self, name: str) -> Block:
        """A block by its name or by any other name of a shared parameter."""
        found = self.blocks.get(self.aliases.get(name, name))
        if found is None:
            raise InputError(f"name: there is no block {name!r}; this model has {list_names(self.blocks, 12)}.")
        return found

    def head_blocks(self, layer: int | str, role: str) -> list[Block]:
        """The parts of a block that belong to its heads, in order.

        Args:
            layer: Its number, or its name in a model of several stacks (``decoder.layer0``).
            role: ``q``, ``k``, ``v``, ``o``; ``q.bias`` ... for biases; ``cross.q`` ... for cross-attention.

        >>> from torch import nn
        >>> from hessianlens.models.discovery import discover
        >>> found = discover(nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4))
        >>> [(block.name, block.index[0]) for block in found.head_blocks(0, "k")]
        [('layer0.attn.k.head0', slice(8, 12, None)), ('layer0.attn.k.head1', slice(12, 16, None))]
        """
        name = self._attention_block(layer, role)
        self.block(name)
        found = self._split(name)
        if found is None:
            attention, _, _ = name.removesuffix(".bias").rpartition(".")
            headless = attention.endswith((".attn", ".cross")) and attention not in self.layouts
            why = "the model does not state its number of heads" if headless else "it has no parts by head"
            raise InputError(f"{name}: cannot be split by head, since {why}.")
        return found

    @property
    def parts(self) -> dict[str, list[Block]]:
        """The parts of every block that has heads, by its name."""
        found = {name: self._split(name) for name in self.head_axes}
        return {name: parts for name, parts in found.items() if parts is not None}

    def _split(self, name: str) -> list[Block] | None:
        attention, _, short = name.removesuffix(".bias").rpartition(".")
        layout, axis = self.layouts.get(attention), self.head_axes.get(name)
        if layout is None or axis is None:
            return None
        return split_heads(self.blocks[name], axis, layout.count(short))

    def _attention_block(self, layer: int | str, role: str) -> str:
        """The name of a block of an attention, that of its first owner if it is shared."""
        if isinstance(layer, int) and not 0 <= layer < self.layers:
            raise InputError(f"layer: got {layer}, expected 0 .. {self.layers - 1}.")
        before = self.layer_names[layer] if isinstance(layer, int) else layer
        name = f"{before}.{role}" if role.startswith(("attn.", "cross.")) else f"{before}.attn.{role}"
        return self.aliases.get(name, name)
