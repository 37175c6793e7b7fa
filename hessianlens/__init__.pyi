"""The public names: `hessianlens` imports a name from here when it is first used.

Twenty-nine names; everything else is one level down, in the modules that are named first.
"""

from . import attention as attention
from . import errors as errors
from . import inspect as inspect
from . import layer as layer
from . import losses as losses
from . import models as models
from . import monitor as monitor
from . import network as network
from . import operators as operators
from . import spectra as spectra
from . import tasks as tasks
from .attention import MultiHeadAttention, SelfAttention, SingleMatrixAttention, scaled_dot_product_attention
from .errors import InputError
from .explorer import explore
from .inspect import measure
from .layer import attention_hessian
from .losses import CrossEntropyLoss, SquareLoss
from .models.adapters import problem
from .monitor import Monitor
from .network import attention_health, block_norms, block_pair_norms, functional, ggn, hessian
from .problems import Block, Problem
from .spectra import density, diagonal, eigenvalues, frobenius, heterogeneity, inertia, trace
from .updates import directional, optimizer_update

__version__: str

__all__ = [
    "Block",
    "CrossEntropyLoss",
    "InputError",
    "Monitor",
    "MultiHeadAttention",
    "Problem",
    "SelfAttention",
    "SingleMatrixAttention",
    "SquareLoss",
    "attention",
    "attention_health",
    "attention_hessian",
    "block_norms",
    "block_pair_norms",
    "density",
    "diagonal",
    "directional",
    "eigenvalues",
    "errors",
    "explore",
    "frobenius",
    "functional",
    "ggn",
    "hessian",
    "heterogeneity",
    "inertia",
    "inspect",
    "layer",
    "losses",
    "measure",
    "models",
    "monitor",
    "network",
    "operators",
    "optimizer_update",
    "problem",
    "scaled_dot_product_attention",
    "spectra",
    "tasks",
    "trace",
]
