"""Attention as a function that autograd and torch.func differentiate twice, in reverse and forward mode.

Four functions are each other's derivatives: O, its change (`_Pushed`), the gradient of ``<g, O>`` (`_Pulled`) and
how that changes (`_Bent`), each in closed form. What a third derivative would need raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.autograd import Function

from hessianlens.attention.chunked import passes
from hessianlens.attention.chunked.chunk import Operands
from hessianlens.attention.chunked.passes import Inputs
from hessianlens.attention.chunked.rule import Rule
from hessianlens.errors import InputError


@dataclass(frozen=True)
class Frame:
    """What is no tensor: the rule, how many key heads a sequence has, and which results are asked for."""

    rule: Rule
    heads: int
    wanted: Any = ()

    def asking(self, wanted: Iterable[bool]) -> Frame:
        """The same for these results."""
        return replace(self, wanted=tuple(wanted))


_THIRD = (
    "scaled_dot_product_attention: got a third derivative, expected first or second derivatives, which are in closed "
    "form here; for higher ones use torch's math attention (torch.nn.attention.sdpa_kernel(SDPBackend.MATH))."
)


def _operands(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, visible: Tensor | None, frame: Frame) -> Operands:
    return Operands(q, k, v, bias, visible, frame.heads)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _added(a: Inputs, b: Inputs) -> Inputs:
    q, k, v, bias = (_sum(x, y) for x, y in zip(a, b, strict=True))
    return q, k, v, bias


class _Twice(Function):
    """What the functions share: they keep their tensors, and torch.func makes their batched form."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.frame = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)


class Value(_Twice):
    """``O(q, k, v, bias)``."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, visible: Any, frame: Frame) -> Tensor:
        """O."""
        return passes.value(_operands(q, k, v, bias, visible, frame), frame.rule)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        """The gradient of ``<g, O>``."""
        if g is None:
            return (None,) * 6
        return (*_Pulled.apply(*ctx.saved_tensors, g, ctx.frame.asking(ctx.needs_input_grad[:4])), None, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Tensor:
        """``dO``."""
        return _Pushed.apply(*ctx.saved_tensors, *changes[:4], ctx.frame)


class _Pushed(_Twice):
    """``dO``, linear in the changes of q, k, v and the bias."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, visible: Any, *rest: Any) -> Tensor:
        *change, frame = rest
        return passes.pushed(_operands(q, k, v, bias, visible, frame), frame.rule, tuple(change))

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        if g is None:
            return (None,) * 10
        inputs, change = ctx.saved_tensors[:5], ctx.saved_tensors[5:9]
        needs = ctx.needs_input_grad
        primal: Any = (None,) * 4
        if any(needs[:4]):
            primal = _Bent.apply(*inputs, g, *change, ctx.frame.asking((*needs[:4], False)))[:4]
        tangent: Any = (None,) * 4
        if any(needs[5:9]):
            tangent = _Pulled.apply(*inputs, g, ctx.frame.asking(needs[5:9]))
        return (*primal, None, *tangent, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Tensor:
        inputs, change = ctx.saved_tensors[:5], ctx.saved_tensors[5:9]
        again, second = changes[:4], changes[5:9]
        total = None
        if any(c is not None for c in again):
            total = _PushedTwice.apply(*inputs, *change, *again, ctx.frame)
        if any(c is not None for c in second):
            total = _sum(total, _Pushed.apply(*inputs, *second, ctx.frame))
        assert total is not None
        return total


class _Pulled(_Twice):
    """The gradient of ``<g, O>`` with respect to q, k, v and the bias, linear in g."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, visible: Any, g: Tensor, frame: Frame) -> Any:
        return passes.pulled(_operands(q, k, v, bias, visible, frame), frame.rule, g, frame.wanted)

    @staticmethod
    def backward(ctx: Any, *change: Any) -> Any:
        if all(c is None for c in change):
            return (None,) * 7
        needs = ctx.needs_input_grad
        *inputs, g = ctx.saved_tensors
        *primal, moved = _Bent.apply(*inputs, g, *change, ctx.frame.asking((*needs[:4], needs[5])))
        return (*primal, None, moved, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        *inputs, g = ctx.saved_tensors
        total: Any = (None,) * 4
        if any(c is not None for c in changes[:4]):
            total = _Bent.apply(*inputs, g, *changes[:4], ctx.frame.asking((*ctx.frame.wanted, False)))[:4]
        if changes[5] is not None:
            total = _added(total, _Pulled.apply(*inputs, changes[5], ctx.frame))
        return total


class _Bent(_Twice):
    """How the gradient of ``<g, O>`` changes with q, k, v and the bias, and how O does: linear in g and the changes."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, visible: Any, g: Tensor, *rest: Any) -> Any:
        *change, frame = rest
        x = _operands(q, k, v, bias, visible, frame)
        return passes.bent(x, frame.rule, g, tuple(change), frame.wanted[:4], frame.wanted[4])

    @staticmethod
    def backward(ctx: Any, *above: Any) -> Any:
        *turned, moved = above
        needs = ctx.needs_input_grad
        inputs, g, change = ctx.saved_tensors[:5], ctx.saved_tensors[5], ctx.saved_tensors[6:10]
        bending = any(c is not None for c in turned)
        if bending and any(needs[:4]):
            raise InputError(_THIRD)
        primal: Any = (None,) * 4
        if moved is not None and any(needs[:4]):
            primal = _Bent.apply(*inputs, moved, *change, ctx.frame.asking((*needs[:4], False)))[:4]
        by_g = _PushedTwice.apply(*inputs, *change, *turned, ctx.frame) if bending and needs[5] else None
        by_change: Any = (None,) * 4
        if bending and any(needs[6:10]):
            by_change = _Bent.apply(*inputs, g, *turned, ctx.frame.asking((*needs[6:10], False)))[:4]
        if moved is not None and any(needs[6:10]):
            by_change = _added(by_change, _Pulled.apply(*inputs, moved, ctx.frame.asking(needs[6:10])))
        return (*primal, None, by_g, *by_change, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        raise InputError(_THIRD)


class _PushedTwice(_Twice):
    """The second derivative of O along two changes of q, k, v and the bias, linear in each."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Any, visible: Any, *rest: Any) -> Tensor:
        *changes, frame = rest
        return passes.pushed_twice(
            _operands(q, k, v, bias, visible, frame), frame.rule, tuple(changes[:4]), tuple(changes[4:])
        )

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise InputError(_THIRD)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        raise InputError(_THIRD)
