"""Matrix-free curvature of named blocks: exact products with the Hessian, Gauss-Newton and functional matrix."""

from hessianlens.curvature.functional import FunctionalOperator
from hessianlens.curvature.ggn import GaussNewtonOperator
from hessianlens.curvature.hessian import HessianOperator
from hessianlens.curvature.linearisation import Linearisation
from hessianlens.curvature.pair import BlockPairOperator
from hessianlens.curvature.parts import MATRIX_FREE
from hessianlens.curvature.repeated import Repeated, may_pay
from hessianlens.curvature.verification import verify

__all__ = [
    "MATRIX_FREE",
    "BlockPairOperator",
    "FunctionalOperator",
    "GaussNewtonOperator",
    "HessianOperator",
    "Linearisation",
    "Repeated",
    "may_pay",
    "verify",
]
