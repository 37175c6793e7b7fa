"""Rows of scores, the weights made of them, and products with two derivatives of that."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hessianlens.attention.activations import Activation, Elementwise
from hessianlens.derivatives.closed_form import times
from hessianlens.errors import InputError


class AttentionRows(ABC):
    """Weights ``A = a(S)`` of rows of scores (n, r, c), with ``J = dA / dS`` and its derivative.

    Attributes:
        weights: A, zero where an entry is hidden.
    """

    weights: Tensor

    @abstractmethod
    def jvp(self, change: Tensor) -> Tensor:
        """``J u``: how the weights change with the scores."""

    @abstractmethod
    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T w``: the gradient with respect to scores."""

    @abstractmethod
    def hvp(self, cotangent: Tensor, change: Tensor) -> Tensor:
        """``D(w) u``: how that gradient changes with the scores."""

    def turned(self, cotangent: Tensor, its_change: Tensor | None, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``J u``, ``J^T w`` and ``J^T dw + D(w) u`` at once."""
        hvp = self.hvp(cotangent, change)
        last = hvp if its_change is None else hvp + self.vjp(its_change)
        return self.jvp(change), self.vjp(cotangent), last

    @abstractmethod
    def second_jvp(self, first: Tensor, second: Tensor) -> Tensor:
        """The second derivative of the weights along two changes of the scores."""


class SoftmaxRows(AttentionRows):
    """``J u = A c(u)``, ``D(w) u = A c(c(w) c(u))`` with ``c(x) = x - A . x``; a row that sees nothing is zero."""

    def __init__(self, scores: Tensor, hidden: Tensor | None, may_be_empty: bool) -> None:
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = torch.softmax(scores, -1)
        if may_be_empty:
            weights = weights.masked_fill(torch.isneginf(scores.amax(-1, keepdim=True)), 0)
        self.weights = weights

    def _centred(self, x: Tensor) -> Tensor:
        return x - (self.weights * x).sum(-1, keepdim=True)

    def jvp(self, change: Tensor) -> Tensor:
        """``A c(u)``."""
        return times(self._centred(change), self.weights)

    def vjp(self, cotangent: Tensor) -> Tensor:
        """The same: J is symmetric."""
        return self.jvp(cotangent)

    def hvp(self, cotangent: Tensor, change: Tensor) -> Tensor:
        """``A c(c(w) c(u))``."""
        return self.jvp(times(self._centred(cotangent), self._centred(change)))

    def turned(self, cotangent: Tensor, its_change: Tensor | None, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``A c(u)``, ``A c(w)`` and ``A c(dw + c(w) c(u))``."""
        w, u = self._centred(cotangent), self._centred(change)
        both = w * u if its_change is None else torch.addcmul(its_change, w, u)
        last = self.jvp(both)
        return times(u, self.weights), times(w, self.weights), last

    def second_jvp(self, first: Tensor, second: Tensor) -> Tensor:
        """``A c(c(u) c(t))``: the third moment is symmetric in its three arguments."""
        return self.hvp(first, second)


class ActivationRows(AttentionRows):
    """The rows of any activation of the library, through its two row derivatives."""

    def __init__(self, activation: Activation, scores: Tensor, hidden: Tensor | None) -> None:
        visible = torch.ones_like(scores, dtype=torch.bool) if hidden is None else ~hidden.expand_as(scores)
        visible = visible & ~torch.isneginf(scores)
        self._activation, self._visible = activation, visible
        self._scores = scores.masked_fill(~visible, 0)
        self.weights = activation.value(self._scores, visible)

    def jvp(self, change: Tensor) -> Tensor:
        """``J u``."""
        return self._activation.jacobian(self._scores, self._visible).apply_rows(self._seen(change)[None])[0]

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T w``."""
        transposed = self._activation.jacobian(self._scores, self._visible).transpose()
        return self._seen(transposed.apply_rows(cotangent[None])[0])

    def hvp(self, cotangent: Tensor, change: Tensor) -> Tensor:
        """``D(w) u``."""
        rows = self._activation.curvature(self._scores, self._visible, self._seen(cotangent))
        return self._seen(rows.apply_rows(self._seen(change)[None])[0])

    def second_jvp(self, first: Tensor, second: Tensor) -> Tensor:
        """``a'' u t`` for what acts entry by entry."""
        if isinstance(self._activation, Elementwise):
            return self.hvp(first, second)
        raise InputError(
            f"activation {self._activation.name}: got forward mode over forward mode, expected reverse mode in one "
            "of the two; use torch.func.hessian, jacfwd(jacrev) or jacrev(jacrev)."
        )

    def _seen(self, x: Tensor) -> Tensor:
        return x.masked_fill(~self._visible, 0)


class CappedRows(AttentionRows):
    """Rows of ``e(S) = c tanh(S / c)``: the chain rule around those of e."""

    def __init__(self, inner: AttentionRows, ratio: Tensor, cap: float) -> None:
        self._inner, self.weights = inner, inner.weights
        self._first = 1 - ratio.square()
        self._second = self._first * ratio * (-2 / cap)

    def jvp(self, change: Tensor) -> Tensor:
        """``J (e' u)``."""
        return self._inner.jvp(self._first * change)

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``e' (J^T w)``."""
        return self._first * self._inner.vjp(cotangent)

    def hvp(self, cotangent: Tensor, change: Tensor) -> Tensor:
        """``e' D(w) (e' u) + e'' (J^T w) u``."""
        through = self._first * self._inner.hvp(cotangent, self._first * change)
        return through + self._second * self._inner.vjp(cotangent) * change

    def second_jvp(self, first: Tensor, second: Tensor) -> Tensor:
        """``A''[e' u, e' t] + J (e'' u t)``."""
        through = self._inner.second_jvp(self._first * first, self._first * second)
        return through + self._inner.jvp(self._second * first * second)


def rows_of(
    scores: Tensor,
    bias: Tensor | None,
    hidden: Tensor | None,
    may_be_empty: bool,
    activation: Activation | None,
    cap: float | None,
) -> AttentionRows:
    """The rows of these scores, softly capped or not, with a bias behind that, under softmax or another activation."""
    if cap is not None:
        ratio = torch.tanh(scores / cap)
        return CappedRows(rows_of(ratio * cap, bias, hidden, may_be_empty, activation, None), ratio, cap)
    scores = scores if bias is None else scores + bias
    if activation is None:
        return SoftmaxRows(scores, hidden, may_be_empty)
    return ActivationRows(activation, scores, hidden)
