"""The logits of some tokens, computed anew: their softmax, and products with derivatives of the loss at them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from hessianlens.derivatives.closed_form import Parts, apply_in_place, times

_TEMPORARIES = 3
"""Matrices of logits that a pass holds of its chunk."""


@dataclass(frozen=True)
class CrossEntropyRule:
    """``l_i = m_i log sum_k exp z_ik - sum_k t_ik z_ik`` with ``z = cap(s (H W^T + b))``.

    The targets ``t_ik = c_i w_k ((1 - a) [k = y_i] + a / V)`` add up to m_i; c_i is zero where a token is ignored.

    Attributes:
        ignore_index: The target of such tokens.
        smoothing: a, the share of a target that is spread over all classes.
        scale: s.
        softcap: c, where ``cap(z) = c tanh(z / c)``; None for no cap.
        workspace: Bytes that the logits of a chunk, and what is made of them, may take.
    """

    ignore_index: int = -100
    smoothing: float = 0.0
    scale: float = 1.0
    softcap: float | None = None
    workspace: int = 1 << 28

    def chunks(self, tokens: int, classes: int, size: int) -> Iterator[slice]:
        """Ranges of tokens, about equally long, whose logits of `size` bytes each fit into the workspace.

        >>> list(CrossEntropyRule(workspace=240).chunks(5, 10, 4))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
        """
        most = max(self.workspace // (_TEMPORARIES * max(classes, 1) * size), 1)
        rows = math.ceil(tokens / math.ceil(tokens / most)) if tokens else 1
        return (slice(first, min(first + rows, tokens)) for first in range(0, tokens, rows))


@dataclass(frozen=True, eq=False)
class CrossEntropyOperands:
    """The tensors of a loss.

    Attributes:
        h: Features, ``[token, feature]``.
        weight: W, ``[class, feature]``.
        bias: b, ``[class]``, or None.
        targets: y, ``[token]``.
        classes: w, how much each class counts, ``[class]``; None where all count alike.
    """

    h: Tensor
    weight: Tensor
    bias: Tensor | None
    targets: Tensor
    classes: Tensor | None

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.h.device


def rows(x: CrossEntropyOperands, rule: CrossEntropyRule) -> Iterator[TokenRows]:
    """Every chunk of tokens.

    On the meta device only the first two, of which the second is made while the first is still held: the others take
    no more memory, and there is nothing to compute.
    """
    every = rule.chunks(len(x.h), len(x.weight), x.h.element_size())
    for chunk in islice(every, 2 if x.h.is_meta else None):
        yield TokenRows(x, rule, chunk)


def _plus(total: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    """``total + left right``, written over the total."""
    return left @ right if total is None else apply_in_place(total, "addmm", left, right)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner products of rows, without the matrix of the products of entries."""
    return (a.unsqueeze(-2) @ b.unsqueeze(-1))[..., 0, 0]


