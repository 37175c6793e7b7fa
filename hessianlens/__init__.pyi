"""The public names: `hessianlens` imports a name from here when it is first used."""

from . import attention as attention
from . import layer as layer
from . import losses as losses
from . import models as models
from . import monitor as monitor
from . import operators as operators
from . import spectra as spectra
from . import tasks as tasks
from .attention import (
    Activation,
    FactoredValueAttention,
    MultiHeadAttention,
    RotaryAttention,
    SelfAttention,
    SingleMatrixAttention,
    activations,
    attention_entropy,
    first_moment,
    scaled_dot_product_attention,
    second_moment,
    third_moment,
    third_moment_along,
)
from .errors import InputError, RankError
from .inspect.learning_rates import load_param_groups
from .inspect.measurement import Measured, measure
from .layer import (
    AttentionHessian,
    attention_hessian,
    eigenvalue_pairs,
    predicted_growth,
    t_outer_rank,
    t_outer_rank_bound,
)
from .losses import (
    CrossEntropyLoss,
    CustomLoss,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    SquareLoss,
    linear_cross_entropy,
)
from .models.adapters import problem
from .monitor import Monitor
from .network import (
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
from .operators import BlockGrid, Operator, StructuredOperator, TokenSum
from .spectra import (
    Estimate,
    density,
    diagonal,
    eigenvalues,
    frobenius,
    heterogeneity,
    inertia,
    trace,
)

__version__: str

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
    "Measured",
    "Monitor",
    "MultiHeadAttention",
    "Operator",
    "PairNorms",
    "RankError",
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
    "layer",
    "linear_cross_entropy",
    "load_param_groups",
    "losses",
    "measure",
    "models",
    "monitor",
    "operators",
    "predicted_growth",
    "problem",
    "scaled_dot_product_attention",
    "second_moment",
    "spectra",
    "t_outer_rank",
    "t_outer_rank_bound",
    "tasks",
    "third_moment",
    "third_moment_along",
    "trace",
]
