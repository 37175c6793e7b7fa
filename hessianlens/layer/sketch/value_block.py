"""Blocks between two value parameters: ``sum_n m_n m'_n^T (x) R C_n R'^T``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.state import ValuePort
from hessianlens.layer.sketch.unfolding import RANK, Points, TokenPairs, Unfolding
from hessianlens.losses import TokenCurvature, UncoupledCurvature
from hessianlens.operators.exponent_scaling import scale_to_unit_maximum

_WORKSPACE_BYTES = 2**25
"""Room for products of random vectors with the curvatures of all tokens."""


class ValueBlock(Unfolding):
    """The outer part, which is all there is between values but for the two factors of a value matrix.

    Args:
        row: How the parameter of the rows enters.
        column: How that of the columns does.
        curvature: Of the loss, or of what lies behind the layer.
    """

    def __init__(self, row: ValuePort, column: ValuePort, curvature: UncoupledCurvature) -> None:
        self.left, self.right, self._curvature = row.width, column.width, curvature
        u, a = scale_to_unit_maximum(row.vector.flatten(0, 1))
        v, b = (u, a) if column.vector is row.vector else scale_to_unit_maximum(column.vector.flatten(0, 1))
        self._pairs, self.unit, self._shape = TokenPairs(u, v), a * b, row.vector.shape[:2]
        self._R, self._S = row.readout, column.readout
        self._features = self.left if row.readout is None else row.readout.shape[-1]

    def responses(self, left: Tensor, right: Tensor) -> Points:
        """``<R C_n R'^T, Omega>`` of every token."""
        E = left if self._R is None else left @ self._R
        G = right if self._S is None else right @ self._S
        if isinstance(self._curvature, TokenCurvature):
            weights = ((E.mT @ G).flatten(1) @ self._curvature.matrices.flatten(0, 1).flatten(1).T).double()
            return self._pairs.points(weights)
        step = max(1, _WORKSPACE_BYTES // (RANK * len(self._pairs.u) * self._features * left.element_size()))
        some = zip(E.split(step), G.split(step), strict=True)
        return self._pairs.points(torch.cat([self._weights(e, g) for e, g in some]).double())

    def _weights(self, E: Tensor, G: Tensor) -> Tensor:
        k, r, f = E.shape
        changes = G.reshape(k * r, 1, 1, -1).expand(-1, *self._shape, -1)
        hvp = self._curvature.apply(changes.clone())
        return vecdot(hvp, E.reshape(k * r, 1, 1, f)).flatten(1).unflatten(0, (k, r)).sum(1)

    def mean(self) -> Points:
        """All tokens alike."""
        return self._pairs.points(torch.ones(1, len(self._pairs.u), dtype=torch.float64, device=self._pairs.u.device))

    def small(self, directions: Points) -> Tensor:
        """``R (sum_n phi_n C_n) R'^T``."""
        along, f = self._pairs.along(directions).to(self._pairs.u), self._features
        if isinstance(self._curvature, TokenCurvature):
            total = (along @ self._curvature.matrices.flatten(0, 1).flatten(1)).view(-1, f, f)
        else:
            total = torch.stack([self._curved(each.view(self._shape)) for each in along])
        total = total if self._R is None else self._R @ total
        return (total if self._S is None else total @ self._S.T).double()

    def _curved(self, along: Tensor) -> Tensor:
        """``sum_n along_n C_n``."""
        like = self._pairs.u
        eye = torch.eye(self._features, dtype=like.dtype, device=like.device)
        step = max(1, _WORKSPACE_BYTES // (len(like) * self._features * like.element_size()))
        rows = []
        for some in eye.split(step):
            hvp = self._curvature.apply(some[:, None, None].expand(-1, *self._shape, -1).clone())
            rows.append((hvp * along[..., None]).sum((1, 2)))
        return torch.cat(rows)

    @property
    def set_up_cost(self) -> float:
        """The Gram matrix of tokens."""
        return self._pairs.set_up_cost

    @property
    def probe_cost(self) -> float:
        """One entry of a curvature after the other, or thin products with all of them."""
        full = isinstance(self._curvature, TokenCurvature)
        each = self._features**2 if full else 2 * RANK * self._features * _rank(self._curvature)
        return float(len(self._pairs.u) * each) + self._pairs.point_cost

    @property
    def direction_cost(self) -> float:
        """A sum of curvatures."""
        full = isinstance(self._curvature, TokenCurvature)
        each = self._features**2 * (1 if full else 2 * _rank(self._curvature))
        return float(len(self._pairs.u) * each) + self._pairs.point_cost


def _rank(curvature: UncoupledCurvature) -> int:
    """Numbers by which the curvature of a token multiplies each entry of a vector."""
    return max((t.shape[-1] for t in vars(curvature).values() if isinstance(t, Tensor) and t.ndim == 4), default=1)
