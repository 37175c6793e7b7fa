"""`Discovery`: what was found in a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from hessianlens.errors import InputError
from hessianlens.models.discovery.heads import HeadLayout, split_heads
from hessianlens.models.discovery.notes import listed
from hessianlens.problems import Block


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
            raise InputError(f"name: there is no block {name!r}; this model has {listed(self.blocks, 12)}.")
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
