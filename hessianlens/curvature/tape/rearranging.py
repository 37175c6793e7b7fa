"""Linear steps: tensors that are seen, cut, joined, repeated or summed, each with its transpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hessianlens.curvature.tape.recording import Call, Ref
from hessianlens.curvature.tape.step import Cotangent, LinearStep, PartialCotangent, Step, Tangents


class ConcatStep(Step):
    """Tensors side by side along an axis.

    Args:
        inputs: Numbers of those that depend on the leaves.
        output: Number of the whole.
        places: Where each of these lies along the axis: start and length.
        axis: The axis.
        shape: That of the whole.
    """

    def __init__(
        self, inputs: Sequence[int], output: int, places: Sequence[tuple[int, int]], axis: int, shape: torch.Size
    ) -> None:
        super().__init__(inputs, output)
        self._places, self._axis, self._shape = tuple(places), axis, shape

    def forward(self, moved: Tangents) -> Tensor:
        """The tangents side by side, zeros where there is none."""
        covered = sum(length for (_, length), dx in zip(self._places, moved, strict=True) if dx is not None)
        if covered == self._shape[self._axis]:
            return torch.cat([dx for dx in moved if dx is not None], self._axis)
        first = next(dx for dx in moved if dx is not None)
        whole = first.new_zeros(self._shape)
        for (start, length), dx in zip(self._places, moved, strict=True):
            if dx is not None:
                whole.narrow(self._axis, start, length).copy_(dx)
        return whole

    def backward(
        self, u: Tensor | None, moved: Tangents, result: Tensor | None, wanted: Sequence[bool]
    ) -> list[Cotangent]:
        """The cotangent, cut."""
        if u is None:
            return [None for _ in self.inputs]
        return [u.narrow(self._axis, start, length) for start, length in self._places]


Values = Callable[[int], Tensor]


def rearrangement_steps(call: Call, values: Values) -> list[Step] | None:
    """The steps of a call that only rearranges, repeats or sums numbers; None if it does something else.

    Args:
        call: One that reads a single tensor that depends on the leaves, or joins several.
        values: Every such tensor.
    """
    if call.name == "cat":
        return [_joined(call, values)]
    if call.name not in REARRANGING or len(call.refs) != 1 or not isinstance(call.args[0], Ref):
        return None
    x = values(call.refs[0])
    outputs = [(k, number) for k, number in enumerate(call.outputs) if number is not None]
    if call.name in _SEEN_OTHERWISE:
        return [LinearStep(call.refs, number, *_seen_otherwise(x.shape, values(number).shape)) for _, number in outputs]
    return [LinearStep(call.refs, number, *_SINGLE[call.name](call, x, k)) for k, number in outputs]


def _joined(call: Call, values: Values) -> Step:
    tensors: list[Any] = list(call.args[0])
    (output,) = call.outputs
    assert output is not None
    whole = values(output).shape
    axis = (call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)) % len(whole)
    start, inputs, places = 0, [], []
    for tensor in tensors:
        size = values(tensor.node) if isinstance(tensor, Ref) else tensor
        if size.ndim != len(whole):  # an empty one, which PyTorch leaves out
            continue
        if isinstance(tensor, Ref):
            inputs.append(tensor.node)
            places.append((start, size.shape[axis]))
        start += size.shape[axis]
    return ConcatStep(inputs, output, places, axis, whole)


Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Cotangent]]


def _seen_otherwise(before: torch.Size, after: torch.Size) -> Pair:
    """The same numbers in another shape."""
    return (lambda t: t.reshape(after)), (lambda u: u.reshape(before))


def _turned(call: Call, x: Tensor, number: int) -> Pair:
    if call.name == "t":
        return (lambda t: t.t()), (lambda u: u.t())
    if call.name == "transpose":
        _, one, other = call.args
        return (lambda t: t.transpose(one, other)), (lambda u: u.transpose(one, other))
    order = [axis % x.ndim for axis in call.args[1]]
    back = [order.index(axis) for axis in range(x.ndim)]
    return (lambda t: t.permute(order)), (lambda u: u.permute(back))


def _repeated(call: Call, x: Tensor, number: int) -> Pair:
    sizes = call.args[1]
    return (lambda t: t.expand(sizes)), (lambda u: u.sum_to_size(x.shape))


def _same(call: Call, x: Tensor, number: int) -> Pair:
    """A copy, perhaps in another precision."""
    to = call.kwargs.get("dtype") or x.dtype
    return (lambda t: t.to(to)), (lambda u: u.to(x.dtype))


def _cut(call: Call, x: Tensor, number: int) -> Pair:
    """A part of the numbers, as a view."""

    def part(tensor: Tensor) -> Tensor:
        found = call.replay(lambda _: tensor)
        return found if isinstance(found, Tensor) else found[number]

    return part, (lambda u: PartialCotangent(u, part))


def _summed(call: Call, x: Tensor, number: int) -> Pair:
    axes = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    axes = tuple(range(x.ndim)) if not axes else tuple(axis % x.ndim for axis in axes)
    keep = bool(call.args[2] if len(call.args) > 2 else call.kwargs.get("keepdim", False))
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    factor = 1.0 / math.prod(x.shape[axis] for axis in axes) if call.name == "mean" else 1.0

    def back(u: Tensor) -> Tensor:
        return (u if factor == 1 else u * factor).reshape(kept).expand(x.shape)

    return (lambda t: t.sum(axes, keepdim=keep) * factor), back


def _masked(call: Call, x: Tensor, number: int) -> Pair:
    """A triangle of every matrix."""
    return (lambda t: call.replay(lambda _: t)), (lambda u: call.replay(lambda _: u))


_SEEN_OTHERWISE = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "_reshape_alias"})
_SINGLE: dict[str, Callable[[Call, Tensor, int], Pair]] = {
    **dict.fromkeys(("t", "transpose", "permute"), _turned),
    **dict.fromkeys(("clone", "alias", "_to_copy"), _same),
    **dict.fromkeys(("slice", "select", "split", "split_with_sizes", "unbind", "diagonal"), _cut),
    **dict.fromkeys(("sum", "mean"), _summed),
    **dict.fromkeys(("tril", "triu"), _masked),
    "expand": _repeated,
}

REARRANGING = frozenset({"cat", *_SEEN_OTHERWISE, *_SINGLE})
"""Names of the calls that only rearrange, repeat or sum numbers; which of them are made depends on shapes."""
