"""What happens to the blocks as attention becomes one-hot."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from hessianlab.layer_page.facts import Sharpness
from hessianlab.layer_page.norms import finite_norm
from hessianlab.layer_page.setting import Setting
from hessianlens.attention import attention_entropy, second_moment, third_moment_along
from hessianlens.errors import InputError
from hessianlens.theory import attention_hessian

SCALES = tuple(float(c) for c in np.logspace(-1, 4, 26))


def sharpness(setting: Setting) -> tuple[Sharpness, ...]:
    """Multiply the query weights by larger and larger numbers and leave everything else as it is."""
    return tuple(_at_scale(setting, scale) for scale in SCALES)


def _at_scale(setting: Setting, scale: float) -> Sharpness:
    layer = setting.layer.with_parameters({"Q": scale * setting.layer.W_Q})
    try:
        H = attention_hessian(layer, setting.X, setting.loss)
    except InputError:  # attention without a normaliser overflows sooner or later
        return Sharpness(scale, None, None, None, None, None, None)
    A, direction = H.heads[0].weights, H.loss.gradient @ layer.W_V.T
    return Sharpness(
        scale=scale,
        outer_qq=finite_norm(H.outer["Q", "Q"]),
        functional_qq=finite_norm(H.functional["Q", "Q"]),
        outer_vv=finite_norm(H.outer["V", "V"]),
        entropy=float(attention_entropy(A).mean()) if is_distribution(A) else None,
        second_moment=_finite(second_moment(A, setting.X).norm()),
        third_moment=_finite(third_moment_along(A, setting.X, direction).norm()),
    )


def is_distribution(A: Tensor) -> bool:
    """Whether no weight is negative and every row sums to one, or to zero if it sees nothing."""
    total = A.sum(-1)
    return bool((A >= 0).all()) and bool((((total - 1).abs() < 1e-9) | (total == 0)).all())


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
