"""Values through two matrices, as heads have them in practice (Appendix E.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close
from hessianlab.claims.quantities import EXACT, gap, slope
from hessianlab.claims.samples import Weights, Witness, mean_square, normal, softmax_rows

SHAPES = ((5, 4, 2), (4, 3, 3), (6, 5, 1))
"""L, d, rank of the factored value matrix."""


@dataclass(frozen=True, eq=False)
class Factored:
    """One head with W_V = W_O W_U: tokens, target, and the weights Q, K (held fixed), O and U."""

    X: Tensor
    Y: Tensor
    Q: Tensor
    K: Tensor
    values: Weights

    @property
    def attention(self) -> Tensor:
        """A, which W_O and W_U do not enter."""
        return softmax_rows(self.X @ self.Q @ self.K.T @ self.X.T / self.Q.shape[1] ** 0.5)

    def witness(self) -> Witness:
        """Automatic differentiation of the attention layer."""
        return Witness(lambda w: self.attention @ self.X @ w["O"] @ w["U"], self.values, mean_square(self.Y))

    def as_mlp(self, scale: float = 1.0, target: float = 1.0) -> Witness:
        """Automatic differentiation of a linear two-layer MLP with input `scale` times M_1."""
        M_1 = scale * (self.attention @ self.X)
        return Witness(lambda w: M_1 @ w["O"] @ w["U"], self.values, mean_square(target * self.Y))


def factored(seed: int, length: int, d: int, rank: int) -> Factored:
    """Random weights N(0, 1/d), tokens and target N(0, 1)."""
    first = 500 * seed
    Q, K, inner = (normal(first + i, d, rank) / d**0.5 for i in range(3))
    outer = normal(first + 3, rank, d) / d**0.5
    return Factored(normal(first + 4, length, d), normal(first + 5, length, d), Q, K, {"O": inner, "U": outer})


@measured
def heads() -> tuple[Factored, ...]:
    """Three seeds of every shape."""
    return tuple(factored(seed, *shape) for shape in SHAPES for seed in seeds(3))


@claim("P56")
def factored_values_are_an_mlp() -> Finding:
    """The layer against the MLP."""
    pairs = [(head.witness(), head.as_mlp()) for head in heads()]
    outer_alone = [gap(w.block("full", n, n), w.block("outer", n, n)) for w, _ in pairs for n in "OU"]
    hollow = [
        float(w.block("functional", n, n).abs().max()) / float(w.block("functional", "O", "U").norm())
        for w, _ in pairs
        for n in "OU"
    ]
    return Finding(
        checks=(
            at_most("largest distance of the Hessian from the MLP's", (gap(w.full, m.full) for w, m in pairs), EXACT),
            at_most("largest entry of the functional diagonal blocks", hollow, 1e-14),
            at_most("largest distance of the full diagonal blocks from the outer product", outer_alone, EXACT),
        )
    )


SMALL, LARGE = (1e-3, 1e-2), (1e4, 1e5)


def _exponent(head: Factored, scales: tuple[float, float], target: float = 1.0) -> float:
    """Power of M_1 in the functional block of W_O and W_U."""
    return slope(scales, [float(head.as_mlp(s, target).block("functional", "O", "U").norm()) for s in scales])


@claim("P57")
def quadratic_in_the_moment() -> Finding:
    """Exponents for small and large moments."""
    small = [_exponent(head, SMALL) for head in heads()]
    large = [_exponent(head, LARGE) for head in heads()]
    without = [_exponent(head, SMALL, target=0.0) for head in heads()]
    outer = [slope(SMALL, [float(h.as_mlp(s).block("outer", "O", "U").norm()) for s in SMALL]) for h in heads()]
    weights = [slope(SMALL, [_outer_at(head, s) for s in SMALL]) for head in heads()]
    quadratic = (
        at_most("distance of the exponent from 2, large M_1", (abs(e - 2) for e in large), 0.05),
        at_most("distance of the exponent from 2, target zero", (abs(e - 2) for e in without), 0.05),
        at_most("distance of the outer product's exponent in M_1 from 2", (abs(e - 2) for e in outer), 0.05),
        at_most("distance of the outer product's exponent in the weights from 2", (abs(e - 2) for e in weights), 0.05),
    )
    example = _one_number()
    return Finding(
        checks=(*quadratic, at_most("distance of the exponent from 2, small M_1", (abs(e - 2) for e in small), 0.05)),
        conditional=quadratic,
        support=(
            at_most("largest exponent for small M_1", small, 1.05),
            at_least("smallest exponent for small M_1", small, 0.95),
            close(
                "one number: c M_1 (M_1 W_O W_U - Y) against automatic differentiation", example[0], example[1], 1e-12
            ),
        ),
        example="one token, one feature, M_1 = 0.1, W_O = W_U = 1, Y = 1: the block is 2 M_1 (M_1 - Y) = "
        f"{example[0]:.3g}; for M_1 = 0.2 it is {_one_number(0.2)[0]:.3g}, less than twice as large in size, not four "
        "times.",
        curves=Curves.log_log(
            "factor on M_1",
            "|H_f(O, U)|",
            {name: _line(heads()[0], target) for name, target in (("Y random", 1.0), ("Y = 0", 0.0))},
        ),
    )


def _outer_at(head: Factored, scale: float) -> float:
    scaled = Factored(head.X, head.Y, head.Q, head.K, {n: scale * w for n, w in head.values.items()})
    return float(scaled.as_mlp().block("outer", "O", "U").norm())


def _one_number(moment: float = 0.1) -> tuple[float, float]:
    """The functional block of one token with one feature, by automatic differentiation and by the formula."""
    one = torch.ones(1, 1, dtype=torch.float64)
    head = Witness(lambda w: moment * w["O"] @ w["U"], {"O": one, "U": one}, mean_square(one))
    return float(head.block("functional", "O", "U")), 2 * moment * (moment - 1)


def _line(head: Factored, target: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scales = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
    return scales, tuple(float(head.as_mlp(s, target).block("functional", "O", "U").norm()) for s in scales)
