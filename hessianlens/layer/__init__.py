"""Closed forms: the exact Hessian of an attention layer, its query-key split, rank and growth."""

from hessianlens.layer.assembly import attention_hessian
from hessianlens.layer.hessian import AttentionHessian
from hessianlens.layer.predicted_exponents import (
    ActivationPowers,
    activation_powers,
    linear_attention_growth,
    linear_mlp_growth,
    predicted_growth,
)
from hessianlens.layer.query_key import (
    EigenvaluePairs,
    eigenvalue_pairs,
    gauge_directions,
    numerical_rank,
    t_outer_rank,
    t_outer_rank_bound,
)

__all__ = [
    "ActivationPowers",
    "AttentionHessian",
    "EigenvaluePairs",
    "activation_powers",
    "attention_hessian",
    "eigenvalue_pairs",
    "gauge_directions",
    "linear_attention_growth",
    "linear_mlp_growth",
    "numerical_rank",
    "predicted_growth",
    "t_outer_rank",
    "t_outer_rank_bound",
]