class TokenRows:
    """A chunk of tokens.

    Attributes:
        chunk: Which ones.
        h: Their features.
    """

    def __init__(self, x: CrossEntropyOperands, rule: CrossEntropyRule, chunk: slice) -> None:
        self.chunk, self.h = chunk, x.h[chunk]
        self._x, self._rule = x, rule
        y = x.targets[chunk]
        counted = y != rule.ignore_index
        self._at = torch.where(counted, y, 0)[:, None]
        self._counted = counted.to(x.h.dtype)
        own = 1.0 if x.classes is None else x.classes[self._at[:, 0]]
        self._hit = (1 - rule.smoothing) * own * self._counted
        mean = 1.0 if x.classes is None else x.classes.mean()
        self._mass = self._hit + rule.smoothing * mean * self._counted

    @cached_property
    def _ratio(self) -> Tensor | None:
        """``tanh(z / c)``, where there is a cap."""
        cap = self._rule.softcap
        return None if cap is None else torch.tanh(self._linear() / cap)

    def _linear(self) -> Tensor:
        z = self.h @ self._x.weight.mT
        z = z if self._x.bias is None else apply_in_place(z, "add", self._x.bias)
        return self._scaled(z)

    def _scaled(self, z: Tensor) -> Tensor:
        return z if self._rule.scale == 1 else apply_in_place(z, "mul", self._rule.scale)

    def _logits(self) -> Tensor:
        return self._linear() if self._rule.softcap is None else self._capped * self._rule.softcap

    @property
    def _capped(self) -> Tensor:
        assert self._ratio is not None
        return self._ratio

    @cached_property
    def chances(self) -> Tensor:
        """p, the softmax."""
        return torch.softmax(self._logits(), -1)

    @cached_property
    def _first(self) -> Tensor:
        """``cap'``, entry by entry."""
        return 1 - self._capped.square()

    @cached_property
    def _second(self) -> Tensor:
        """``cap''``, entry by entry."""
        assert self._rule.softcap is not None
        return self._first * self._capped * (-2 / self._rule.softcap)

    def loss(self) -> Tensor:
        """``l``, token by token."""
        z = self._logits()
        return self._against(z, torch.logsumexp(z, -1))

    def _against(self, z: Tensor, mean: Tensor) -> Tensor:
        """``m mean - sum_k t_k z_k``, for logits or a change of them, token by token."""
        found = self._mass * mean - self._hit * z.gather(-1, self._at)[:, 0]
        if not self._rule.smoothing:
            return found
        spread = z.mean(-1) if self._x.classes is None else z @ self._x.classes / z.shape[-1]
        return found - self._rule.smoothing * spread * self._counted

    def change(self, change: Parts) -> Tensor | None:
        """``s (dH W^T + H dW^T + db)``: how the linear map changes; None if it does not."""
        dh, weight, bias = change
        found = None if dh is None else dh[self.chunk] @ self._x.weight.mT
        if weight is not None:
            found = _plus(found, self.h, weight.mT)
        if bias is not None:
            found = bias.expand(len(self.h), -1).clone() if found is None else apply_in_place(found, "add", bias)
        return None if found is None else self._scaled(found)

    def crossed(self, first: Parts, second: Parts) -> Tensor | None:
        """``s (dH dW'^T + dH' dW^T)``: how the linear map changes along two changes at once."""
        found = None
        for dh, dw in ((first[0], second[1]), (second[0], first[1])):
            if dh is not None and dw is not None:
                found = _plus(found, dh[self.chunk], dw.mT)
        return None if found is None else self._scaled(found)

    def capped(self, change: Tensor) -> Tensor:
        """The change of logits that a change of the linear map makes."""
        return change if self._rule.softcap is None else change * self._first

    def mean(self, change: Tensor) -> Tensor:
        """``sum_k p_k v_k``, token by token."""
        return _dot(self.chances, change)

    def jvp(self, change: Tensor) -> Tensor:
        """The change of l, token by token, that a change of logits makes."""
        return self._against(change, self.mean(change))

    def slope(self, g: Tensor, linear: bool = True) -> Tensor:
        """``g (m p - t)``, the gradient at the logits; at the linear map if that is asked for."""
        found = self.chances * (g * self._mass)[:, None]
        found = apply_in_place(found, "scatter_add", -1, self._at, -(g * self._hit)[:, None])
        if self._rule.smoothing:
            spread = (self._rule.smoothing / found.shape[-1]) * (g * self._counted)[:, None]
            found = apply_in_place(found, "sub", spread if self._x.classes is None else spread * self._x.classes)
        return times(found, self._first) if linear and self._rule.softcap is not None else found

    def turned(self, g: Tensor, change: Tensor) -> Tensor:
        """``g m (diag(p) - p p^T) v``: how the gradient at the logits changes with them; v may be written over."""
        centred = apply_in_place(change, "sub", self.mean(change)[:, None])
        return times(times(centred, self.chances), (g * self._mass)[:, None])

    def curved(self, slope: Tensor, change: Tensor) -> Tensor:
        """``cap'' r u``, for a slope r at the logits and a change u of the linear map."""
        return slope * self._second * change
