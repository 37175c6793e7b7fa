"""hessianlens: the curvature laboratory for Transformers.

The exact Hessian of an attention layer, in three lines::

    layer = hl.SelfAttention(W_Q, W_K, W_V)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    H.full["Q", "K"].frobenius_norm()
"""

from hessianlens import attention, losses, models, operators, spectra, tasks, theory
from hessianlens.attention import (
    Activation,
    FactoredValueAttention,
    MultiHeadAttention,
    RotaryAttention,
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
from hessianlens.inspect import (
    BlockNorms,
    Forecast,
    PairNorms,
    block_norms,
    block_pair_norms,
    fit_memory,
    forecast,
    functional,
    ggn,
    hessian,
)
from hessianlens.losses import (
    CrossEntropyLoss,
    CustomLoss,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    SquareLoss,
)
from hessianlens.models.adapters import problem
from hessianlens.operators import BlockGrid, StructuredOperator, TokenSum
from hessianlens.spectra import (
    Estimate,
    density,
    diagonal,
    eigenvalues,
    frobenius,
    heterogeneity,
    inertia,
    trace,
)
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
    "BlockNorms",
    "CrossEntropyLoss",
    "CustomLoss",
    "Estimate",
    "FactoredValueAttention",
    "Forecast",
    "InputError",
    "LowRankCoupledCurvature",
    "LowRankTokenCurvature",
    "MultiHeadAttention",
    "PairNorms",
    "RotaryAttention",
    "SelfAttention",
    "SingleMatrixAttention",
    "SquareLoss",
    "StructuredOperator",
    "TokenSum",
    "activations",
    "attention",
    "attention_entropy",
    "attention_hessian",
    "block_norms",
    "block_pair_norms",
    "density",
    "diagonal",
    "eigenvalue_pairs",
    "eigenvalues",
    "first_moment",
    "fit_memory",
    "forecast",
    "frobenius",
    "functional",
    "ggn",
    "hessian",
    "heterogeneity",
    "inertia",
    "losses",
    "models",
    "operators",
    "predicted_growth",
    "problem",
    "second_moment",
    "spectra",
    "t_outer_rank",
    "t_outer_rank_bound",
    "tasks",
    "theory",
    "third_moment",
    "third_moment_along",
    "trace",
]
