"""Any function of a row of scores, differentiated by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible, function_name
from hessianlens.attention.rows import RowMatrices
from hessianlens.derivatives import expect_true_derivatives
from hessianlens.errors import InputError, check_function
from hessianlens.failures import failures_as_input_errors
from hessianlens.per_sample import map_samples, sample_hessians, sample_jacobians


class RowFunction(Activation):
    """A user's function of one row, applied to the visible entries of each row.

    The function receives one row, a vector of its visible scores, and returns as many weights. Its row derivatives are
    found by autograd, L x L a row; for a function of single scores
    `hessianlens.attention.activations.ElementwiseFunction` is much lighter.

    >>> rows = RowFunction(lambda t: torch.softmax(2 * t, -1), "sharp softmax")
    >>> seen = torch.tensor([[[True, False], [True, True]]])
    >>> rows.value(torch.zeros(1, 2, 2), seen)[0].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    def __init__(self, function: Callable[[Tensor], Tensor], name: str | None = None) -> None:
        check_function("function", function, "a function of a row of scores")
        self.function, self.name = function, function_name(function, name)

    def _call(self, row: Tensor) -> Tensor:
        with failures_as_input_errors(f"activation {self.name}: it failed", f"it was given a row of {len(row)} scores"):
            weights = self.function(row)
        if not isinstance(weights, Tensor) or weights.shape != row.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise InputError(
                f"activation {self.name}: returned {got} for a row of shape {tuple(row.shape)}, expected that shape."
            )
        return weights

    def _tried(self, rows: Tensor) -> Tensor:
        """The same rows, once the function's derivatives were tried on the first of them."""
        expect_true_derivatives(f"activation {self.name}", self._call, rows[0], self.function)
        return rows

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """The function of the visible part of every row, zero elsewhere."""
        result = torch.zeros_like(scores)
        for rows, seen in _groups(visible):
            result = _put(result, rows, seen, map_samples(self._call, _flat(scores)[rows][:, seen]))
        return result

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """Dense row derivatives by reverse-mode autograd."""
        dense = scores.new_zeros(*scores.shape, scores.shape[-1]).flatten(0, 1)
        for rows, seen in _groups(visible):
            found = sample_jacobians(self._call, self._tried(_flat(scores)[rows][:, seen]))
            dense[rows[:, None, None], seen[None, :, None], seen[None, None, :]] = found
        return RowMatrices(tuple(scores.shape), dense=dense.unflatten(0, scores.shape[:2]))

    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """Dense weighted second row derivatives by autograd."""
        dense = scores.new_zeros(*scores.shape, scores.shape[-1]).flatten(0, 1)

        def weighted(row: Tensor, w: Tensor) -> Tensor:
            return (self._call(row) * w).sum()

        for rows, seen in _groups(visible):
            found = sample_hessians(weighted, self._tried(_flat(scores)[rows][:, seen]), _flat(weights)[rows][:, seen])
            dense[rows[:, None, None], seen[None, :, None], seen[None, None, :]] = found
        return RowMatrices(tuple(scores.shape), dense=dense.unflatten(0, scores.shape[:2]))


def _flat(scores: Tensor) -> Tensor:
    return scores.flatten(0, 1)


def _put(result: Tensor, rows: Tensor, seen: Tensor, values: Tensor) -> Tensor:
    flat = result.flatten(0, 1).index_put((rows[:, None], seen[None, :]), values)
    return flat.unflatten(0, result.shape[:2])


def _groups(visible: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows that see the same keys, with those keys; rows that see nothing are left out."""
    patterns, member = torch.unique(visible.flatten(0, 1), dim=0, return_inverse=True)
    groups = []
    for k, pattern in enumerate(patterns):
        seen = pattern.nonzero()[:, 0]
        if len(seen):
            groups.append(((member == k).nonzero()[:, 0], seen))
    return groups
