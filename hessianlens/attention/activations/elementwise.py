"""Activations that treat every score by itself, and those divided by their row sum."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible, function_name
from hessianlens.attention.rows import RowMatrices, quotient_rows
from hessianlens.derivatives import expect_true_derivatives
from hessianlens.errors import InputError, check_function, check_number, check_that
from hessianlens.failures import failures_as_input_errors
from hessianlens.near_one_hot import Peak
from hessianlens.state_guard import restores_state

_TRIED = 64
"""Scores at which the derivatives of a user's function are tried."""


class Elementwise(Activation):
    """``A_ij = a(T_ij)``: ``J_i = diag(a'(T_i))`` and ``D_i(w) = diag(w a''(T_i))``."""

    @abstractmethod
    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """``a``, ``a'`` and ``a''`` at the scores; ``None`` where a'' is zero almost everywhere."""

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """The function of every visible score, zero elsewhere."""
        return torch.where(visible, self.derivatives(scores.masked_fill(~visible, 0))[0], 0)

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """A diagonal of first derivatives."""
        first = self.derivatives(scores.masked_fill(~visible, 0))[1]
        return RowMatrices(tuple(scores.shape), diagonal=torch.where(visible, first, 0))

    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """A diagonal of weighted second derivatives."""
        second = self.derivatives(scores.masked_fill(~visible, 0))[2]
        if second is None:
            return RowMatrices(tuple(scores.shape))
        return RowMatrices(tuple(scores.shape), diagonal=torch.where(visible, weights * second, 0))


class Linear(Elementwise):
    """``a(t) = t``: linear attention."""

    name = "linear"

    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """t, 1, 0."""
        return scores, torch.ones_like(scores), None


class Sigmoid(Elementwise):
    """``a(t) = 1 / (1 + exp(-(t + b)))``.

    Args:
        bias: The shift b; ``"-log L"`` takes minus the logarithm of the number of key tokens, which makes a row of zero
            scores sum to about one, as softmax does.
    """

    name = "sigmoid"

    def __init__(self, bias: float | str = 0.0) -> None:
        if isinstance(bias, str) and bias != "-log L":
            raise InputError(f"bias: got {bias!r}, expected a number or '-log L'.")
        self.bias = bias if isinstance(bias, str) else check_number("bias", bias)
        self.name = "sigmoid" if bias == 0.0 else f"sigmoid(bias={bias})"

    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """s(t), s(t) s(-t) and -s(t) s(-t) tanh(t / 2): ``1 - s`` and ``1 - 2 s`` without cancellation."""
        bias = -math.log(scores.shape[-1]) if isinstance(self.bias, str) else self.bias
        t = scores + bias
        s = torch.sigmoid(t)
        first = s * torch.sigmoid(-t)
        return s, first, -first * torch.tanh(t / 2)


class ReLU(Elementwise):
    """``a(t) = max(t, 0)``, with derivative 0 at 0."""

    name = "relu"

    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """max(t, 0), [t > 0], 0 almost everywhere."""
        return torch.relu(scores), (scores > 0).to(scores.dtype), None


class Tanh(Elementwise):
    """``a(t) = tanh(t)``."""

    name = "tanh"

    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """h, sech^2 and -2 h sech^2, with ``sech^2(t) = 4 s(2 t) s(-2 t)`` for the sigmoid s: no ``1 - h^2``."""
        h = torch.tanh(scores)
        first = 4 * torch.sigmoid(2 * scores) * torch.sigmoid(-2 * scores)
        return h, first, -2 * h * first


class Exp(Elementwise):
    """``a(t) = exp(t)``, without normalisation."""

    name = "exp"

    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """exp(t) three times."""
        e = torch.exp(scores)
        return e, e, e


