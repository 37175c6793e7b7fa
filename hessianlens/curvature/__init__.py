"""Matrix-free curvature of named blocks: exact products with the Hessian, Gauss-Newton and functional matrix."""

from hessianlens.curvature.linearisation import Linearisation, loss_gradient
from hessianlens.curvature.operators import (
    MATRIX_FREE,
    BlockPairOperator,
    FunctionalOperator,
    GaussNewtonOperator,
    HessianOperator,
)
from hessianlens.curvature.repeated import Repeated, TapeTests
from hessianlens.curvature.thresholds import forward_multiply_adds, tape_can_pay_off
from hessianlens.curvature.verification import verify

__all__ = [
    "MATRIX_FREE",
    "BlockPairOperator",
    "FunctionalOperator",
    "GaussNewtonOperator",
    "HessianOperator",
    "Linearisation",
    "Repeated",
    "TapeTests",
    "forward_multiply_adds",
    "loss_gradient",
    "tape_can_pay_off",
    "verify",
]
