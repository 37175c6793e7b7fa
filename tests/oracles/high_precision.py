"""Hessians of small attention layers in hundreds of digits: second-order Taylor arithmetic, no closed form of a layer.

Every number carries its value, gradient and Hessian with respect to the unknowns, as mpmath numbers, and goes through
the layer by the rules for sums, products and functions of one variable. Saturated attention needs digits, not care:
``1 - A`` of 1e-300 is right when enough of them are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from mpmath import mp
from torch import Tensor

DIGITS = 420
"""Enough for twenty digits of what float64 can hold beside numbers of 1e100."""


@dataclass(frozen=True, eq=False)
class Jet:
    """A number with its first and second derivatives; ``None`` where they are all zero."""

    value: mpmath.mpf
    gradient: np.ndarray | None = None
    hessian: np.ndarray | None = None

    def __add__(self, other: Jet | int) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value + other, self.gradient, self.hessian)
        return Jet(self.value + other.value, _plus(self.gradient, other.gradient), _plus(self.hessian, other.hessian))

    __radd__ = __add__

    def __mul__(self, other: Jet | mpmath.mpf) -> Jet:
        if not isinstance(other, Jet):
            return Jet(self.value * other, _times(self.gradient, other), _times(self.hessian, other))
        gradient = _plus(_times(self.gradient, other.value), _times(other.gradient, self.value))
        hessian = _plus(_times(self.hessian, other.value), _times(other.hessian, self.value))
        if self.gradient is not None and other.gradient is not None:
            cross = np.outer(self.gradient, other.gradient)
            hessian = _plus(hessian, cross + cross.T)
        return Jet(self.value * other.value, gradient, hessian)

    __rmul__ = __mul__

    def through(self, value: mpmath.mpf, slope: mpmath.mpf, bend: mpmath.mpf) -> Jet:
        """A function of this number, from its value and two derivatives."""
        hessian = _times(self.hessian, slope)
        if self.gradient is not None:
            hessian = _plus(hessian, np.outer(self.gradient, self.gradient) * bend)
        return Jet(value, _times(self.gradient, slope), hessian)

    def exp(self) -> Jet:
        e = mp.exp(self.value)
        return self.through(e, e, e)

    def log(self) -> Jet:
        return self.through(mp.log(self.value), 1 / self.value, -1 / self.value**2)

    def inverse(self) -> Jet:
        inverse = 1 / self.value
        return self.through(inverse, -(inverse**2), 2 * inverse**3)


def _plus(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    return other if one is None else one if other is None else one + other


def _times(one: np.ndarray | None, factor: mpmath.mpf) -> np.ndarray | None:
    return None if one is None else one * factor


def constants(values: Tensor) -> np.ndarray:
    """Numbers of a float64 tensor, exactly."""
    return np.array([mp.mpf(x) for x in values.reshape(-1).tolist()], dtype=object).reshape(tuple(values.shape))


def unknowns(values: np.ndarray, first: int, total: int) -> np.ndarray:
    """Entries of an array as unknowns number `first` and following, of `total`."""
    jets = []
    for k, value in enumerate(values.reshape(-1)):
        gradient = np.array([mp.mpf(0)] * total, dtype=object)
        gradient[first + k] = mp.mpf(1)
        jets.append(Jet(value, gradient))
    return np.array(jets, dtype=object).reshape(values.shape)


# Activations: a row of visible scores to as many weights.


def _normalised(values: Sequence[Jet]) -> list[Jet]:
    inverse = sum(values[1:], values[0]).inverse()
    return [value * inverse for value in values]


def _sigmoid(t: Jet) -> Jet:
    return ((t * mp.mpf(-1)).exp() + 1).inverse()


def _tanh(t: Jet) -> Jet:
    return _sigmoid(t * mp.mpf(2)) * mp.mpf(2) + (-1)


def _relu(t: Jet) -> Jet:
    return t if t.value > 0 else Jet(mp.mpf(0))


ROWS: dict[str, Callable[[Sequence[Jet]], list[Jet]]] = {
    "softmax": lambda row: _normalised([t.exp() for t in row]),
    "sigmoid": lambda row: [_sigmoid(t) for t in row],
    "tanh": lambda row: [_tanh(t) for t in row],
    "linear": list,
    "relu": lambda row: [_relu(t) for t in row],
    "relu_normalised": lambda row: _normalised([_relu(t) for t in row]),
    "row_sum": _normalised,
    "exp / row sum": lambda row: _normalised([t.exp() for t in row]),
    "sigmoid / row sum": lambda row: _normalised([_sigmoid(t) for t in row]),
    "softplus / row sum": lambda row: _normalised([(t.exp() + 1).log() for t in row]),
}


def _square(F: np.ndarray, Y: np.ndarray) -> Jet:
    residuals = [f + (-y) for f, y in zip(F.reshape(-1), Y.reshape(-1), strict=True)]
    return sum((r * r for r in residuals[1:]), residuals[0] * residuals[0]) * (1 / mp.mpf(len(residuals)))


def _cross_entropy(F: np.ndarray, classes: Sequence[int]) -> Jet:
    parts = []
    for row, k in zip(F, classes, strict=True):
        terms = [f.exp() for f in row]
        parts.append(sum(terms[1:], terms[0]).log() + row[k] * mp.mpf(-1))
    return sum(parts[1:], parts[0]) * (1 / mp.mpf(len(parts)))


LOSSES = {"square": _square, "cross-entropy": _cross_entropy}


@dataclass(frozen=True, eq=False)
class Layer:
    """One sequence through one head: float64 inputs, taken as exact numbers.

    Attributes:
        X: Tokens, (L, d).
        weights: W_Q, W_K and W_V.
        activation: A name of `ROWS`.
        scale: What divides the scores, as the float64 number that it is.
        causal: Whether a token sees only those up to itself.
        loss: A name of `LOSSES`.
        targets: What it compares with.
    """

    X: Tensor
    weights: dict[str, Tensor]
    activation: str
    scale: float
    causal: bool
    loss: str
    targets: Tensor

    def scores(self, Q: np.ndarray, K: np.ndarray) -> np.ndarray:
        X = constants(self.X)
        return (X @ Q) @ (X @ K).T * (1 / mp.mpf(self.scale))

    def output(self, T: np.ndarray, V: np.ndarray) -> np.ndarray:
        values, rows = constants(self.X) @ V, []
        for i, row in enumerate(T):
            seen = i + 1 if self.causal else len(row)
            rows.append(np.array(ROWS[self.activation](list(row[:seen])), dtype=object) @ values[:seen])
        return np.array(rows, dtype=object)

    def loss_at(self, F: np.ndarray) -> Jet:
        targets = constants(self.targets) if self.targets.is_floating_point() else self.targets.tolist()
        return LOSSES[self.loss](F, targets)


def hessians(layer: Layer) -> dict[str, np.ndarray]:
    """Every part of the Hessian as a matrix of mpmath numbers, in the order Q, K, V; the two at the scores: Q, K."""
    with mp.workdps(DIGITS):
        weights = {name: constants(w) for name, w in layer.weights.items()}
        total = sum(w.size for w in weights.values())
        starts = np.cumsum([0, *(w.size for w in weights.values())])
        Q, K, V = (unknowns(w, start, total) for w, start in zip(weights.values(), starts[:-1], strict=True))
        T = layer.scores(Q, K)
        F = layer.output(T, V)
        outer, functional = _split(F, layer.loss_at)
        full = outer + functional
        pair = slice(0, starts[2])
        V0 = weights["V"]
        values = np.array([Jet(v) for v in V0.reshape(-1)], dtype=object).reshape(V0.shape)
        _, t_functional = _split(T, lambda at: layer.loss_at(layer.output(at, values)), slope_only=True)
        return {
            "outer": outer,
            "functional": functional,
            "full": full,
            "t_functional": t_functional[pair, pair],
            "t_outer": (full - t_functional)[pair, pair],
        }


def _split(
    inner: np.ndarray, outer: Callable[[np.ndarray], Jet], slope_only: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """``J^T C J`` and ``sum_k g_k d^2 inner_k`` of ``outer(inner)``."""
    flat = inner.reshape(-1)
    values = np.array([jet.value for jet in flat], dtype=object)
    at = outer(unknowns(values, 0, len(flat)).reshape(inner.shape))
    total = next(len(jet.gradient) for jet in flat if jet.gradient is not None)
    zero = np.array([[mp.mpf(0)] * total] * total, dtype=object)
    hvp = [jet.hessian * g for jet, g in zip(flat, at.gradient, strict=True) if jet.hessian is not None]
    functional = sum(hvp, zero)
    if slope_only:
        return zero, functional
    none = zero[0]
    J = np.array([none if jet.gradient is None else jet.gradient for jet in flat], dtype=object)
    C = np.array([[mp.mpf(0)] * len(flat)] * len(flat), dtype=object) if at.hessian is None else at.hessian
    return J.T @ C @ J, functional


def largest(true: np.ndarray) -> mpmath.mpf:
    """The largest absolute entry."""
    return max((abs(x) for x in true.reshape(-1)), default=mp.mpf(0))


def error(found: Tensor, true: np.ndarray) -> float:
    """The largest error of an entry, relative to the largest true entry; ``found`` holds float numbers."""
    with mp.workdps(DIGITS):
        size = largest(true)
        gap = largest(constants(found.double()) - true)
        return float(gap / size) if size else (0.0 if not gap else float("inf"))


def norm(true: np.ndarray) -> mpmath.mpf:
    """The Frobenius norm."""
    with mp.workdps(DIGITS):
        return mp.sqrt(sum((x * x for x in true.reshape(-1)), mp.mpf(0)))