class ElementwiseFunction(Elementwise):
    """Any differentiable scalar function, applied to every score; its derivatives come from autograd.

    >>> square = ElementwiseFunction(lambda t: t**2)
    >>> [d.item() for d in square.derivatives(torch.tensor(3.0))]
    [9.0, 6.0, 2.0]
    """

    def __init__(self, function: Callable[[Tensor], Tensor], name: str | None = None) -> None:
        check_function("function", function, "a function of scores")
        self.function, self.name = function, function_name(function, name)

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """The function of every visible score, zero elsewhere; stays on the autograd graph."""
        filled = scores.masked_fill(~visible, 0)
        return torch.where(visible, _expect_same_shape(self.name, self._called(filled), filled), 0)

    def _called(self, scores: Tensor) -> Tensor:
        with failures_as_input_errors(
            f"activation {self.name}: it failed", f"it was given scores of shape {tuple(scores.shape)}"
        ):
            return self.function(scores)

    @restores_state
    def derivatives(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The function and two derivatives, by differentiating twice."""
        expect_true_derivatives(f"activation {self.name}", self._called, scores.reshape(-1)[:_TRIED], self.function)
        with torch.enable_grad():
            t = scores.detach().requires_grad_()
            a = _expect_same_shape(self.name, self._called(t), t)
            first = _derivative(a, t)
            second = _derivative(first, t)
        return a.detach(), first.detach(), second.detach()


def _expect_same_shape(name: str, value: object, scores: Tensor) -> Tensor:
    if not isinstance(value, Tensor) or value.shape != scores.shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"activation {name}: returned {got} for scores of shape {tuple(scores.shape)}, expected that shape."
        )
    return value


def _derivative(value: Tensor, at: Tensor) -> Tensor:
    if not value.requires_grad:
        return torch.zeros_like(at)
    (found,) = torch.autograd.grad(value.sum(), at, create_graph=True, allow_unused=True)
    return torch.zeros_like(at) if found is None else found


class RowNormalised(Activation):
    """``A_ij = a(T_ij) / sum_l a(T_il)`` for an elementwise function a.

    With ``S`` the row sum, ``J_i = diag(a'/S) - A_i (a'/S)^T`` (not symmetric) and, with ``c = w - A_i . w``,
    ``D_i(w) = diag(a'' c / S) - (a'/S) (a' c/S)^T - (a' c/S) (a'/S)^T``. A row whose sum is exactly zero is zero, with
    zero derivatives.
    """

    fixed_sum = True

    def __init__(self, inner: Elementwise, name: str | None = None) -> None:
        check_that(isinstance(inner, Elementwise), "inner", inner, "an elementwise activation")
        self.inner, self.name = inner, function_name(inner, f"{inner.name} / row sum" if name is None else name)

    def _parts(self, scores: Scores, visible: Visible) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Value, first and second derivative of the function, and one over the row sum."""
        a, first, second = self.inner.derivatives(scores.masked_fill(~visible, 0))
        total = torch.where(visible, a, 0).sum(-1, keepdim=True)
        empty = total == 0
        inverse = torch.where(empty, 0, 1 / torch.where(empty, torch.ones_like(total), total))
        return (
            a,
            torch.where(visible, first, 0),
            None if second is None else torch.where(visible, second, 0),
            inverse,
        )

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """Every row divided by its sum."""
        a = self.inner.value(scores, visible)
        total = a.sum(-1, keepdim=True)
        empty = total == 0
        return torch.where(empty, 0, a / torch.where(empty, torch.ones_like(total), total))

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """Diagonal minus rank one, split at the largest weight."""
        _, first, _, inverse = self._parts(scores, visible)
        return quotient_rows(Peak(self.value(scores, visible)), first * inverse)

    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """Diagonal plus rank two."""
        _, first, second, inverse = self._parts(scores, visible)
        A, slope = self.value(scores, visible), first * inverse
        centred = Peak(A).centred(weights)
        left, right = torch.stack([slope, slope * centred], -1), -torch.stack([slope * centred, slope], -1)
        diagonal = None if second is None else second * inverse * centred
        return RowMatrices(tuple(A.shape), diagonal=diagonal, left=left, right=right)


def normalised_relu() -> RowNormalised:
    """ReLU divided by its row sum."""
    return RowNormalised(ReLU(), "relu_normalised")


def raw_row_sum() -> RowNormalised:
    """The raw scores divided by their row sum."""
    return RowNormalised(Linear(), "row_sum")
