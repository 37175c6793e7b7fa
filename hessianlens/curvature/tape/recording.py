"""What a function does to the tensors it depends on, written down call by call while it runs once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hessianlens.derivatives.one_operation import as_one_operation


class Unrecordable(Exception):
    """The function does something that cannot be written down; the message says what."""


@dataclass(frozen=True)
class Ref:
    """A tensor that depends on the leaves, by its number."""

    node: int


@dataclass(frozen=True, eq=False)
class Call:
    """One operation on tensors that depend on the leaves.

    Attributes:
        func: The operation, as PyTorch's dispatcher knows it.
        args: Its arguments, with a `Ref` for every tensor that depends on the leaves.
        kwargs: The same by name.
        outputs: The number of every output; None where no derivative leads through it.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[int | None, ...]

    @property
    def name(self) -> str:
        """That of the operation, such as ``mm``."""
        return str(self.func.overloadpacket.__name__)

    @cached_property
    def refs(self) -> list[int]:
        """The tensors that it reads, each as often as it does."""
        return [leaf.node for leaf in _leaves((self.args, self.kwargs)) if isinstance(leaf, Ref)]

    def replay(self, value: Callable[[int], Any]) -> Any:
        """Run it again with other tensors in place of those that depend on the leaves."""
        args, kwargs = fill_references((self.args, self.kwargs), value)
        return self.func(*args, **kwargs)


def fill_references(tree: Any, value: Callable[[int], Any]) -> Any:
    """Arguments with a value for every `Ref`."""
    return _mapped(lambda leaf: value(leaf.node) if isinstance(leaf, Ref) else leaf, tree)


# The dispatcher hands over nothing but tuples, lists and dictionaries; PyTorch's own walk through a tree, which asks
# for every kind of container there is, takes longer than many an operation.


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from _leaves(branch)
    elif isinstance(tree, dict):
        yield from _leaves(list(tree.values()))
    else:
        yield tree


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    if isinstance(tree, (tuple, list)):
        branches = [_mapped(function, branch) for branch in tree]
        return tuple(branches) if isinstance(tree, tuple) else branches
    if isinstance(tree, dict):
        return {name: _mapped(function, branch) for name, branch in tree.items()}
    return function(tree)


@dataclass(frozen=True, eq=False)
class Recording:
    """A function at one point.

    Attributes:
        calls: What it did, in order.
        values: Every tensor that depends on the leaves, by number.
        leaves: The numbers of the leaves.
        output: The number of the result; None if it depends on no leaf.
        cut: Whether something that depends on the leaves was passed on as a constant.
    """

    calls: list[Call]
    values: dict[int, Tensor]
    leaves: dict[str, int]
    output: int | None
    cut: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        """The operations that were called, and ``cut`` where a dependence ended."""
        return frozenset([*(call.name for call in self.calls), *(["cut"] if self.cut else [])])


def record_function(function: Callable[[Mapping[str, Tensor]], Tensor], leaves: Mapping[str, Tensor]) -> Recording:
    """A function of named tensors, written down.

    Args:
        function: From tensors to a tensor.
        leaves: Where it is taken; with respect to these there will be derivatives.

    >>> found = record_function(lambda at: (at["x"] * 2).tanh(), {"x": torch.ones(3)})
    >>> [call.name for call in found.calls], found.output
    (['mul', 'tanh'], 2)
    """
    points = {name: tensor.detach() for name, tensor in leaves.items()}
    recorder = _Recorder(list(points.values()))
    # With gradients enabled, steps that a model takes without them can be seen; no graph is made, as no leaf asks.
    with torch.enable_grad(), as_one_operation(), recorder:
        output = function(points)
    recorder.expect_complete(output)
    numbers = {name: recorder.number(tensor) for name, tensor in points.items()}
    found = {name: number for name, number in numbers.items() if number is not None}
    return Recording(recorder.calls, recorder.values, found, recorder.number(output), recorder.cut)


