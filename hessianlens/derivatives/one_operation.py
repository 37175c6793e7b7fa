"""A closed form as a single operation of PyTorch's dispatcher, for those who write down what a model does.

Whoever watches every operation, to differentiate or to count, sees the chunks of a closed form one by one, and would
keep all of them. Inside `as_one_operation` it sees one call, as ``hessianlens::attention``, twice differentiable.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial

import torch
from torch import Tensor

from hessianlens.derivatives.closed_form import ClosedForm, FormRequest, Value
from hessianlens.state_guard import Restore, StateChange

_ONE_OPERATION: ContextVar[bool] = ContextVar("one_operation", default=False)
_FORMS: list[ClosedForm] = []
"""What goes with a call and is no tensor, by number: an operation takes tensors and numbers only."""

_LIBRARY = torch.library.Library("hessianlens", "DEF")


class as_one_operation(StateChange[None]):
    """A scope in which every closed form is one operation of the dispatcher."""

    def record(self) -> Restore:
        """Whether it is one already."""
        return partial(_ONE_OPERATION.set, _ONE_OPERATION.get())  # type: ignore[return-value]

    def change(self) -> None:
        """From now on it is."""
        _ONE_OPERATION.set(True)


def _number(form: ClosedForm) -> int:
    if form not in _FORMS:
        _FORMS.append(form)
    return _FORMS.index(form)


def form_of(number: int) -> ClosedForm:
    """The form that goes with a call of an operation, by its last argument."""
    return _FORMS[number]


class Operation:
    """Closed forms of one kind, by the name of an operation.

    Args:
        name: Of the operation.
        tensors: Its tensors as PyTorch's schemas write them, ``Tensor x, Tensor? y``.
    """

    def __init__(self, name: str, tensors: str) -> None:
        _LIBRARY.define(f"{name}({tensors}, int form) -> Tensor")
        _LIBRARY.impl(name, self._value, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, self._with_derivatives, "Autograd")
        self._name = name

    def __call__(self, form: ClosedForm, *tensors: Tensor | None) -> Tensor:
        """The value of a form, twice differentiable."""
        if _ONE_OPERATION.get():
            return self._dispatched(*tensors, _number(form))
        result: Tensor = Value.apply(*tensors, FormRequest(form))
        return result

    def _dispatched(self, *args: Tensor | int | None) -> Tensor:
        result: Tensor = getattr(torch.ops.hessianlens, self._name)(*args)
        return result

    @staticmethod
    def _value(*args: Tensor | None) -> Tensor:
        *tensors, number = args
        assert isinstance(number, int)
        return _FORMS[number].value(*tensors)

    def _with_derivatives(self, *args: Tensor | None) -> Tensor:
        *tensors, number = args
        assert isinstance(number, int)
        form = _FORMS[number]
        differentiable = tensors[: form.inputs]
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in differentiable):
            result: Tensor = Value.apply(*tensors, FormRequest(form))
            return result
        with torch._C._AutoDispatchBelowAutograd():
            return self._dispatched(*tensors, number)
