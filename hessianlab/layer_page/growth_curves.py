"""How block norms grow with the scale of the tokens, against the exponents the activation predicts."""

from __future__ import annotations

import math

import numpy as np

from hessianlab.experiments.statistics import log_log_slope
from hessianlab.layer_page.facts import Growth, GrowthCurve
from hessianlab.layer_page.norms import finite_norm
from hessianlab.layer_page.setting import Setting, random_layer
from hessianlens.attention import SelfAttention
from hessianlens.theory import AttentionHessian, attention_hessian, predicted_growth

ACTIVATIONS = ("softmax", "linear", "sigmoid", "relu_normalised")
BLOCKS = (("Q", "Q"), ("V", "V"), ("V", "Q"), ("Q", "K"))
PARTS = ("outer", "functional")
LARGEST_FIT_SCORE = 0.01
"""Upper end of the fit range: the scale at which no score exceeds this, so that activations look like their leading
power; the lower end is 1.5 decades below."""
TOLERANCE = 0.05
_PER_DECADE = 6
_BELOW, _ABOVE = 1.5, 2.0


def growth(setting: Setting) -> Growth:
    """Scale the tokens, hold weights, loss gradient and loss curvature, and fit every block."""
    fit_high = math.sqrt(LARGEST_FIT_SCORE / float(setting.hessian.heads[0].scores.abs().max()))
    exponents = np.arange(-_BELOW * _PER_DECADE, _ABOVE * _PER_DECADE + 1) / _PER_DECADE
    sigmas = tuple(float(fit_high * 10**e) for e in exponents)
    fitted = int(_BELOW * _PER_DECADE) + 1
    asked = setting.config.activation
    names = ACTIVATIONS if asked in ACTIVATIONS else (*ACTIVATIONS, asked)
    curves = [curve for name in names for curve in _curves(setting, name, sigmas, fitted)]
    return Growth(sigmas, sigmas[0], sigmas[fitted - 1], LARGEST_FIT_SCORE, TOLERANCE, tuple(curves))


def _curves(setting: Setting, activation: str, sigmas: tuple[float, ...], fitted: int) -> list[GrowthCurve]:
    layer = random_layer(setting.config, activation=activation)
    hessians = [_at_scale(setting, layer, sigma) for sigma in sigmas]
    found = []
    for part in PARTS:
        for row, column in BLOCKS:
            norms = tuple(finite_norm(H.part(part)[row, column]) for H in hessians)
            slope = log_log_slope(sigmas[:fitted], [math.inf if n is None else n for n in norms[:fitted]])
            predicted = predicted_growth(activation, part, row, column)
            found.append(GrowthCurve(activation, part, row, column, norms, slope, predicted, verdict(slope, predicted)))
    return found


def _at_scale(setting: Setting, layer: SelfAttention, sigma: float) -> AttentionHessian:
    gradient = setting.hessian.loss.gradient
    return attention_hessian(layer, sigma * setting.X, grad=gradient, curvature=setting.curvature)


def verdict(slope: float | None, predicted: int | None) -> str:
    """Whether measurement and prediction agree.

    >>> verdict(5.99, 6), verdict(None, None), verdict(None, 2), verdict(4.2, 5)
    ('agree', 'agree', 'vanishes', 'differ')
    """
    if slope is None:
        return "agree" if predicted is None else "vanishes"
    return "agree" if predicted is not None and abs(slope - predicted) < TOLERANCE else "differ"
