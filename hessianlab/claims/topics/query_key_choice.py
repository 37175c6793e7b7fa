"""Why two matrices: what they can express, how many parameters they have, and what is said about training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import EXACT, gap, smallest
from hessianlab.claims.samples import normal
from hessianlens.layer import numerical_rank

TOPIC = "query key choice"
WIDTHS = (1, 2, 3, 4, 5)
D_V = 4


@measured
def _unreachable() -> dict[int, list[float]]:
    """Distance of 20 random 4 x 4 matrices from the nearest product of rank d_K, by d_K."""
    draws = [normal(seed, D_V, D_V) for seed in seeds(20)]
    return {k: [_distance(W, k) for W in draws] for k in WIDTHS}


def _distance(W: Tensor, rank: int) -> float:
    values = torch.linalg.svdvals(W)
    return float(values[rank:].norm() / values.norm())


def _recovered(seed: int) -> float:
    """Whether attention weights give their matrix back: log A_ij - log A_il = x_i W (x_j - x_l), solved for W."""
    W, X = normal(seed, D_V, D_V), normal(seed + 30, 8, D_V)
    log_A = torch.log_softmax(X @ W @ X.T, -1)
    differences = X - X.mean(0)
    centred = log_A - log_A.mean(1, keepdim=True)
    found = torch.linalg.pinv(X) @ centred @ torch.linalg.pinv(differences).T
    return gap(found, W)


@claim("B1")
def expressiveness() -> Finding:
    """More if d_K < d_V; the same otherwise."""
    found = _unreachable()
    missed = {k: sum(d > EXACT for d in v) for k, v in found.items()}
    below = [k for k in WIDTHS if k < D_V]
    determined = at_most(
        "matrix recovered from attention weights, largest relative difference", map(_recovered, seeds(20)), 1e-8
    )
    shares = {
        k: share(f"single matrices that no pair with d_K = {k} can express, d_V = {D_V}", missed[k], 20) for k in WIDTHS
    }
    products = [numerical_rank(normal(s, D_V, k) @ normal(s + 9, k, D_V)) for s in seeds(5) for k in below]
    return Finding(
        checks=(determined, *shares.values()),
        conditional=(determined, *(shares[k] for k in below)),
        support=(
            *(
                equal(f"single matrices that no pair with d_K = {k} can express", missed[k], 0)
                for k in WIDTHS
                if k >= D_V
            ),
            at_most("largest rank of a product with d_K < d_V", max(products), D_V - 1),
        ),
        example=f"d_V = {D_V}: the nearest product to a random W_QK is at relative distance {found[2][0]:.2f} for d_K"
        f" = 2, {found[3][0]:.2f} for d_K = 3 and {found[4][0]:.2f} for d_K = 4.",
    )


@claim("B2")
def parameter_count() -> Finding:
    """Half of d_V is the limit."""
    pairs = [(d, k) for d in range(2, 129) for k in range(1, d)]
    fewer = [(d, k) for d, k in pairs if 2 * d * k < d * d]
    below_half = [(d, k) for d, k in pairs if 2 * k < d]
    return Finding(
        checks=(equal(f"pairs d_K < d_V of {len(pairs)} with fewer parameters", len(fewer), len(pairs)),),
        conditional=(
            equal("pairs d_K < d_V / 2 with fewer parameters", len(set(fewer) & set(below_half)), len(below_half)),
        ),
        support=(equal("pairs with d_V / 2 <= d_K < d_V and fewer parameters", sum(2 * k >= d for d, k in fewer), 0),),
        example=f"d_V = 4, d_K = 3: two matrices have {2 * 4 * 3} entries, one has {4 * 4}.",
    )


@claim("B22")
def factorisation() -> Finding:
    """By singular values."""
    gaps = []
    for k in WIDTHS:
        for r in range(min(k, D_V) + 1):
            for seed in seeds(5):
                W = normal(seed, D_V, r) @ normal(seed + 40, r, D_V)
                W_Q, W_K = _factors(W, k)
                gaps.append(gap(W_Q @ W_K.T / math.sqrt(k), W))
    beyond = smallest(d for k, v in _unreachable().items() if k < D_V for d in v)
    return Finding(
        checks=(
            at_most(
                f"product of the factors minus W_QK, {len(gaps)} matrices, largest relative difference", gaps, EXACT
            ),
            at_least("rank above d_K: smallest distance from a product", beyond, 1e-6),
        )
    )


def _factors(W: Tensor, d_k: int) -> tuple[Tensor, Tensor]:
    """W_Q and W_K of width d_k with W_Q W_K^T / sqrt(d_k) = W, for W of rank at most d_k."""
    left, values, right = torch.linalg.svd(W)
    keep = min(d_k, len(values))
    root = (math.sqrt(d_k) * values[:keep]).sqrt()
    pad = torch.zeros(len(W), d_k - keep, dtype=W.dtype)
    return torch.cat([left[:, :keep] * root, pad], 1), torch.cat([right[:keep].T * root, pad], 1)
