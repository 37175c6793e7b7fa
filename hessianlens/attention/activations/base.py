"""What an activation has to provide: its value and two row derivatives."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from hessianlens.attention.rows import RowMatrices, RowTangent
from hessianlens.errors import check_that

Scores = Float[Tensor, "s i l"]
Visible = Bool[Tensor, "s i l"]


def function_name(function: object, name: object = None) -> str:
    """What a function is called in messages: the name it is given, or has."""
    check_that(name is None or isinstance(name, str), "name", name, "a text")
    return str(name or getattr(function, "__name__", "function"))


class Activation(ABC):
    """A map from scores T to attention weights A, row by row.

    The Hessian of a layer knows its activation through three functions and nothing else::

        value      A_i = a(T_i)
        jacobian   J_i[j, l] = dA_ij / dT_il                     (need not be symmetric)
        curvature  D_i(w)    = sum_j w_j d^2 A_ij / dT_i dT_i    (symmetric, for a weight vector w)

    Each receives the scores and which entries are visible. A hidden entry has A_ij = 0 and takes part in no
    derivative; a row that sees nothing, or whose normaliser is exactly zero, is zero with zero derivatives.
    To define an activation of your own, subclass this and give the three functions, or pass a plain function of a row
    of scores as ``activation=`` and let autograd find the derivatives.
    """

    name: str = "activation"
    shift_invariant: bool = False
    """Whether weights stay when all scores of a row move together, ``J_i 1 = 0``: keys may then be shifted."""
    fixed_sum: bool = False
    """Whether the weights of a row always have the same sum, ``1^T J_i = 0``: values may then be shifted."""

    @abstractmethod
    def value(self, scores: Scores, visible: Visible) -> Scores:
        """The attention weights; differentiable by autograd."""

    @abstractmethod
    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """``J_i`` for every row."""

    @abstractmethod
    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """``D_i(w_i)`` for every row."""

    def tangent(self, value: Scores, weights: Scores) -> RowTangent | None:
        """Products with J and ``D(w)`` from the value A alone, for activations that have this."""
        return None

    def __repr__(self) -> str:
        return self.name
