"""How fast each block grows with the scale of the tokens, predicted from the activation alone.

Let the tokens be sigma X with sigma -> 0, weights and loss gradient fixed. Scores shrink as sigma^2. If near zero
scores the activation's weights, first and second row derivatives behave as the powers ``k_A, k_J, k_D`` of the scores,
then ``m = A X`` goes as ``1 + 2 k_A``, ``V^T J K`` as ``2 + 2 k_J``, and each block follows by counting. The three
powers are found from the activation's own functions, not from a table: a(0) is non-zero for softmax (k_A = 0), zero
with non-zero slope for tanh (k_A = 1); a''(0) is zero for a plain sigmoid, so its functional query block grows two
powers faster than that of softmax.

A norm of queries or of keys takes the scale of the tokens out of these: scores go as ``sigma^tau`` with ``tau = 2``
less one for each norm, and so does their derivative by a weight, because the Jacobian of a norm grows as one over sigma
where its input shrinks. With both norms nothing depends on sigma but the values: all outer-product blocks go as
``sigma^2``, all functional ones as ``sigma``.

The logits of an output gate shrink as sigma where they are a projection of the tokens: the gate itself is one half and
takes nothing, and by its weight the output goes as ``sigma`` times what the head puts out. So the outer-product block
of the gate goes as ``sigma^4`` for softmax. The second derivative of a sigmoid is zero at zero, hence one more power in
the functional block of the gate with itself. The same holds for a sigmoid gate of the values.
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
_GATES = ("gate", "value_gate")
_NAMES = ("Q", "K", "V", "QK", "gain_Q", "gain_K", "sink", *_GATES)


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


@dataclass(frozen=True)
class ScorePowers:
    """Powers of sigma in the scores.

    Attributes:
        query_norm: Whether queries are normalised.
        key_norm: Whether keys are.
    """

    query_norm: bool = False
    key_norm: bool = False

    @property
    def scores(self) -> int:
        """That of the scores themselves."""
        return 2 - self.query_norm - self.key_norm

    def derivative(self, name: str) -> int:
        """That of their derivative by a parameter: none for the logit of a sink."""
        return 0 if name == "sink" else self.scores

    def are_split(self, row: str, column: str) -> bool:
        """Whether two parameters share a second derivative of the scores, a T-functional block."""
        sides = [_SIDES.get(name) for name in (row, column)]
        if None in sides or sides[0] != sides[1]:
            return None not in sides
        normed = self.query_norm if sides[0] == "Q" else self.key_norm
        return normed and (row, column) != (f"gain_{sides[0]}", f"gain_{sides[0]}")


_SIDES = {"Q": "Q", "gain_Q": "Q", "K": "K", "gain_K": "K"}


def predicted_growth(
    activation: ActivationLike,
    part: str,
    row: str,
    column: str,
    *,
    residual_power: int = 0,
    length: int = 6,
    query_norm: bool = False,
    key_norm: bool = False,
) -> int | None:
    """The exponent of sigma of a block's norm as sigma -> 0; ``None`` for a block that is identically zero.

    A causal mask changes nothing, as long as some rows see three tokens or more.

    Args:
        activation: Name, `Activation` or function of a row.
        part: "outer" (or "ggn"), "functional", "t_functional", or "full" for the smaller of the exponents present.
        row: "Q", "K", "V", "QK" (a single query-key matrix), "gain_Q", "gain_K" (of norms), "sink" (its logit),
            "gate" (a sigmoid of the output) or "value_gate" (a sigmoid of the values).
        column: The same.
        residual_power: Power of sigma in the loss gradient itself: 0 for a fixed residual, 1 if it scales with sigma.
        length: Tokens of a sequence. Only very short ones matter: with two tokens a uniform softmax row is symmetric
            and its third moment vanishes, so that the functional query block grows faster.
        query_norm: Whether queries are normalised, with an eps far below their mean square.
        key_norm: The same for keys.

    >>> {pair: predicted_growth("softmax", "outer", *pair) for pair in ("QQ", "QV", "VV")}
    {'QQ': 6, 'QV': 4, 'VV': 2}
    >>> (
    ...     predicted_growth("softmax", "functional", "Q", "Q"),
    ...     predicted_growth("sigmoid", "functional", "Q", "Q"),
    ... )
    (5, 7)
    >>> {
    ...     pair: predicted_growth("softmax", "outer", *pair, query_norm=True, key_norm=True)
    ...     for pair in ("QQ", "QV", "VV")
    ... }
    {'QQ': 2, 'QV': 2, 'VV': 2}
    """
    check_choice("part", part, (*LAYER_PARTS, "t_functional", "ggn"))
    part = "outer" if part == "ggn" else part
    for name in (row, column):
        check_choice("row and column", name, _NAMES)
    check_whole("residual_power", residual_power, 0)
    powers, scores = activation_powers(activation, length), ScorePowers(query_norm, key_norm)
    if part == "full":
        found = [_exponent(powers, scores, p, row, column, residual_power) for p in ("outer", "functional")]
        return min((e for e in found if e is not None), default=None)
    return _exponent(powers, scores, part, row, column, residual_power)


def _first_power(powers: ActivationPowers, scores: ScorePowers, name: str) -> int | None:
    """That of the output's derivative by a parameter."""
    if name == "V" or name in _GATES:
        through_tokens = 1 + (name in _GATES)
        return None if powers.value is None else through_tokens + scores.scores * powers.value
    return None if powers.jacobian is None else 1 + scores.scores * powers.jacobian + scores.derivative(name)


def _gate_exponent(
    powers: ActivationPowers, scores: ScorePowers, part: str, row: str, column: str, residual_power: int
) -> int | None:
    """A functional block of a gate: one token more than the other parameter's first derivative; with itself two."""
    other = column if row in _GATES else row
    found = _first_power(powers, scores, other)
    if found is None or part == "t_functional":
        return None
    return found + residual_power + (2 if row == column else 1)


def _exponent(
    powers: ActivationPowers, scores: ScorePowers, part: str, row: str, column: str, residual_power: int
) -> int | None:
    def through(power: int | None, *names: str) -> int | None:
        """Values, a derivative of the activation, and the derivatives of the scores by some parameters."""
        return None if power is None else 1 + scores.scores * power + sum(map(scores.derivative, names))

    if part == "outer":
        sides = [_first_power(powers, scores, name) for name in (row, column)]
        return None if None in sides else sum(s for s in sides if s is not None)
    if row in _GATES or column in _GATES:
        return _gate_exponent(powers, scores, part, row, column, residual_power)
    of_scores = [name for name in (row, column) if name != "V"]
    found: list[int | None] = []
    if len(of_scores) == 1 and part == "functional":
        found.append(through(powers.jacobian, *of_scores))
    if len(of_scores) == 2 and part == "functional":
        found.append(through(powers.curvature, row, column))
    if len(of_scores) == 2 and scores.are_split(row, column):
        found.append(through(powers.jacobian, "Q"))
    return min((e + residual_power for e in found if e is not None), default=None)


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
