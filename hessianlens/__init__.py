"""hessianlens: the curvature laboratory for Transformers.

The exact Hessian of an attention layer, in three lines::

    layer = hl.SelfAttention(W_Q, W_K, W_V)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    H.full["Q", "K"].frobenius_norm()
"""

from hessianlens import attention, losses, operators, theory
from hessianlens.attention import (
    Activation,
    FactoredValueAttention,
    MultiHeadAttention,
    SelfAttention,
    SingleMatrixAttention,
    activations,
    attention_entropy,
    first_moment,
    second_moment,
    third_moment,
    third_moment_along,
)
from hessianlens.errors import InputError
from hessianlens.losses import (
    CrossEntropyLoss,
    CustomLoss,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    SquareLoss,
)
from hessianlens.operators import BlockGrid, StructuredOperator, TokenSum
from hessianlens.theory import (
    AttentionHessian,
    attention_hessian,
    eigenvalue_pairs,
    predicted_growth,
    t_outer_rank,
    t_outer_rank_bound,
)

__version__ = "0.1.0"

__all__ = [
    "Activation",
    "AttentionHessian",
    "BlockGrid",
    "CrossEntropyLoss",
    "CustomLoss",
    "FactoredValueAttention",
    "InputError",
    "LowRankCoupledCurvature",
    "LowRankTokenCurvature",
    "MultiHeadAttention",
    "SelfAttention",
    "SingleMatrixAttention",
    "SquareLoss",
    "StructuredOperator",
    "TokenSum",
    "activations",
    "attention",
    "attention_entropy",
    "attention_hessian",
    "eigenvalue_pairs",
    "first_moment",
    "losses",
    "operators",
    "predicted_growth",
    "second_moment",
    "t_outer_rank",
    "t_outer_rank_bound",
    "theory",
    "third_moment",
    "third_moment_along",
]
