"""Attention activations: value and two row derivatives each."""

from hessianlens.attention.activations.base import Activation
from hessianlens.attention.activations.elementwise import (
    Elementwise,
    ElementwiseFunction,
    Exp,
    Linear,
    ReLU,
    RowNormalised,
    Sigmoid,
    Tanh,
)
from hessianlens.attention.activations.registry import ACTIVATIONS, ActivationLike, as_activation
from hessianlens.attention.activations.rowwise import RowFunction
from hessianlens.attention.activations.softmax import SoftCapped, Softmax

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "ActivationLike",
    "Elementwise",
    "ElementwiseFunction",
    "Exp",
    "Linear",
    "ReLU",
    "RowFunction",
    "RowNormalised",
    "Sigmoid",
    "SoftCapped",
    "Softmax",
    "Tanh",
    "as_activation",
]
