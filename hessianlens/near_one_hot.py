"""Rows that sum to one, seen from their largest entry: differences from it that do not cancel.

Where one weight is nearly one, ``1 - A_j`` and ``w_j - sum_l A_l w_l`` are tiny differences of large numbers; computed
as such they are rounding. As the sum of the other weights, and of weighted differences from the largest, they keep all
their digits.
"""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

_CLOSE = 0.99
"""Weights above, beside others, lose two digits or more to differences from one."""


class Peak:
    """Rows A of weights with sum one (or all zero), and where each is largest in size.

    Args:
        weights: ``A``, the weights of a row along the last axis.

    >>> import torch
    >>> peak = Peak(torch.tensor([1.0, 1e-30], dtype=torch.float64))
    >>> peak.complement.tolist(), peak.centred(torch.tensor([3.0, 5.0], dtype=torch.float64)).tolist()
    ([1e-30, 1.0], [-2e-30, 2.0])
    """

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self._size, self.place = weights.abs().max(-1, keepdim=True)

    @cached_property
    def close_to_one(self) -> bool:
        """Whether some row has a weight so close to one, beside others, that differences from it would cancel."""
        close = self._size > _CLOSE
        if not bool(close.any()):
            return False
        return bool((close & ((self.weights != 0).sum(-1, keepdim=True) > 1)).any())

    @cached_property
    def others(self) -> Tensor:
        """The weights with zero in place of the largest."""
        return self.weights.scatter(-1, self.place, 0.0)

    @cached_property
    def rest(self) -> Tensor:
        """One minus the largest weight, ``[..., 1]``: the sum of the others."""
        return self.others.sum(-1, keepdim=True)

    @cached_property
    def complement(self) -> Tensor:
        """``1 - A_j`` for every weight."""
        return (1 - self.weights).scatter(-1, self.place, self.rest)

    def centred(self, values: Tensor) -> Tensor:
        """``w_j - sum_l A_l w_l`` for values w of each row."""
        return self.centre_(values.clone())

    def centre_(self, values: Tensor) -> Tensor:
        """The same in place, for one row of values a row of weights, or for several along axes in front."""
        if not self.close_to_one:
            return values.sub_((self.weights * values).sum(-1, keepdim=True))
        values.sub_(values.gather(-1, self.place.expand(*values.shape[:-1], 1)))
        return values.sub_((self.others * values).sum(-1, keepdim=True))
