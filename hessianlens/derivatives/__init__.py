"""Derivatives by autograd and whether they are to be trusted: the graph, finite differences, functions of users."""

from hessianlens.derivatives.graph import OnceOnly, once_only
from hessianlens.derivatives.trust import expect_true_derivatives, missing_derivative_reason

__all__ = ["OnceOnly", "expect_true_derivatives", "missing_derivative_reason", "once_only"]
