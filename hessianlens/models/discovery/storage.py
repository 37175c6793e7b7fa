"""How a projection lies in its tensor: along which axis its outputs, its inputs and its heads run."""

from __future__ import annotations

from torch import Tensor, nn

from hessianlens.models.discovery.paths import module_at, parent

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
