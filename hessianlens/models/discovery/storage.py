"""How projections lie in a tensor: along which axes outputs, inputs and heads run; where each of several begins."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hessianlens.models.discovery.paths import module_at, parent
from hessianlens.problems import Block

_BY_OUTPUT = ("q", "k", "v", "qk")
_ADDED_BY_OUTPUT = (".lora_b", ".lora_magnitude", ".ia3_l", ".vera_lambda_b")


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is Hugging Face's ``Conv1D``, which stores a weight as inputs x outputs."""
    weight = getattr(module, "weight", None)
    if type(module).__name__ != "Conv1D" or not isinstance(weight, Tensor):
        return False
    return weight.ndim == 2 and getattr(module, "nf", -1) == weight.shape[1]


def output_axis(model: nn.Module, parameter: str, tensor: Tensor) -> int:
    """The axis of the outputs: rows of ``nn.Linear``, columns of ``Conv1D`` and of a bare matrix ``W`` in ``x @ W``.

    >>> output_axis(nn.Linear(2, 3), "weight", nn.Linear(2, 3).weight)
    0
    """
    if tensor.ndim < 2:
        return 0
    owner, leaf = module_at(model, parent(parameter)), parameter.rpartition(".")[2]
    if is_conv1d(owner):
        return 1
    bare = leaf.lstrip("_")[:1] in ("W", "w") and leaf not in ("w", "weight")
    return tensor.ndim - 1 if bare else 0


def added_axis(model: nn.Module, suffix: str, parameter: str, tensor: Tensor, outputs: int | None) -> int | None:
    """The axis along which what an adapter adds follows the outputs of its layer; None if there is none, or unclear.

    That is the rows of LoRA's second matrix in an ``nn.Linear``, and otherwise the one axis as long as the outputs.
    """
    if not suffix.startswith(_ADDED_BY_OUTPUT):
        return None
    if suffix.startswith(".lora_b") and isinstance(module_at(model, parent(parameter)), nn.Linear):
        return 0
    found = [axis for axis, size in enumerate(tensor.shape) if size == outputs]
    return found[0] if len(found) == 1 else None


def head_axis(role: str, suffix: str, outputs: int, tensor: Tensor) -> int | None:
    """The axis along which heads follow each other, None if this block has no parts by head.

    Heads share the output axis of q, k and v and the input axis of o. A tensor of three axes (heads, inputs, outputs)
    and its biases (heads, outputs), as in TransformerLens, have an axis of their own for them, the first.
    """
    if role not in (*_BY_OUTPUT, "o") or suffix not in ("", ".bias") or (role == "o" and suffix):
        return None
    if suffix:
        return 0 if tensor.ndim <= 2 else None
    if tensor.ndim == 3:
        return 0
    if tensor.ndim != 2:
        return None
    return outputs if role in _BY_OUTPUT else 1 - outputs


def extent(role: str, axis: int, shape: tuple[int, ...]) -> int:
    """Heads times the width of a head, for a weight.

    >>> extent("q", 1, (16, 8)), extent("o", 0, (2, 4, 16))
    (8, 8)
    """
    if len(shape) == 2:
        return shape[axis]
    return shape[0] * (shape[1] if role == "o" else shape[-1])


@dataclass(frozen=True)
class Packing:
    """What is known about a packed parameter.

    Attributes:
        order: "joined" or "grouped"; see `Rule`.
        shards: Number of equal stretches that each hold a share of every part; see `Rule`.
        query: Number of query heads, if known.
        key_value: Number of key/value heads, if known.
        outputs: Heads times width as the output projection says it, if known.
    """

    order: str = "joined"
    shards: int = 1
    query: int | None = None
    key_value: int | None = None
    outputs: int | None = None


@dataclass(frozen=True)
class Cut:
    """A part: the entries `start` to `end` of every stretch of `length` entries."""

    name: str
    start: int
    end: int
    length: int


def cuts(names: tuple[str, ...], total: int, packing: Packing) -> list[Cut] | None:
    """The parts of `total` entries, None if the sizes do not add up.

    >>> [(cut.start, cut.end) for cut in cuts(("q", "k", "v"), 16, Packing(query=4, key_value=2))]
    [(0, 8), (8, 12), (12, 16)]
    >>> cuts(("q", "k", "v"), 12, Packing("grouped", query=2))[1]  # twice q, k, v of one head
    Cut(name='k', start=2, end=4, length=6)
    """
    found = _grouped(names, packing) if packing.order == "grouped" else _joined(names, packing)
    if found is None:
        return None
    stretches, shares = found
    unit, left = divmod(total, stretches * sum(shares))
    if left or (len(names) == 3 and packing.outputs not in (None, stretches * shares[0] * unit)):
        return None
    ends = [unit * sum(shares[: i + 1]) for i in range(len(shares))]
    return [Cut(name, end - unit * share, end, ends[-1]) for name, share, end in zip(names, shares, ends, strict=True)]


Shares = tuple[int, tuple[int, ...]]
"""A number of stretches, and the relative sizes of the parts in each."""


def _joined(names: tuple[str, ...], packing: Packing) -> Shares | None:
    """Equal parts, unless fewer heads have keys and values; None if a head would lie in two stretches."""
    heads = (packing.query, packing.key_value, packing.key_value) if len(names) == 3 else ()
    if any(count and count % packing.shards for count in heads):
        return None
    known = tuple(count // packing.shards for count in heads if count)
    return packing.shards, known if len(known) == 3 else (1,) * len(names)


def _grouped(names: tuple[str, ...], packing: Packing) -> Shares | None:
    """As many stretches as groups of heads, each with the queries of the group, its key and its value."""
    groups = packing.key_value or packing.query
    if not packing.query or not groups or packing.query % groups or len(names) != 3:
        return None
    return groups, (packing.query // groups, 1, 1)


def cut_blocks(parts: list[Cut], parameter: str, tensor: Tensor, axis: int, suffix: str) -> list[Block]:
    """The blocks of a packed parameter."""
    what = "columns" if axis else "rows" if tensor.ndim > 1 else "entries"
    blocks = []
    for part in parts:
        index = [slice(None)] * tensor.ndim
        index[axis] = slice(part.start, part.end)
        note, stretch = f"{what} {part.start}:{part.end} of {parameter}", None
        if part.length < tensor.shape[axis]:
            index.insert(axis, slice(None))
            note, stretch = f"{what} {part.start}:{part.end} of every {part.length} of {parameter}", (axis, part.length)
        blocks.append(Block.of(part.name + suffix, parameter, tensor, tuple(index), note, stretch))
    return blocks


def uncut_name(names: tuple[str, ...]) -> str:
    """One name for several parts that cannot be distinguished.

    >>> uncut_name(("layer0.attn.q", "layer0.attn.k", "layer0.attn.v")), uncut_name(("mlp.gate", "mlp.in"))
    ('layer0.attn.qkv', 'mlp.gate_in')
    """
    before, dot, _ = names[0].rpartition(".")
    last = sorted((name.rpartition(".")[2] for name in names), key="qkv".find)
    return before + dot + ("" if all(len(part) == 1 for part in last) else "_").join(last)
