"""Sizes of scores: scaling by the square root of the width, and peaked attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import dot_products, softmax
from hessianlens.attention import SelfAttention, attention_entropy

WIDTHS = (64, 512, 2048)
"""Widths of queries and keys that the article names."""


@claim("C14")
def magnitudes() -> Finding:
    """The root mean square, not the mean magnitude."""
    seed = first_seed()
    printed = (8, 23, 45)
    products = {d_k: dot_products(seed + d_k, d_k, 20_000) for d_k in WIDTHS}
    mean = {d_k: float(found.abs().mean()) for d_k, found in products.items()}
    rms = {d_k: float(found.square().mean().sqrt()) for d_k, found in products.items()}
    return Finding(
        checks=tuple(
            close(f"mean |q.k|, d_K = {d_k}", mean[d_k], figure, 0.05 * figure)
            for d_k, figure in zip(WIDTHS, printed, strict=True)
        ),
        conditional=tuple(
            close(f"root mean square of q.k, d_K = {d_k}", rms[d_k], figure, 0.05 * figure)
            for d_k, figure in zip(WIDTHS, printed, strict=True)
        ),
        support=tuple(
            close(f"mean |q.k| over sqrt(2 d_K/pi), d_K = {d_k}", mean[d_k] / math.sqrt(2 * d_k / math.pi), 1.0, 0.02)
            for d_k in WIDTHS
        ),
        example=f"d_K = 64: root mean square {rms[64]:.2f}, mean magnitude {mean[64]:.2f}, sqrt(2 x 64/pi) = "
        f"{math.sqrt(128 / math.pi):.2f}.",
        numbers={"narrow": mean[64], "wide": mean[512], "widest": mean[2048]},
    )


@claim("C22")
def variance() -> Finding:
    """True of independent, centred components."""
    seed = first_seed()
    independent = tuple(
        close(f"variance over d_K = {d_k}, {name} components", _variance(draw, seed, d_k), 1.0, 0.05)
        for d_k in (16, 64, 256)
        for name, draw in _INDEPENDENT.items()
    )
    other = {name: _variance(draw, seed, 64) for name, draw in _UNIT_VARIANCE.items()}
    return Finding(
        checks=independent
        + tuple(close(f"variance over d_K = 64, {name}", value, 1.0, 0.05) for name, value in other.items()),
        conditional=independent,
        support=(
            close("variance over d_K = 64, all components equal", other["all components equal"], 64.0, 6.4),
            close("variance over d_K = 64, mean one", other["components of mean one"], 3.0, 0.15),
            close("variance over d_K = 64, query equal to key", other["query equal to key"], 2.0, 0.1),
        ),
        example="d_K = 2 with both components of q equal to a, both of k equal to b: q.k = 2ab has variance 4, not "
        f"2 (measured {2 * _variance(_UNIT_VARIANCE['all components equal'], seed, 2):.2f}).",
    )


_Draw = Callable[[int, int], tuple[Tensor, Tensor]]
_PAIRS = 20_000


def _variance(draw: _Draw, seed: int, d_k: int) -> float:
    q, k = draw(seed, d_k)
    return float((q * k).sum(-1).var()) / d_k


def _uniform(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, k = torch.rand(2, _PAIRS, d_k, generator=torch.Generator().manual_seed(seed + d_k))
    return (q - 0.5) * math.sqrt(12), (k - 0.5) * math.sqrt(12)


def _normal(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, k = torch.randn(2, _PAIRS, d_k, generator=torch.Generator().manual_seed(seed + d_k))
    return q, k


def _signs(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, k = _uniform(seed, d_k)
    return q.sign(), k.sign()


def _equal_components(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, k = _normal(seed, 1)
    return q.expand(-1, d_k), k.expand(-1, d_k)


def _mean_one(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, k = _normal(seed, d_k)
    return q + 1, k + 1


def _query_is_key(seed: int, d_k: int) -> tuple[Tensor, Tensor]:
    q, _ = _normal(seed, d_k)
    return q, q


_INDEPENDENT: dict[str, _Draw] = {"normal": _normal, "uniform": _uniform, "+-1": _signs}
_UNIT_VARIANCE: dict[str, _Draw] = {
    "all components equal": _equal_components,
    "components of mean one": _mean_one,
    "query equal to key": _query_is_key,
}


@claim("C17")
def vanishing_gradient() -> Finding:
    """The scores' gradient vanishes, the values' does not."""
    seed = first_seed()
    bound = max(_jacobian_over_gap(seed + n, n) for n in (3, 10, 30))
    ratios = [_gradients(seed + n, _one_hot_temperature(seed + n)) / _gradients(seed + n, 1.0) for n in range(5)]
    largest, least = torch.stack(ratios).amax(0), torch.stack(ratios).amin(0)
    scores_vanish = (
        at_most("largest norm of softmax's derivative over 1 - max p", bound, 2 + 1e-9),
        at_most("gradient of W_Q, one-hot attention over soft, largest", float(largest[0]), 1e-6),
        at_most("gradient of W_K, one-hot attention over soft, largest", float(largest[1]), 1e-6),
    )
    steps = tuple(10 ** (-4 + 0.25 * n) for n in range(17))
    series = torch.stack([_gradients(seed, t) for t in steps])
    return Finding(
        checks=(
            *scores_vanish,
            at_most("gradient of W_V, one-hot attention over soft, largest", float(largest[2]), 1e-6),
        ),
        conditional=scores_vanish,
        support=(at_least("gradient of W_V, one-hot attention over soft, smallest", float(least[2]), 0.1),),
        example=f"p = {shown(softmax([10, 0]), 5)}: the derivative by a score is p(1 - p) = {_slope(10):.2g}, against "
        f"{_slope(0):.2g} at p = [0.5, 0.5], while the derivative by the first value is p = {softmax([10, 0])[0]:.5f}.",
        curves=Curves.log_log(
            "temperature",
            "norm of the gradient",
            {f"W_{name}": (steps, tuple(series[:, n].clamp(min=1e-30).tolist())) for n, name in enumerate("QKV")},
        ),
    )


def _slope(score: float) -> float:
    p = softmax([score, 0])[0]
    return p * (1 - p)


def _jacobian_over_gap(seed: int, keys: int) -> float:
    """The largest spectral norm of softmax's derivative over what the largest weight leaves to the others."""
    p = (torch.logspace(-1, 1.5, 100, dtype=torch.float64)[:, None] * normal(seed, 100, keys)).softmax(-1)
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    left = 1 - p.amax(-1)
    kept = left > 1e-8  # below that, 1 - max p is mostly rounding
    return float((torch.linalg.matrix_norm(jacobian, 2)[kept] / left[kept]).max())


