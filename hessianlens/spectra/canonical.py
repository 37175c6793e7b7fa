"""Bounds that hold for every distribution with the moments that Lanczos knows: Gauss-Radau rules.

``m`` steps of Lanczos from a probe fix the moments of degree 0 to ``2 m`` of the distribution of eigenvalues that this
probe sees. Distributions of ``m + 1`` points with these moments (canonical representations; Krein and Nudelman 1977)
form a family with one parameter: one of them has a point at any given ``x``, and is the Gauss-Radau rule of that ``x``.

- Chebyshev, Markov and Stieltjes: of all distributions with these moments, the rule of ``x`` has the least share below
  ``x`` and the largest share up to ``x``.
- For ``(x - lambda)_+``, which bends at ``x``, the rule of ``x`` has the least mean, and the largest mean is that of
  another rule of the family: the polynomial that touches the function from below, or above, in the points of the rule
  has degree ``2 m`` and touches it nowhere else.

With the Ritz values ``theta`` and the signed residuals ``r`` of their vectors (first entries positive), the rules are
those of the matrices ``[[diag(theta), r], [r^T, c]]``; ``c = x + sum_j r_j^2 / (theta_j - x)`` puts a point at x.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_ROUNDING = 16 * torch.finfo(torch.float64).eps
"""Points of a rule this close to x, relative to the size of its matrix, may lie on either side of x."""
_MAX_CORNER = 1e4
"""Corner over the largest Ritz value up to which eigenvalues are accurate; beyond, x is next to a Ritz value."""
_GRID_POINTS, _ZOOMS = 8, 5
"""Rules of the family among which the one with the largest mean is looked for: a coarse grid, and finer ones."""
_GRID_SLACK = 0.02
"""Share of the bracket that a maximum between two of these rules may add."""


def radau_rules(
    nodes: Float[Tensor, "p m"],
    weights: Float[Tensor, "p m"],
    residuals: Float[Tensor, "p m"],
    at: Float[Tensor, "p k"],
) -> tuple[Float[Tensor, "p k m+1"], Float[Tensor, "p k m+1"], Float[Tensor, "p k"]]:
    """Nodes and weights of the Gauss-Radau rules with a node at every x, and the corners of their matrices.

    Args:
        nodes: Ritz values, one row per probe.
        weights: Their weights.
        residuals: Their signed residuals.
        at: Where nodes are to lie.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> nodes, weights, _ = radau_rules(0 * one, one, one, 2 * one)  # mean 0, variance 1
    >>> nodes, weights
    (tensor([[[-0.5000,  2.0000]]], dtype=torch.float64), tensor([[[0.8000, 0.2000]]], dtype=torch.float64))
    """
    corner = _corners(nodes, residuals, at)
    return *_rules(nodes, weights, residuals, corner), corner


def _corners(
    nodes: Float[Tensor, "p m"], residuals: Float[Tensor, "p m"], at: Float[Tensor, "p k"]
) -> Float[Tensor, "p k"]:
    """``x + sum_j r_j^2 / (theta_j - x)``, large but finite where x is a Ritz value."""
    squares, distance = residuals.square()[:, None], nodes[:, None] - at[:, :, None]
    limit = 10 * _MAX_CORNER * _size(nodes, residuals)[..., None]
    pull = torch.where(squares > 0, squares / distance, 0).nan_to_num(posinf=torch.inf, neginf=-torch.inf)
    return at + pull.clamp(-limit, limit).sum(2)


def _rules(
    nodes: Float[Tensor, "p m"],
    weights: Float[Tensor, "p m"],
    residuals: Float[Tensor, "p m"],
    corner: Float[Tensor, "p k"],
) -> tuple[Float[Tensor, "p k m+1"], Float[Tensor, "p k m+1"]]:
    p, k, m = (*corner.shape, nodes.shape[1])
    matrix = nodes.new_zeros(p, k, m + 1, m + 1)
    matrix[..., range(m), range(m)] = nodes[:, None]
    matrix[..., m, :m] = matrix[..., :m, m] = residuals[:, None]
    matrix[..., m, m] = corner
    found, vectors = torch.linalg.eigh(matrix)
    return found, torch.einsum("pj,pkji->pki", weights.sqrt(), vectors[..., :m, :]).square()


def share_bounds(
    nodes: Float[Tensor, "p m"], weights: Float[Tensor, "p m"], residuals: Float[Tensor, "p m"], at: Float[Tensor, "k"]
) -> tuple[Float[Tensor, "p k"], Float[Tensor, "p k"]]:
    """What the share below x is at least, and the share up to x at most, for every probe.

    The rule of x has to be computed: next to a Ritz value its matrix becomes infinite, and what the Gauss rule says of
    that Ritz value and of its neighbours is used.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> share_bounds(0 * one, one, one, torch.tensor([-2.0, 2.0]).double())  # Chebyshev and Cantelli: 1 / (1 + 2^2)
    (tensor([[0.0000, 0.8000]], dtype=torch.float64), tensor([[0.2000, 1.0000]], dtype=torch.float64))
    """
    points = at.expand(len(nodes), -1).contiguous()
    after = torch.searchsorted(nodes.contiguous(), points, right=True)
    padded = torch.nn.functional.pad(weights, (1, 1))
    total = padded.cumsum(1).gather(1, after)
    open_end = (residuals.abs().amax(1) > 0)[:, None]  # without residuals the probe's distribution is the rule itself
    below = total - torch.where(open_end, padded.gather(1, after), 0)
    up_to = total + torch.where(open_end, padded.gather(1, after + 1), 0)
    found, share, corner = radau_rules(nodes, weights, residuals, points)
    size = _size(nodes, residuals)
    slack = (_ROUNDING * torch.maximum(size, corner.abs()))[..., None]
    known = corner.abs() <= _MAX_CORNER * size
    low = torch.where(found < points[..., None] - slack, share, 0).sum(2)
    high = torch.where(found <= points[..., None] + slack, share, 0).sum(2)
    below, up_to = torch.where(known, low, below), torch.where(known, high, up_to)
    return below.clamp(0, 1), up_to.clamp(0, 1)


def shortfall_bounds(
    nodes: Float[Tensor, "p m"], weights: Float[Tensor, "p m"], residuals: Float[Tensor, "p m"], at: float
) -> tuple[Float[Tensor, "p"], Float[Tensor, "p"]]:
    """What the mean of ``(x - lambda)_+`` is at least and at most, for every probe.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> [round(float(end), 2) for end in shortfall_bounds(0 * one, one, one, 0.0)]  # 0 <= E (-X)_+ <= 1 / 2
    [0.0, 0.5]
    """
    gauss, size = (weights * (at - nodes).clamp_min(0)).sum(1), _size(nodes, residuals)
    own = _corners(nodes, residuals, nodes.new_full((len(nodes), 1), at))

    def means(angles: Float[Tensor, "p k"]) -> Float[Tensor, "p k"]:
        """The family is a circle: corners ``size tan(angle)``, counted from the angle of the rule of x."""
        corner = size * (angles + (own / size).atan()).tan()
        found, share = _rules(
            nodes, weights, residuals, corner.clamp(-10 * _MAX_CORNER * size, 10 * _MAX_CORNER * size)
        )
        mean = (share * (at - found).clamp_min(0)).sum(2)
        return torch.where(corner.abs() <= _MAX_CORNER * size, mean, gauss[:, None])

    low = torch.minimum(means(torch.zeros_like(own))[:, 0], gauss)
    even = torch.linspace(0, torch.pi, _GRID_POINTS + 2, dtype=torch.float64, device=nodes.device)
    small = even[1] * 8.0 ** -torch.arange(1, 5, dtype=torch.float64, device=nodes.device)
    even = torch.cat([even, small, torch.pi - small]).expand(len(nodes), -1)
    gap = ((_corners(nodes, residuals, _gap(nodes, at)) / size).atan() - (own / size).atan()).remainder(torch.pi)
    angles = torch.cat([even, gap], 1).sort(1).values
    high = gauss
    for _ in range(_ZOOMS + 1):  # the mean rises to its maximum and falls: this lies between points next to the best
        found = means(angles)
        high = torch.maximum(high, found.amax(1))
        best = found.argmax(1, keepdim=True)
        before, downstream = (angles.gather(1, (best + k).clamp(0, angles.shape[1] - 1)) for k in (-1, 1))
        angles = before + (downstream - before) * torch.linspace(
            0, 1, _GRID_POINTS, dtype=torch.float64, device=nodes.device
        )
    return low.clamp_min(0), high + _GRID_SLACK * (high - low)


def _gap(nodes: Float[Tensor, "p m"], at: float) -> Float[Tensor, "p k"]:
    """Points in the gap between Ritz values that holds x, on both sides of x; none beyond the outer Ritz values."""
    share = torch.linspace(0, 1, _GRID_POINTS + 2, dtype=torch.float64, device=nodes.device)[1:-1]
    after = (nodes <= at).sum(1, keepdim=True)
    x = torch.full_like(nodes[:, :1], at)
    left = torch.where(after > 0, nodes.gather(1, (after - 1).clamp_min(0)), x)
    right = torch.where(after < nodes.shape[1], nodes.gather(1, after.clamp_max(nodes.shape[1] - 1)), x)
    return torch.cat([left + share * (x - left), x + share * (right - x)], 1)


def _size(nodes: Float[Tensor, "p m"], residuals: Float[Tensor, "p m"]) -> Float[Tensor, "p 1"]:
    """The largest entry of the matrix of a Gauss rule, of every probe."""
    largest = torch.maximum(nodes.abs(), residuals.abs()).amax(1, keepdim=True)
    return largest.clamp_min(torch.finfo(torch.float64).tiny)
