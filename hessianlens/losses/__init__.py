"""Losses, as far as a Hessian needs them: their gradient and curvature at the output."""

from hessianlens.losses.base import Loss, LossDerivatives, given_derivatives
from hessianlens.losses.cross_entropy import CrossEntropyLoss
from hessianlens.losses.curvature_forms import (
    CoupledCurvature,
    LowRankCoupledCurvature,
    LowRankTokenCurvature,
    OutputCurvature,
    ScalarCurvature,
    TokenCurvature,
    UncoupledCurvature,
)
from hessianlens.losses.curvature_input import as_curvature
from hessianlens.losses.custom import CustomLoss
from hessianlens.losses.fused_cross_entropy import linear_cross_entropy
from hessianlens.losses.softmax_curvature import SoftmaxCurvature
from hessianlens.losses.square import SquareLoss

__all__ = [
    "CoupledCurvature",
    "CrossEntropyLoss",
    "CustomLoss",
    "Loss",
    "LossDerivatives",
    "LowRankCoupledCurvature",
    "LowRankTokenCurvature",
    "OutputCurvature",
    "ScalarCurvature",
    "SoftmaxCurvature",
    "SquareLoss",
    "TokenCurvature",
    "UncoupledCurvature",
    "as_curvature",
    "given_derivatives",
    "linear_cross_entropy",
]
