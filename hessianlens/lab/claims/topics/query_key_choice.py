"""Why two matrices: what they can express, how many parameters they have, and what is said about training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessianlens.lab.claims.check import at_least, at_most, equal, share
from hessianlens.lab.claims.definition import claim, unmeasured
from hessianlens.lab.claims.finding import Finding, Verdict
from hessianlens.lab.claims.samples import EXACT, gap, largest, measured, normal, seeds, smallest
from hessianlens.theory import numerical_rank

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


@claim(
    "B1",
    source="Opening; The functional equivalence that isn't",
    statement="A single matrix expresses the same functions as W_Q W_K^T / sqrt(d_K), and more, because the product is"
    " limited to rank d_K.",
    method="20 random 4 x 4 matrices, distance from the nearest matrix of rank d_K for d_K = 1 to 5; whether the"
    " attention weights determine the matrix, so that another matrix is another function (20 seeds)",
)
def expressiveness() -> Finding:
    """More if d_K < d_V; the same otherwise."""
    found = _unreachable()
    missed = {k: sum(d > EXACT for d in v) for k, v in found.items()}
    below = [k for k in WIDTHS if k < D_V]
    determined = at_most(
        "matrix recovered from attention weights, largest relative difference",
        largest(map(_recovered, seeds(20))),
        1e-8,
    )
    shares = {
        k: share(f"single matrices that no pair with d_K = {k} can express, d_V = {D_V}", missed[k], 20) for k in WIDTHS
    }
    products = [numerical_rank(normal(s, D_V, k) @ normal(s + 9, k, D_V)) for s in seeds(5) for k in below]
    return Finding(
        checks=(determined, *shares.values()),
        conditional=(determined, *(shares[k] for k in below)),
        condition="d_K < d_V; for d_K >= d_V both express exactly the same functions",
        correction="A product of a d_V x d_K and a d_K x d_V matrix has rank at most min(d_K, d_V). The limit only"
        " binds if d_K < d_V. From d_K = d_V on, every matrix is such a product and the single matrix expresses"
        " nothing more.",
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


@claim(
    "B2",
    source="Opening; The functional equivalence that isn't",
    statement="Two matrices have fewer parameters when d_K < d_V.",
    method="2 d_V d_K against d_V^2 for all d_K < d_V, d_V = 2 to 128",
)
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
        condition="d_K < d_V / 2",
        correction="W_Q and W_K together have 2 d_V d_K entries, a single matrix d_V^2. Two matrices save parameters"
        " exactly if d_K < d_V / 2, which holds in multi-head attention with more than two heads. Between d_V / 2 and"
        " d_V they cost more.",
        support=(equal("pairs with d_V / 2 <= d_K < d_V and fewer parameters", sum(2 * k >= d for d, k in fewer), 0),),
        example=f"d_V = 4, d_K = 3: two matrices have {2 * 4 * 3} entries, one has {4 * 4}.",
    )


@claim(
    "B22",
    source="The functional equivalence that isn't",
    statement="Every product W_Q W_K^T / sqrt(d_K) is a W_QK, and every W_QK of rank at most d_K is such a product.",
    method="factors from the singular value decomposition, random matrices of rank 0 to d_K, d_V = 4, d_K = 1 to 5, 5"
    " seeds; relative difference at most 1e-10; and matrices of rank above d_K, which must not be reached",
)
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
                f"product of the factors minus W_QK, {len(gaps)} matrices, largest relative difference",
                largest(gaps),
                EXACT,
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


SGD_AND_ADAM = unmeasured(
    "B23",
    "What the combination implies for optimization",
    "SGD has no mechanism to handle this curvature; adaptive optimisers such as Adam are better suited.",
    Verdict.NEEDS_TRAINING,
    "Whether Adam copes better, and whether because of this curvature, is seen only by training with both. The two"
    " premises are tested apart: that the curvature is sparse (B20) and that its mixed signs come from the"
    " T-functional term (B21); neither is true as written.",
    topic=TOPIC,
)
MOTIVES = unmeasured(
    "B25",
    "Closing",
    "The authors of the original Transformer almost certainly chose two matrices for semantic and efficiency reasons.",
    Verdict.NOT_CHECKABLE,
    "The motives of authors cannot be computed. What two matrices save in parameters is tested in B2.",
    topic=TOPIC,
)

CLAIMS = (expressiveness, parameter_count, factorisation, SGD_AND_ADAM, MOTIVES)