def _setting(seed: int) -> tuple[SelfAttention, Tensor, Tensor]:
    """A layer, its tokens and their targets."""
    X, Y = normal(seed + 1000, 2, 9, 8)
    return SelfAttention.random(8, 4, seed=seed, dtype=torch.float64), X, Y


def _one_hot_temperature(seed: int) -> float:
    """The temperature at which the first score of every row leads the second by 40, so that every row is one-hot."""
    layer, X, _ = _setting(seed)
    scores = (X @ layer.W_Q) @ (X @ layer.W_K).T / math.sqrt(layer.d_k)
    first, second = scores.topk(2, -1).values.unbind(-1)
    return float((first - second).min()) / 40


def _gradients(seed: int, temperature: float) -> Tensor:
    """Norms of the gradients of W_Q, W_K, W_V."""
    layer, X, Y = _setting(seed)
    weights = [w.clone().requires_grad_() for w in (layer.W_Q, layer.W_K, layer.W_V)]
    loss = (SelfAttention(*weights, temperature=temperature)(X) - Y).square().mean()
    return torch.stack([gradient.norm() for gradient in torch.autograd.grad(loss, weights)])


@claim("C18")
def one_hot() -> Finding:
    """True of wide heads with unit-variance components."""
    seed = first_seed()
    keys, widths = (16, 64, 256), (64.0, 512.0, 2048.0)
    found = {(n, int(d_k)): _share_over(seed, n, int(d_k)) for d_k in widths for n in keys}
    wide = tuple(_one_hot(found, n, d_k) for d_k in (512, 2048) for n in keys)
    narrow = tuple(_one_hot(found, n, 64) for n in keys)
    fresh = dot_products(seed + 7, 64, 300, 64) * 768 * 0.02**2
    peak = fresh.softmax(-1).amax(-1)
    return Finding(
        checks=(
            *wide,
            *narrow,
            share("rows over 0.9, layer with weights N(0, 0.02^2), 64 keys", int((peak > 0.9).sum()), 300, 0.5),
        ),
        conditional=wide,
        support=(
            at_most("share of rows over 0.9 for d_K = 64, 64 keys", found[64, 64], 0.5),
            at_most("share of rows over 0.9 for d_K = 64, 256 keys", found[256, 64], 0.5),
            at_most("share of rows over 0.9, small weights", float((peak > 0.9).double().mean()), 0.05),
            at_most(
                "share of rows over 0.9, scaled, d_K = 512, 16 keys", _share_over(seed, 16, 512, scaled=True), 0.01
            ),
        ),
        example=f"64 keys, d_K = 64: {found[64, 64]:.0%} of the unscaled rows give one token more than 0.9; d_K = "
        f"2048: {found[64, 2048]:.0%}.",
        curves=Curves(
            "width of queries and keys, d_K",
            "share of rows over 0.9, unscaled",
            {f"{n} keys": (widths, tuple(found[n, int(d)] for d in widths)) for n in keys},
            log_x=True,
        ),
    )


