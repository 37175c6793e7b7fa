"""How fast each block grows with the scale of the tokens, predicted from the activation alone.

Let the tokens be sigma X with sigma -> 0, weights and loss gradient fixed. Scores shrink as sigma^2. If near zero
scores the activation's weights, first and second row derivatives behave as the powers ``k_A, k_J, k_D`` of the scores,
then ``m = A X`` goes as ``1 + 2 k_A``, ``V^T J K`` as ``2 + 2 k_J``, and each block follows by counting. The three
powers are found from the activation's own functions, not from a table: a(0) is non-zero for softmax (k_A = 0), zero
with non-zero slope for tanh (k_A = 1); a''(0) is zero for a plain sigmoid, so its functional query block grows two
powers faster than that of softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.activations import Activation, ActivationLike, as_activation
from hessianlens.errors import check_choice, check_seed, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.parts import LAYER_PARTS

_SMALL = (1e-3, 1e-4)
_DEEPEST = 10_000
"""Layers of a stack; no model has as many."""


@dataclass(frozen=True)
class ActivationPowers:
    """Powers of the scores with which an activation and its row derivatives vanish at zero; None: identically zero."""

    value: int | None
    jacobian: int | None
    curvature: int | None


def activation_powers(activation: ActivationLike, length: int = 6, seed: int = 0) -> ActivationPowers:
    """The leading powers of a, a' and a'' near zero scores, along a generic direction, for rows of `length` scores.

    >>> activation_powers("softmax")
    ActivationPowers(value=0, jacobian=0, curvature=0)
    >>> activation_powers("linear")
    ActivationPowers(value=1, jacobian=0, curvature=None)
    >>> activation_powers("relu_normalised")
    ActivationPowers(value=0, jacobian=-1, curvature=-2)
    """
    a = as_activation(activation)
    check_whole("length", length)
    generator = torch.Generator().manual_seed(check_seed(seed))
    size = (4, length, length, length)
    ensure_fits("The derivatives of every row", size, torch.float64, torch.device("cpu"), "take shorter sequences")
    scores, weights = torch.randn(2, 1, length, length, generator=generator, dtype=torch.float64)
    visible = torch.ones(1, length, length, dtype=torch.bool)

    def sizes(scale: float) -> tuple[Tensor, Tensor, Tensor]:
        t = scale * scores
        return (
            a.value(t, visible).norm(),
            a.jacobian(t, visible).apply(torch.eye(length, dtype=t.dtype)[None, None]).norm(),
            a.curvature(t, visible, weights).apply(torch.eye(length, dtype=t.dtype)[None, None]).norm(),
        )

    large, small = sizes(_SMALL[0]), sizes(_SMALL[1])
    return ActivationPowers(*(_power(a, x, y) for x, y in zip(large, small, strict=True)))


def _power(activation: Activation, at_large: Tensor, at_small: Tensor) -> int | None:
    """The exponent between the two scales; they are so small that it must be close to a whole number."""
    if float(at_large) == 0 and float(at_small) == 0:
        return None
    found = math.log(float(at_large) / float(at_small)) / math.log(_SMALL[0] / _SMALL[1])
    nearest = round(found)
    expect(
        abs(found - nearest) < 0.05,
        f"activation {activation.name}: near zero scores it goes as the power {found:.3f}, expected a whole number; "
        "it has no growth exponent of this kind.",
    )
    return nearest


def predicted_growth(
    activation: ActivationLike, part: str, row: str, column: str, *, residual_power: int = 0, length: int = 6
) -> int | None:
    """The exponent of sigma of a block's norm as sigma -> 0; ``None`` for a block that is identically zero.

    A causal mask changes nothing, as long as some rows see three tokens or more.

    Args:
        activation: Name, `Activation` or function of a row.
        part: "outer" (or "ggn"), "functional", "t_functional", or "full" for the smaller of the exponents present.
        row: "Q", "K", "V" or "QK" (a single query-key matrix).
        column: The same.
        residual_power: Power of sigma in the loss gradient itself: 0 for a fixed residual, 1 if it scales with sigma.
        length: Tokens of a sequence. Only very short ones matter: with two tokens a uniform softmax row is symmetric
            and its third moment vanishes, so that the functional query block grows faster.

    >>> {pair: predicted_growth("softmax", "outer", *pair) for pair in ("QQ", "QV", "VV")}
    {'QQ': 6, 'QV': 4, 'VV': 2}
    >>> (
    ...     predicted_growth("softmax", "functional", "Q", "Q"),
    ...     predicted_growth("sigmoid", "functional", "Q", "Q"),
    ... )
    (5, 7)
    """
    check_choice("part", part, (*LAYER_PARTS, "t_functional", "ggn"))
    part = "outer" if part == "ggn" else part
    for name in (row, column):
        check_choice("row and column", name, ("Q", "K", "V", "QK"))
    check_whole("residual_power", residual_power, 0)
    powers = activation_powers(activation, length)
    if part == "full":
        found = [_exponent(powers, p, row, column, residual_power) for p in ("outer", "functional")]
        present = [e for e in found if e is not None]
        return min(present, default=None)
    return _exponent(powers, part, row, column, residual_power)


def _exponent(powers: ActivationPowers, part: str, row: str, column: str, residual_power: int) -> int | None:
    values = [name for name in (row, column) if name == "V"]
    if part == "outer":
        derivative = {True: _plus(powers.value, 1), False: _plus(powers.jacobian, 3)}
        sides = [derivative[name == "V"] for name in (row, column)]
        return None if None in sides else sum(s for s in sides if s is not None)
    through_slope = _plus(powers.jacobian, 3 + residual_power)
    if part == "t_functional":
        return through_slope if {row, column} == {"Q", "K"} else None
    if len(values) == 2:
        return None
    if len(values) == 1:
        return through_slope
    through_curvature = _plus(powers.curvature, 5 + residual_power)
    if {row, column} != {"Q", "K"}:
        return through_curvature
    return min((e for e in (through_curvature, through_slope) if e is not None), default=None)


def _plus(power: int | None, fixed: int) -> int | None:
    """``2 power + fixed``: scores go as sigma squared."""
    return None if power is None else 2 * power + fixed


def linear_attention_growth(depth: int) -> int:
    """Exponent of the outer-product blocks of stacked linear attention: each layer uses its input three times.

    >>> [linear_attention_growth(depth) for depth in (1, 2, 3)]
    [6, 18, 54]
    """
    return 2 * 3 ** check_whole("depth", depth, 1, _DEEPEST)


def linear_mlp_growth(depth: int) -> int:
    """Exponent of the outer-product blocks of a linear MLP: its Jacobian is linear in the input at any depth."""
    check_whole("depth", depth, 1, _DEEPEST)
    return 2
