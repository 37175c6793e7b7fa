"""Functions given by users: autograd must see their two derivatives, which is asked once a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from weakref import WeakSet

import torch
from torch import Tensor

from hessianlens.derivatives.difference import hides_a_derivative, random_like
from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of
from hessianlens.errors import InputError

_trusted: WeakSet[object] = WeakSet()


def expect_true_derivatives(where: str, function: Callable[[Tensor], Tensor], at: Tensor, source: object) -> None:
    """Refuse a function with second derivatives that autograd cannot give, or gives without a part.

    Args:
        where: What the function is called in an error.
        function: From a tensor to a tensor.
        at: Where it is tried.
        source: What the user gave, by which a function is known again.

    >>> expect_true_derivatives("function", lambda t: t * t.detach(), torch.ones(2), "mine")
    Traceback (most recent call last):
    hessianlens.errors.InputError: function hides part of its derivative from autograd: a detached tensor, ...
    """
    if _known(source):
        return
    point = at.detach()
    with torch.enable_grad(), refusals_of(lambda: where):
        leaf = point.clone().requires_grad_()
        value = function(leaf)
        expect_twice_differentiable(where, value)
        if value.requires_grad:
            (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=True, allow_unused=True)
            if slope is not None and slope.requires_grad:
                torch.autograd.grad(slope.sum(), leaf, allow_unused=True)
    if _hides(function, point.double()):
        raise InputError(missing_derivative_reason(where) + ".")
    _remember(source)


def missing_derivative_reason(where: str, measured: str = "") -> str:
    """What is said of a part whose derivatives lack something.

    Args:
        where: The part.
        measured: How it was seen, in brackets.
    """
    return (
        f"{where} hides part of its derivative from autograd{measured}: a detached tensor, or a backward of its own "
        "that autograd cannot look into, is taken for a constant. Use an implementation made of plain PyTorch "
        "operations (eager, unfused)"
    )


def _hides(function: Callable[[Tensor], Tensor], point: Tensor) -> bool:
    """In float64, where differences are sharp; nothing can be said of a function that refuses it."""

    def potential(given: Mapping[str, Tensor]) -> Tensor:
        value = function(given["input"])
        return (value * random_like(value, seed=0)).sum()

    try:
        with torch.enable_grad():
            return hides_a_derivative(potential, {"input": point})
    except Exception:  # whatever a function says of what it cannot take
        return False


def _known(source: object) -> bool:
    try:
        return source in _trusted
    except TypeError:  # cannot be hashed or referred to weakly
        return False


def _remember(source: object) -> None:
    with suppress(TypeError):
        _trusted.add(source)