def _share_over(seed: int, keys: int, d_k: int, scaled: bool = False) -> float:
    """The share of rows that give one token more than 0.9."""
    rows = max(100, min(1000, 2**25 // (keys * d_k)))
    scores = dot_products(seed + keys, d_k, rows, keys) / (math.sqrt(d_k) if scaled else 1)
    return float((scores.softmax(-1).amax(-1) > 0.9).double().mean())


def _one_hot(found: dict[tuple[int, int], float], keys: int, d_k: int) -> Check:
    return at_least(f"share of rows over 0.9, {keys} keys, d_K = {d_k}", found[keys, d_k], 0.5)


@claim("C23")
def low_entropy() -> Finding:
    """Only where a row sees enough keys."""
    seed = first_seed()
    keys = (2, 3, 4, 8, 16, 64, 256)
    scaled = {n: _entropies(seed, n, scaled=True) for n in keys}
    unscaled = {n: _entropies(seed, n, scaled=False) for n in keys}
    alarms = {n: at_most(f"share of scaled rows below 1.0, {n} keys", _below(scaled[n]), 0.05) for n in keys}
    xs = tuple(map(float, keys))
    return Finding(
        checks=tuple(alarms.values()),
        conditional=(
            *(alarms[n] for n in keys if n >= 8),
            *(
                at_least(f"share of unscaled rows below 1.0, {n} keys", _below(unscaled[n]), 0.5)
                for n in keys
                if n >= 8
            ),
        ),
        support=(
            at_most("largest entropy of a row of 2 keys (log 2 = 0.693)", float(scaled[2].max()), 0.6932),
            at_least("share of scaled rows below 1.0 bit, 2 keys", _below(scaled[2], math.log(2)), 0.99),
            at_most("share of scaled rows below 1.0 bit, 4 keys", _below(scaled[4], math.log(2)), 0.05),
            close("log n minus mean entropy, scaled, 256 keys", math.log(256) - float(scaled[256].mean()), 0.5, 0.05),
            at_least("smallest mean entropy over log n, scaled", min(_relative(scaled[n], n) for n in keys), 0.7),
            at_most("largest mean entropy over log n, unscaled", max(_relative(unscaled[n], n) for n in keys), 0.3),
        ),
        example=f"two keys with equal scores: entropy log 2 = {math.log(2):.3f} < 1.0 although attention is "
        "perfectly even.",
        curves=Curves(
            "visible keys",
            "mean entropy (nats)",
            {
                "scaled": (xs, tuple(float(scaled[n].mean()) for n in keys)),
                "unscaled, d_K = 64": (xs, tuple(float(unscaled[n].mean()) for n in keys)),
                "log n": (xs, tuple(math.log(n) for n in keys)),
                "the threshold 1.0": (xs, tuple(1.0 for _ in keys)),
            },
            log_x=True,
        ),
    )


def _entropies(seed: int, keys: int, scaled: bool) -> Tensor:
    scores = dot_products(seed + keys, 64, 1000, keys)
    return attention_entropy((scores / 8 if scaled else scores).softmax(-1))


def _below(entropies: Tensor, threshold: float = 1.0) -> float:
    return float((entropies < threshold).double().mean())


def _relative(entropies: Tensor, keys: int) -> float:
    return float(entropies.mean()) / math.log(keys)


@claim("C48")
def negative_scores() -> Finding:
    """By symmetry half of the scores are negative; whole rows are where the first tokens are."""
    seed = first_seed()
    singles, rows = [], []
    for n in range(20):
        X = normal(seed + n, 16, 8)
        head = SelfAttention.random(8, 4, seed=seed + n, dtype=torch.float64)
        scores = (X @ head.W_Q) @ (X @ head.W_K).T
        visible = torch.ones(16, 16, dtype=torch.bool).tril()
        singles.append(float((scores < 0)[visible].double().mean()))
        rows += [(scores[i, : i + 1] < 0).all().item() for i in range(16)]
    share_of_rows = sum(rows) / len(rows)
    return Finding(
        checks=(
            at_least("share of visible scores that are negative, mean", sum(singles) / len(singles), 0.4),
            at_least("share of causal rows all of whose scores are negative", share_of_rows, 0.02),
        ),
        numbers={"rows": share_of_rows},
    )
