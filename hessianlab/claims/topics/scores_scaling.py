"""How large scores are: the reason for the square root of d_K."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Finding, close
from hessianlab.claims.score_rows import dot_products

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
        told={"narrow": mean[64], "wide": mean[512], "widest": mean[2048]},
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
