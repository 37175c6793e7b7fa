"""Matrices through their products or in factored form, with curvlinops' interface."""

from hessianlens.operators.arranged import ArrangedGrid
from hessianlens.operators.base import StructuredOperator
from hessianlens.operators.combination import LinearCombination
from hessianlens.operators.commutation import commutation_matrix
from hessianlens.operators.grid import BlockGrid
from hessianlens.operators.hybrid import HybridOperator
from hessianlens.operators.kronecker import KroneckerFit
from hessianlens.operators.operator import Operator
from hessianlens.operators.term import Factor, Term
from hessianlens.operators.token_sum import TokenSum

__all__ = [
    "ArrangedGrid",
    "BlockGrid",
    "Factor",
    "HybridOperator",
    "KroneckerFit",
    "LinearCombination",
    "Operator",
    "StructuredOperator",
    "Term",
    "TokenSum",
    "commutation_matrix",
]
