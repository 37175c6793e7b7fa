"""Several heads: their blocks and values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, true
from hessianlab.claims.quantities import EXACT, block_norm, gap, largest, slope, smallest
from hessianlab.claims.samples import DenseHessians, Weights, attention_output, mean_square, normal, softmax_rows
from hessianlab.experiments.statistics import geometric_mean
from hessianlab.paper import PrintedMultiHead, remark_e_1
from hessianlens.attention import MultiHeadAttention, SelfAttention
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

SHAPES = ((5, 4, 2, 2), (4, 3, 3, 2), (4, 3, 1, 3))
"""L, d, d_K, heads."""

HEADS = (1, 2, 4)


def head_weights(seed: int, d_v: int, d_k: int, heads: int) -> Weights:
    """Weights of all heads, named such as "Q0", from N(0, 1/d)."""
    widths = {"Q": d_k, "K": d_k, "V": d_v}
    return {
        f"{name}{h}": normal(10_000 * seed + 10 * h + i, d_v, width) / math.sqrt(d_v)
        for h in range(heads)
        for i, (name, width) in enumerate(widths.items())
    }


def output(X: Tensor, heads: int, w: Weights) -> Tensor:
    """The sum of the heads' outputs, written out."""
    parts = [attention_output(X, {n: w[f"{n}{h}"] for n in "QKV"}, softmax_rows) for h in range(heads)]
    return torch.stack(parts).sum(0)


def cross_entropy(targets: Tensor, F: Tensor) -> Tensor:
    """Mean cross-entropy with F as logits."""
    return torch.nn.functional.cross_entropy(F, targets)


def _redrawn(weights: Weights, seed: int, head: int) -> Weights:
    """The same weights except that one head is drawn anew."""
    return {n: normal(seed, *w.shape) if n.endswith(str(head)) else w for n, w in weights.items()}


@measured
def _jacobian_gaps() -> tuple[list[float], list[float], list[float]]:
    """Change of a head's Jacobian when another head is drawn anew, and when its own is; distance from Remark E.1."""
    other, own, printed = [], [], []
    for seed in seeds(3):
        for length, d_v, d_k, heads in SHAPES:
            X, Y = normal(seed + 900, length, d_v), normal(seed + 901, length, d_v)
            weights = head_weights(seed, d_v, d_k, heads)
            run = partial(output, X, heads)
            base = DenseHessians(run, weights, mean_square(Y))
            Q, K, V = (torch.stack([weights[f"{n}{h}"] for h in range(heads)]) for n in "QKV")
            setting = PrintedMultiHead(X, Q, K, V, Y)
            for name in ("Q", "K", "V"):
                before = base.jacobian[:, base.place(f"{name}0")]
                after = [DenseHessians(run, _redrawn(weights, seed + 7, h), mean_square(Y)) for h in (1, 0)]
                changes = [gap(w.jacobian[:, w.place(f"{name}0")], before) for w in after]
                other.append(changes[0])
                own.append(changes[1])
                printed.append(gap(remark_e_1(setting, 0, name), before))
    return other, own, printed


@claim("P52")
def jacobian_of_a_head() -> Finding:
    """Another head drawn anew, and the printed form."""
    other, own, printed = _jacobian_gaps()
    return Finding(
        checks=(
            at_most("largest change when another head is drawn anew", other, EXACT),
            at_least("smallest change when the head itself is drawn anew", own, 1e-3),
            at_most("largest distance from Remark E.1", printed, EXACT),
        )
    )


@claim("P53")
def between_heads() -> Finding:
    """Two losses."""
    across: dict[str, list[float]] = {"square loss": [], "cross-entropy": []}
    outer = []
    for seed in seeds(3):
        for length, d_v, d_k, heads in SHAPES:
            X, Y = normal(seed + 900, length, d_v), normal(seed + 901, length, d_v)
            targets = torch.arange(length) % d_v
            for name, loss in (("square loss", mean_square(Y)), ("cross-entropy", partial(cross_entropy, targets))):
                weights = head_weights(seed, d_v, d_k, heads)
                by_autograd = DenseHessians(partial(output, X, heads), weights, loss)
                pairs = [(r, c) for r in weights for c in weights if r[1] != c[1]]
                outer.append(smallest(float(by_autograd.block("outer", *pair).norm()) for pair in pairs))
                size = float(by_autograd.functional.norm())
                across[name].append(
                    largest(float(by_autograd.block("functional", *pair).abs().max()) / size for pair in pairs)
                )
    return Finding(
        checks=(
            *(at_most(f"largest functional entry between heads, {n}", v, 1e-14) for n, v in across.items()),
            at_least("smallest norm of the outer product between heads", outer, 1e-6),
        )
    )


