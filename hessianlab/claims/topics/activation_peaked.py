"""What happens to the query-key curvature as attention becomes sharp."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most
from hessianlab.claims.quantities import block_norm, largest
from hessianlab.claims.samples import Sample, many_samples, sample
from hessianlab.experiments.statistics import geometric_mean
from hessianlens.attention import SelfAttention, second_moment, third_moment
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss


@dataclass(frozen=True)
class PeakedLayer:
    """A layer with its query weights multiplied: largest weight of a row on average, sizes of M_2, M_3, blocks."""

    weight: float
    second: float
    third: float
    query: float
    key: float


def _peaked(one: Sample, factor: float) -> PeakedLayer:
    w = {**one.weights, "Q": factor * one.weights["Q"]}
    layer = SelfAttention(*w.values())
    A, H = layer.attention(one.X), attention_hessian(layer, one.X, SquareLoss(one.Y))
    moments = (float(moment(A, one.X).norm()) for moment in (second_moment, third_moment))
    return PeakedLayer(float(A.amax(-1).mean()), *moments, *(block_norm(H, "full", 2 * n) for n in "QK"))


@claim("A23")
def peaked_attention() -> Finding:
    """Growing query weights, and one-hot attention."""
    factors = (1.0, 3.0, 10.0, 30.0)
    runs = {f: [_peaked(s, f) for s in many_samples()] for f in factors}
    means = {
        f: {k: geometric_mean([getattr(p, k) for p in runs[f]]) for k in ("weight", "second", "third", "query", "key")}
        for f in factors
    }
    first, last = means[1.0], means[30.0]
    one_hot = [_one_hot_curvature(seed) for seed in seeds(5)]
    limit = at_most("norm of the query-key part, exactly one-hot attention", one_hot, 1e-12)
    falling = (
        at_least("mean largest weight at W_Q times 30", last["weight"], 0.85),
        at_most("M_2 relative to the start", last["second"] / first["second"], 0.2),
        at_most("M_3 relative to the start", last["third"] / first["third"], 0.2),
        at_most("query block relative to the start", last["query"] / first["query"], 0.2),
    )
    return Finding(
        checks=(limit, *falling, at_most("key block relative to the start", last["key"] / first["key"], 0.2)),
        conditional=(limit, *falling),
        support=(
            at_least(
                "largest key block on the way, relative to the start",
                largest(m["key"] for m in means.values()) / first["key"],
                3,
            ),
        ),
        example="W_Q times "
        + "; ".join(
            f"{f:g}: largest weight {m['weight']:.2f}, query block {m['query']:.2g}, key block {m['key']:.2g}"
            for f, m in means.items()
        )
        + ".",
        curves=Curves.log_log(
            "factor on W_Q",
            "norm, geometric mean of 50 layers",
            {
                name: (factors, tuple(means[f][key] for f in factors))
                for name, key in (("M_2", "second"), ("M_3", "third"), ("H(Q,Q)", "query"), ("H(K,K)", "key"))
            },
        ),
    )


def _one_hot_curvature(seed: int) -> float:
    one = sample(seed, 6, 4, 3)
    only = torch.zeros(6, 6, dtype=torch.bool)
    only[torch.arange(6), torch.randint(6, (6,), generator=torch.Generator().manual_seed(seed))] = True
    H = attention_hessian(replace(one.layer, mask=only), one.X, SquareLoss(one.Y))
    return largest(block_norm(H, "full", r + c) for r in "QK" for c in "QK")
