"""A function with two derivatives in closed form, for autograd and torch.func, in reverse and forward mode.

Four functions are each other's derivatives: y, its change (`_Jvp`), the gradient of ``<g, y>`` (`_Vjp`) and how
that changes (`_Hvp`), each in closed form. What a third derivative would need raises an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from hessianlens.errors import InputError
from hessianlens.state_guard import WithoutAutocast

Parts = tuple[Tensor | None, ...]
"""Something for each differentiable input; None where there is none: no change, or not asked for."""


class ClosedForm(ABC):
    """``y(x_1, ..., x_n)``, with further tensors that are not differentiated, and its two derivatives.

    Every method is given all of the tensors, first the n differentiable ones; some of them may be None.

    Attributes:
        inputs: n.
        fixed: How many tensors follow them.
        name: What a user called.
        instead: What has higher derivatives, as text.
    """

    inputs: ClassVar[int]
    fixed: ClassVar[int]
    name: ClassVar[str]
    instead: ClassVar[str]

    @abstractmethod
    def value(self, *tensors: Any) -> Tensor:
        """Y."""

    @abstractmethod
    def jvp(self, *tensors: Any, change: Parts) -> Tensor:
        """``dy``: how the value changes with its inputs."""

    @abstractmethod
    def vjp(self, *tensors: Any, g: Tensor, wanted: Sequence[bool]) -> Parts:
        """The gradient of ``<g, y>`` with respect to the inputs that are wanted."""

    @abstractmethod
    def hvp(
        self,
        *tensors: Any,
        g: Tensor,
        change: Parts,
        wanted: Sequence[bool],
        pushing: bool,
        of_g: Tensor | None = None,
    ) -> Parts:
        """How that gradient changes with the inputs, and with g if that changes; behind it, with `pushing`, ``dy``."""

    @abstractmethod
    def second_jvp(self, *tensors: Any, first: Parts, second: Parts) -> Tensor:
        """The second derivative of y along two changes of the inputs."""

    @property
    def third(self) -> InputError:
        """What is said of a third derivative."""
        return InputError(
            f"{self.name}: got a third derivative, expected first or second derivatives, which are in closed form "
            f"here; for higher ones use {self.instead}."
        )


@dataclass(frozen=True)
class FormRequest:
    """What is no tensor: the form, and which results are asked for."""

    form: ClosedForm
    wanted: tuple[bool, ...] = ()

    def asking(self, wanted: Iterable[bool]) -> FormRequest:
        """The same for these results."""
        return replace(self, wanted=tuple(wanted))

    @property
    def inputs(self) -> int:
        """How many inputs are differentiable."""
        return self.form.inputs

    @property
    def tensors(self) -> int:
        """How many tensors there are."""
        return self.form.inputs + self.form.fixed

    def nothing(self) -> tuple[None, ...]:
        """No gradient for any of the inputs."""
        return (None,) * self.form.inputs

    def unmoved(self) -> tuple[None, ...]:
        """No gradient for what is not differentiated."""
        return (None,) * self.form.fixed


P = ParamSpec("P")
R = TypeVar("R")


def own_precision(one_pass: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A pass computes in the precision of its operands, given as ``x.device`` says where, whatever autocast is on."""

    @wraps(one_pass)
    def without_autocast(x: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        kind = x.device.type
        if not torch.amp.is_autocast_available(kind):
            return one_pass(x, *args, **kwargs)
        # The compiler knows PyTorch's own scope only; that one is not given back if it is interrupted.
        with torch.autocast(kind, enabled=False) if torch.compiler.is_compiling() else WithoutAutocast(kind):
            return one_pass(x, *args, **kwargs)

    return without_autocast


def apply_in_place(own: Tensor, operation: str, *others: Any) -> Tensor:
    """An operation such as ``mul``, written over `own`; not inside vmap, where the result may be larger than that."""
    batched = any(isinstance(t, Tensor) and torch._C._functorch.is_batchedtensor(t) for t in (own, *others))
    found: Tensor = getattr(own, operation if batched else f"{operation}_")(*others)
    return found


def times(own: Tensor, other: Tensor) -> Tensor:
    """``own o other``, written over `own` where that is possible."""
    return apply_in_place(own, "mul", other)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _added(a: Parts, b: Parts) -> Parts:
    return tuple(_sum(x, y) for x, y in zip(a, b, strict=True))


def _some(parts: Sequence[Any]) -> bool:
    return any(part is not None for part in parts)


class _TwiceDifferentiable(Function):
    """What the functions share: they keep their tensors, and torch.func makes their batched form."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.frame = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)


def _split(ctx: Any) -> tuple[FormRequest, tuple[Any, ...], tuple[Any, ...]]:
    """The frame, the tensors of the form, and those behind them."""
    frame, saved = ctx.frame, ctx.saved_tensors
    return frame, saved[: frame.tensors], saved[frame.tensors :]


class Value(_TwiceDifferentiable):
    """``y(x)``; its arguments are the tensors of the form and a `FormRequest`."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        """Y."""
        *tensors, frame = args
        return frame.form.value(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        """The gradient of ``<g, y>``."""
        frame, tensors, _ = _split(ctx)
        if g is None:
            return (*frame.nothing(), *frame.unmoved(), None)
        wanted = ctx.needs_input_grad[: frame.inputs]
        return (*_Vjp.apply(*tensors, g, frame.asking(wanted)), *frame.unmoved(), None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Tensor:
        """``dy``."""
        frame, tensors, _ = _split(ctx)
        return _Jvp.apply(*tensors, *changes[: frame.inputs], frame)


class _Jvp(_TwiceDifferentiable):
    """``dy``, linear in the changes of the inputs."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        *given, frame = args
        tensors, change = given[: frame.tensors], given[frame.tensors :]
        return frame.form.jvp(*tensors, change=tuple(change))

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Any:
        frame, tensors, change = _split(ctx)
        n, needs = frame.inputs, ctx.needs_input_grad
        here, there = needs[:n], needs[frame.tensors : frame.tensors + n]
        primal: Any = frame.nothing()
        tangent: Any = frame.nothing()
        if g is not None and any(here):
            primal = _Hvp.apply(*tensors, g, *change, frame.asking((*here, False)))[:n]
        if g is not None and any(there):
            tangent = _Vjp.apply(*tensors, g, frame.asking(there))
        return (*primal, *frame.unmoved(), *tangent, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Tensor:
        frame, tensors, change = _split(ctx)
        again, second = changes[: frame.inputs], changes[frame.tensors : frame.tensors + frame.inputs]
        total = None
        if _some(again):
            total = _SecondJvp.apply(*tensors, *change, *again, frame)
        if _some(second):
            total = _sum(total, _Jvp.apply(*tensors, *second, frame))
        assert total is not None
        return total


class _Vjp(_TwiceDifferentiable):
    """The gradient of ``<g, y>`` with respect to the inputs, linear in g."""

    @staticmethod
    def forward(*args: Any) -> Any:
        *tensors, g, frame = args
        return frame.form.vjp(*tensors, g=g, wanted=frame.wanted)

    @staticmethod
    def backward(ctx: Any, *change: Any) -> Any:
        frame, tensors, (g,) = _split(ctx)
        needs = ctx.needs_input_grad
        if not _some(change):
            return (*frame.nothing(), *frame.unmoved(), None, None)
        wanted = (*needs[: frame.inputs], needs[frame.tensors])
        *primal, moved = _Hvp.apply(*tensors, g, *change, frame.asking(wanted))
        return (*primal, *frame.unmoved(), moved, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        frame, tensors, (g,) = _split(ctx)
        again, its_own = changes[: frame.inputs], changes[frame.tensors]
        total: Any = frame.nothing()
        if _some(again):
            total = _Hvp.apply(*tensors, g, *again, frame.asking((*frame.wanted, False)))[:-1]
        if its_own is not None:
            total = _added(total, _Vjp.apply(*tensors, its_own, frame))
        return total


class _Hvp(_TwiceDifferentiable):
    """How the gradient of ``<g, y>`` changes with the inputs, and how y does: linear in g and the changes."""

    @staticmethod
    def forward(*args: Any) -> Any:
        *given, frame = args
        tensors, g, change = given[: frame.tensors], given[frame.tensors], given[frame.tensors + 1 :]
        *wanted, pushing = frame.wanted
        return frame.form.hvp(*tensors, g=g, change=tuple(change), wanted=wanted, pushing=pushing)

    @staticmethod
    def backward(ctx: Any, *above: Any) -> Any:
        frame, tensors, (g, *change) = _split(ctx)
        *turned, moved = above
        n, needs = frame.inputs, ctx.needs_input_grad
        here, of_g, there = needs[:n], needs[frame.tensors], needs[frame.tensors + 1 : frame.tensors + 1 + n]
        second_order = _some(turned)
        if second_order and any(here):
            raise frame.form.third
        primal: Any = frame.nothing()
        if moved is not None and any(here):
            primal = _Hvp.apply(*tensors, moved, *change, frame.asking((*here, False)))[:n]
        by_g = _SecondJvp.apply(*tensors, *change, *turned, frame) if second_order and of_g else None
        by_change: Any = frame.nothing()
        if second_order and any(there):
            by_change = _Hvp.apply(*tensors, g, *turned, frame.asking((*there, False)))[:n]
        if moved is not None and any(there):
            by_change = _added(by_change, _Vjp.apply(*tensors, moved, frame.asking(there)))
        return (*primal, *frame.unmoved(), by_g, *by_change, None)

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        raise ctx.frame.form.third


class _SecondJvp(_TwiceDifferentiable):
    """The second derivative of y along two changes of the inputs, linear in each."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        *given, frame = args
        tensors, changes = given[: frame.tensors], given[frame.tensors :]
        first, second = tuple(changes[: frame.inputs]), tuple(changes[frame.inputs :])
        return frame.form.second_jvp(*tensors, first=first, second=second)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise ctx.frame.form.third

    @staticmethod
    def jvp(ctx: Any, *changes: Any) -> Any:
        raise ctx.frame.form.third
