"""Several heads: what they share and what they do not (Appendix E)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, true
from hessianlab.claims.quantities import EXACT, block_norm, gap, largest, smallest
from hessianlab.claims.samples import Weights, Witness, attention_output, mean_square, normal, softmax_rows
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
            base = Witness(run, weights, mean_square(Y))
            Q, K, V = (torch.stack([weights[f"{n}{h}"] for h in range(heads)]) for n in "QKV")
            setting = PrintedMultiHead(X, Q, K, V, Y)
            for name in ("Q", "K", "V"):
                before = base.jacobian[:, base.place(f"{name}0")]
                after = [Witness(run, _redrawn(weights, seed + 7, h), mean_square(Y)) for h in (1, 0)]
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
                witness = Witness(partial(output, X, heads), weights, loss)
                pairs = [(r, c) for r in weights for c in weights if r[1] != c[1]]
                outer.append(smallest(float(witness.block("outer", *pair).norm()) for pair in pairs))
                size = float(witness.functional.norm())
                across[name].append(
                    largest(float(witness.block("functional", *pair).abs().max()) / size for pair in pairs)
                )
    return Finding(
        checks=(
            *(at_most(f"largest functional entry between heads, {n}", v, 1e-14) for n, v in across.items()),
            at_least("smallest norm of the outer product between heads", outer, 1e-6),
        )
    )


def many_heads(seed: int, heads: int, scale: float) -> AttentionHessian:
    """Heads of width d / H at d = 16, ten tokens of the given scale, square loss."""
    d = 16
    X, Y = scale * normal(seed + 300, 10, d), normal(seed + 301, 10, d)
    w = head_weights(seed, d, d // heads, heads)
    layers = [SelfAttention(w[f"Q{h}"], w[f"K{h}"], w[f"V{h}"]) for h in range(heads)]
    return attention_hessian(MultiHeadAttention(layers), X, SquareLoss(Y))


def zero_share(heads: int, d: int = 8) -> float:
    """Share of exactly zero entries of the functional Hessian at width d."""
    shares = []
    for seed in seeds(2):
        w = head_weights(seed, d, d // heads, heads)
        layer = MultiHeadAttention([SelfAttention(w[f"Q{h}"], w[f"K{h}"], w[f"V{h}"]) for h in range(heads)])
        X, Y = normal(seed + 300, 6, d), normal(seed + 301, 6, d)
        matrix = attention_hessian(layer, X, SquareLoss(Y)).functional[:].to_dense()
        shares.append(float((matrix == 0).double().mean()))
    return smallest(shares)


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