class _Recorder(TorchDispatchMode):
    """A scope in which every operation on what depends on some tensors is kept."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.values: dict[int, Tensor] = {}
        self.cut = False
        self._numbers: dict[int, int] = {}
        self._alive: list[Tensor] = []  # an object that is gone could lend its identity to another
        self._constants: dict[int, tuple[Tensor, int]] = {}
        self._stale: set[int] = set()
        self._trouble = ""  # raised at the end: an error here would look like one of the function
        for leaf in leaves:
            self._add(leaf)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is ever compiled, and to make sure of it at every operation takes as long as the operation."""
        return False

    def number(self, tensor: object) -> int | None:
        """The number of a tensor that depends on the leaves."""
        return self._numbers.get(id(tensor))

    def _add(self, tensor: Tensor) -> int:
        number = len(self._alive)
        self._alive.append(tensor)
        self.values[number], self._numbers[id(tensor)] = tensor, number
        return number

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every operation passes here."""
        named = dict(kwargs or {})
        if not (self._reads(args) or (named and self._reads(named.values()))):
            return func(*args, **named)
        if func in _CUT or _without_gradient():
            self.cut = True
            return func(*args, **named)
        if func._schema.is_mutable:
            return self._changed(func, args, named)
        call_args, call_kwargs = self._referred(args), self._referred(named)
        found = func(*args, **named)
        outputs = found if isinstance(found, (tuple, list)) else (found,)
        numbers = tuple(self._add(t) if isinstance(t, Tensor) and t.is_floating_point() else None for t in outputs)
        if any(number is not None for number in numbers):
            self.calls.append(Call(func, call_args, call_kwargs, numbers))
        return found

    def _reads(self, arguments: Iterable[Any]) -> bool:
        """Whether one of them depends on the leaves; this is asked of every operation there is."""
        numbers = self._numbers
        return any(
            id(given) in numbers or (isinstance(given, (tuple, list)) and self._reads(given)) for given in arguments
        )

    def _changed(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An operation in place, as the same one that makes a new tensor of a copy of the old."""
        target, plain = args[0], _out_of_place(func)
        part_only = target.numel() * target.element_size() < target.untyped_storage().nbytes()
        if plain is None or (part_only and self.number(target) is None):
            self._trouble = f"it writes into a part of a tensor in place ({func.overloadpacket.__name__})"
            return func(*args, **named)
        call_args, call_kwargs = self._referred(args), self._referred(named)
        if self.number(target) is None:
            del self._constants[id(target)]
            call_args = (target.clone(), *call_args[1:])
        else:
            self._save(target)
        func(*args, **named)
        self.calls.append(Call(plain, call_args, call_kwargs, (self._add(target),)))
        return target

    def _save(self, target: Tensor) -> None:
        """Keep the values that a tensor and all views of it had, before it is changed."""
        storage = target.untyped_storage()
        copy = storage.clone()
        for number, tensor in enumerate(self._alive):
            if tensor.untyped_storage().data_ptr() == storage.data_ptr() and self._numbers[id(tensor)] == number:
                old = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                self.values[number] = old.set_(copy, tensor.storage_offset(), tensor.shape, tensor.stride())
                if tensor is not target:
                    self._stale.add(id(tensor))

    def _referred(self, tree: Any) -> Any:
        return _mapped(self._refer, tree)

    def _refer(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if (number := self.number(leaf)) is None:
            self._constants[id(leaf)] = (leaf, leaf._version)
            return leaf
        if id(leaf) in self._stale:
            self._trouble = "it goes on with a view of a tensor that was changed in place"
        return Ref(number)

    def expect_complete(self, output: Tensor) -> None:
        """Everything was written down, and no tensor that a call has read as a constant was changed afterwards."""
        self._refer(output)
        if self._trouble:
            raise Unrecordable(self._trouble)
        if any(tensor._version != version for tensor, version in self._constants.values()):
            raise Unrecordable("it changes a tensor in place that it has used before")


def _without_gradient() -> bool:
    """Whether the model asks for no gradient here; in the forward of a Function of its own it asks for one."""
    return not torch.is_grad_enabled() and bool(torch._C._is_fwd_grad_enabled())


def _out_of_place(func: Any) -> Any:
    """The operation that does the same and makes a new tensor, such as ``add`` for ``add_``."""
    name = func.overloadpacket.__name__
    packet = getattr(torch.ops.aten, name[:-1], None) if name.endswith("_") else None
    return None if packet is None else getattr(packet, func._overloadname, None)


_CUT = {torch.ops.aten.detach.default, torch.ops.aten._local_scalar_dense.default}
"""Autograd sees no dependence behind these."""


def with_softmax(calls: Sequence[Call], values: Mapping[int, Tensor]) -> list[Call]:
    """The same calls, with softmax for ``exp(t) / sum(exp(t))`` and without masks that it makes superfluous.

    What nothing reads any more is left in place. A mask in front of softmax changes no derivative: the weights that it
    makes zero are factors of everything that passes there, both ways.
    """
    made = {number: call for call in calls for number in call.outputs if number is not None}
    found = [_as_softmax(call, made) or call for call in calls]
    return [_unmasked(call, made, values) if call.name in _SOFTMAX else call for call in found]


_SOFTMAX = ("_softmax", "_safe_softmax")


def _as_softmax(call: Call, made: Mapping[int, Call]) -> Call | None:
    """A quotient, if it is one of exponentials and their sum."""
    if call.name != "div" or call.kwargs or not all(isinstance(side, Ref) for side in call.args):
        return None
    top, bottom = (made.get(side.node) for side in call.args)
    if bottom is not None and bottom.name == "where" and isinstance(bottom.args[2], Ref) and len(bottom.refs) == 1:
        bottom = made.get(bottom.args[2].node)  # a sum of nothing is replaced where a row is hidden
    if top is None or bottom is None or top.name != "exp" or bottom.name != "sum" or bottom.refs != [call.args[0].node]:
        return None
    axes, keeps = bottom.args[1:3] if len(bottom.args) > 2 else (None, False)
    if not axes or len(axes) != 1 or not keeps:
        return None
    return replace(call, func=torch.ops.aten._softmax.default, args=(top.args[0], axes[0], False))


def _unmasked(call: Call, made: Mapping[int, Call], values: Mapping[int, Tensor]) -> Call:
    """Softmax of the scores before they were masked or shifted by constants."""
    scores, (output,) = call.args[0], call.outputs
    while isinstance(scores, Ref) and output is not None:
        before = made.get(scores.node)
        if before is None or before.refs != [first.node for first in before.args[:1] if isinstance(first, Ref)]:
            break
        if values[before.refs[0]].shape != values[output].shape or values[before.refs[0]].dtype != values[output].dtype:
            break
        hides = before.name == "masked_fill" and not bool((values[output] * before.args[1]).any())
        if not hides and before.name not in ("add", "sub"):
            break
        scores = before.args[0]
    return replace(call, args=(scores, *call.args[1:]))