def many_heads(seed: int, heads: int, scale: float = 1.0, length: int = 10, d: int = 16) -> AttentionHessian:
    """Heads of width d / H, tokens of the given scale, square loss."""
    X, Y = scale * normal(seed + 300, length, d), normal(seed + 301, length, d)
    w = head_weights(seed, d, d // heads, heads)
    layers = [SelfAttention(w[f"Q{h}"], w[f"K{h}"], w[f"V{h}"]) for h in range(heads)]
    return attention_hessian(MultiHeadAttention(layers), X, SquareLoss(Y))


def zero_share(heads: int, d: int = 8) -> float:
    """Share of exactly zero entries of the functional Hessian at width d."""
    matrices = [many_heads(seed, heads, length=6, d=d).functional[:].to_dense() for seed in seeds(2)]
    return smallest(float((matrix == 0).double().mean()) for matrix in matrices)


@claim("P54")
def sparser_with_heads() -> Finding:
    """Zero entries counted."""
    shares = {heads: zero_share(heads) for heads in (1, 2, 4)}
    return Finding(
        checks=(
            true("the share of zero entries grows with H", shares[1] < shares[2] < shares[4]),
            *(at_least(f"share of zero entries, H = {h}", shares[h], 0.5) for h in (2, 4)),
            close(
                "share of zero entries, H = 4 (only blocks within a head, without its VV block)",
                shares[4],
                _expected(4),
                1e-12,
            ),
        )
    )


def _expected(heads: int, d: int = 8) -> float:
    """Non-zero: within a head, everything but the value block."""
    own, values = 2 * d * d // heads + d * d, d * d
    return 1 - heads * (own**2 - values**2) / (heads * own) ** 2


@measured
def _dominance() -> dict[float, dict[int, list[float]]]:
    """``|H_o| / |H_f|`` by scale of the tokens and number of heads, for every seed."""
    return {
        scale: {h: [_part_ratio(many_heads(seed, h, scale)) for seed in seeds(3)] for h in HEADS}
        for scale in (0.1, 1.0)
    }


def _part_ratio(H: AttentionHessian) -> float:
    return block_norm(H, "outer") / block_norm(H, "functional")


@claim("P55")
def outer_dominates() -> Finding:
    """Norms over the number of heads, for small and larger tokens."""
    found = {scale: {h: geometric_mean(r) for h, r in by_heads.items()} for scale, by_heads in _dominance().items()}

    def dominates(scale: float) -> tuple[Check, ...]:
        ratios = found[scale]
        return (
            at_least(f"|H_o| / |H_f| at H = 4, tokens of scale {scale:g}", ratios[4], 3),
            at_least(f"growth of |H_o| / |H_f| from H = 1 to 4, tokens of scale {scale:g}", ratios[4] / ratios[1], 1.5),
        )

    shown = "; ".join(
        f"scale {scale:g}: " + ", ".join(f"{r:.2g}" for r in ratios.values()) for scale, ratios in found.items()
    )
    return Finding(
        checks=tuple(check for scale in found for check in dominates(scale)),
        conditional=dominates(0.1),
        support=(at_most("|H_o| / |H_f| at H = 4, tokens of scale 1", found[1.0][4], 3),),
        example=f"|H_o| / |H_f| for H = 1, 2, 4: {shown}.",
        curves=Curves.log_log(
            "heads H",
            "|H_o| / |H_f|",
            {f"tokens of scale {s:g}": (tuple(map(float, HEADS)), tuple(r.values())) for s, r in found.items()},
        ),
    )


VALUE_SHAPES = ((5, 4, 2), (4, 3, 3), (6, 5, 1))
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

    def by_autograd(self) -> DenseHessians:
        """Automatic differentiation of the attention layer."""
        return DenseHessians(lambda w: self.attention @ self.X @ w["O"] @ w["U"], self.values, mean_square(self.Y))

    def as_mlp(self, scale: float = 1.0, target: float = 1.0) -> DenseHessians:
        """Automatic differentiation of a linear two-layer MLP with input `scale` times M_1."""
        M_1 = scale * (self.attention @ self.X)
        return DenseHessians(lambda w: M_1 @ w["O"] @ w["U"], self.values, mean_square(target * self.Y))


def factored(seed: int, length: int, d: int, rank: int) -> Factored:
    """Random weights N(0, 1/d), tokens and target N(0, 1)."""
    first = 500 * seed
    Q, K, inner = (normal(first + i, d, rank) / d**0.5 for i in range(3))
    outer = normal(first + 3, rank, d) / d**0.5
    return Factored(normal(first + 4, length, d), normal(first + 5, length, d), Q, K, {"O": inner, "U": outer})


@measured
def heads() -> tuple[Factored, ...]:
    """Three seeds of every shape."""
    return tuple(factored(seed, *shape) for shape in VALUE_SHAPES for seed in seeds(3))


@claim("P56")
def factored_values_are_an_mlp() -> Finding:
    """The layer against the MLP."""
    pairs = [(head.by_autograd(), head.as_mlp()) for head in heads()]
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
    head = DenseHessians(lambda w: moment * w["O"] @ w["U"], {"O": one, "U": one}, mean_square(one))
    return float(head.block("functional", "O", "U")), 2 * moment * (moment - 1)


def _line(head: Factored, target: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scales = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
    return scales, tuple(float(head.as_mlp(s, target).block("functional", "O", "U").norm()) for s in scales)
