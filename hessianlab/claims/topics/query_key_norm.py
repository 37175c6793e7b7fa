"""Norms of queries and keys, and sinks: the gap between blocks, powers, logits, and the moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as nnf

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Check, Finding, at_least, at_most, close
from hessianlab.claims.quantities import farthest
from hessianlab.experiments.models import LoneLayer, lone_layer
from hessianlab.experiments.statistics import geometric_mean, log_log_slope
from hessianlens.attention import QueryKeyNorm, SelfAttention, first_moment, second_moment

LAYERS = 5
D_MODEL, D_K, LENGTH = 8, 4, 12
SCALES = (0.003, 0.03, 0.3, 3.0)
SMALL = (0.003, 0.01, 0.03)
BELOW_EPS = (1e-5, 3e-5, 1e-4)
GAINS = (0.1, 1.0, 3.0)
LOGITS = (-4.0, -2.0, 0.0, 2.0, 4.0, 8.0)
COMMON_PARTS = (0.0, 1.0, 5.0)
"""Of the tokens, in standard deviations."""
ROUNDED = 1 + 1e-9
"""One, up to rounding."""


def _setting(seed: int, scale: float, gain: float | None, eps: float = 1e-12) -> LoneLayer:
    """A layer; without norms, if no gain is given."""
    found = lone_layer(D_MODEL, D_K, LENGTH, seed, token_std=scale)
    if gain is None:
        return found
    norm = QueryKeyNorm("rms", gain=torch.full((D_K,), gain, dtype=torch.float64), eps=eps)
    return replace(found, layer=replace(found.layer, query_norm=norm, key_norm=norm))


def _mean_norm(part: str, block: str, scale: float, gain: float | None, eps: float = 1e-12) -> float:
    found = [_setting(seed, scale, gain, eps).hessian().part(part)[block, block] for seed in seeds(LAYERS)]
    return float(geometric_mean([float(one.frobenius_norm()) for one in found]))


def _ratios(gain: float | None) -> list[float]:
    """The Gauss-Newton norm of queries over that of values, along the scale of the tokens."""
    return [_mean_norm("outer", "Q", s, gain) / _mean_norm("outer", "V", s, gain) for s in SCALES]


@measured
def _all_ratios() -> dict[float | None, list[float]]:
    return {gain: _ratios(gain) for gain in (None, *GAINS, 0.01)}


@claim("D1")
def gap_of_blocks() -> Finding:
    """The ratio of the two blocks, along the scale of the tokens and the gain."""
    found = _all_ratios()

    def even(gain: float) -> tuple[Check, ...]:
        ratios = found[gain]
        return (
            at_most(f"gain {gain:g}: ratio of the blocks, or its inverse", [*ratios, *(1 / r for r in ratios)], 4),
            at_most(f"gain {gain:g}: largest over smallest ratio", max(ratios) / min(ratios), 1.01),
        )

    power = torch.tensor([found[0.1][0] / found[0.01][0]]).log10().item()
    return Finding(
        checks=tuple(check for gain in GAINS for check in even(gain)),
        conditional=even(1.0),
        support=(
            close("power of the gain in the ratio, 0.01 to 0.1", power, 4, 0.2),
            at_least("without norms: largest over smallest ratio", max(found[None]) / min(found[None]), 1e6),
        ),
        numbers={"ratio": found[1.0][0], "plain_low": min(found[None]), "plain_high": max(found[None])},
        example="ratio by the scale of the tokens, "
        + "; ".join(
            f"{name}: {', '.join(f'{r:.2g}' for r in found[gain])}"
            for name, gain in (("no norm", None), *((f"gain {gain:g}", gain) for gain in GAINS))
        )
        + ".",
    )


def _power(part: str, block: str, gain: float | None, scales: Sequence[float], eps: float = 1e-12) -> float:
    slope = log_log_slope(list(scales), [_mean_norm(part, block, scale, gain, eps) for scale in scales])
    assert slope is not None
    return float(slope)


POWERS = {("outer", "Q"): 2, ("outer", "K"): 2, ("outer", "V"): 2, ("functional", "Q"): 1, ("functional", "K"): 1}
PLAIN_POWERS = {("outer", "Q"): 6, ("functional", "Q"): 5, ("outer", "V"): 2}


@claim("D2")
def powers_with_norms() -> Finding:
    """Powers with norms and without, and where eps takes over."""

    def normed(scales: Sequence[float], eps: float) -> tuple[Check, ...]:
        return tuple(
            close(
                f"{part} {b} {b}, eps {eps:g}, scale from {scales[0]:g}", _power(part, b, 1.0, scales, eps), power, 0.1
            )
            for (part, b), power in POWERS.items()
        )

    plain = tuple(
        close(f"{part} {b} {b} without norms", _power(part, b, None, SMALL), power, 0.1)
        for (part, b), power in PLAIN_POWERS.items()
    )
    below = _power("outer", "Q", 1.0, BELOW_EPS, 1e-6)
    inside = (*normed(SMALL, 1e-12), *plain)
    return Finding(
        checks=(*inside, *normed(BELOW_EPS, 1e-6)),
        conditional=inside,
        support=(close("Gauss-Newton block of queries below eps", below, 6, 0.2),),
        numbers={"below": below},
        example="power of the Gauss-Newton block of queries with eps 1e-6: "
        f"{_power('outer', 'Q', 1.0, SMALL, 1e-6):.2f} at scales of 0.003 to 0.03, {below:.2f} at 1e-5 to 1e-4.",
    )


@claim("D3")
def bounded_logits() -> Finding:
    """Logits and attention for weights of any size."""
    sizes = {gain: [_largest(seed, gain, 10.0**k) for seed in seeds(LAYERS) for k in range(5)] for gain in (1.0, 10.0)}
    bounded = {gain: max(logit for logit, _ in found) / (gain**2 * D_K**0.5) for gain, found in sizes.items()}
    weights = {gain: max(weight for _, weight in found) for gain, found in sizes.items()}
    bounds = tuple(
        at_most(f"gain {gain:g}: largest logit over g^2 sqrt(d_K)", bounded[gain], 1 + 1e-9) for gain in sizes
    )
    soft = {gain: at_most(f"gain {gain:g}: largest weight of a row", weights[gain], 0.999) for gain in sizes}
    return Finding(
        checks=(*bounds, *soft.values()),
        conditional=(*bounds, soft[1.0]),
        support=(at_least("gain 10: largest weight of a row", weights[10.0], 0.999),),
        numbers={"largest": weights[10.0]},
        example="largest weight of a row, W_Q and W_K enlarged up to 10^4: "
        + ", ".join(f"{weights[gain]:.3f} at gain {gain:g}" for gain in weights)
        + f"; largest logit {bounded[1.0]:.3f} of g^2 sqrt(d_K).",
    )


def _largest(seed: int, gain: float, factor: float) -> tuple[float, float]:
    """The largest logit, and the largest weight, of a layer whose query and key weights are larger."""
    setting = _setting(seed, 1.0, gain)
    weights = {name: factor * W if name in "QK" else W for name, W in setting.layer.parameters.items()}
    state = setting.layer.with_parameters(weights).attend(setting.X[None])
    return float(state.scores.abs().max()), float(state.weights.max())


@claim("D4")
def says_nothing() -> Finding:
    """Outputs of a layer all of whose scores are low."""
    shares = [_shifted_outputs(seed) for seed in seeds(LAYERS)]
    return Finding(
        checks=(
            at_most("with a sink: size of the output, of the unshifted", [sunk for sunk, _ in shares], 1e-6),
            close("without: the same", farthest([plain for _, plain in shares], 1), 1, 1e-9),
        ),
    )


def _shifted_outputs(seed: int) -> tuple[float, float]:
    setting = _setting(seed, 1.0, None)
    low = torch.full((LENGTH, LENGTH), -20.0, dtype=torch.float64)
    plain, shifted = setting.layer(setting.X), replace(setting.layer, bias=low)
    sunk = replace(shifted, sink=0.0)(setting.X)
    return float(sunk.norm() / plain.norm()), float(shifted(setting.X).norm() / plain.norm())


@claim("D5")
def moments_with_a_sink() -> Finding:
    """The first two moments of every row with a sink and without."""
    rows = {
        part: [row for seed in seeds(LAYERS) for sink in LOGITS for row in _rows(seed, part, sink)]
        for part in COMMON_PARTS
    }
    every = [row for several in rows.values() for row in several]
    first = at_most("first moment over that without a sink, over 1 - a, minus one", [row.first for row in every], 1e-9)
    spread = [row for row in every if row.mean_square <= 1]
    larger = max(row.second for row in rows[COMMON_PARTS[-1]])
    return Finding(
        checks=(
            first,
            *(
                at_most(
                    f"common part {part:g}: trace of M_2 over that without a sink", [r.second for r in several], ROUNDED
                )
                for part, several in rows.items()
            ),
        ),
        conditional=(
            first,
            at_most(f"{len(spread)} rows with |m|^2 <= tr C: the same", [row.second for row in spread], ROUNDED),
        ),
        support=(
            at_most("M_2 against (1 - a) (C + a m m^T), relative", [row.off for row in every], 1e-9),
            at_least(f"common part {COMMON_PARTS[-1]:g}: largest trace of M_2 over that without a sink", larger, 2),
            at_least(
                f"common part {COMMON_PARTS[-1]:g}: largest Gauss-Newton block of queries over that without a sink",
                max(largest for seed in seeds(LAYERS) for largest in _query_blocks(seed)),
                2,
            ),
        ),
        numbers={"largest": larger, "share": sum(row.second > 1 for row in every) / len(every)},
        example="two tokens 9 and 11 with weights 1/2 have M_1 = 10, M_2 = 1; a sink with a = 1/2 leaves M_1 = 5 and "
        f"makes M_2 = {_two_tokens():g}.",
    )


def _query_blocks(seed: int) -> list[float]:
    """By the sink's logit, the Gauss-Newton norm of queries over that without a sink; of tokens far from zero."""
    setting = _setting(seed, 1.0, None)

    def norm(sink: float | None) -> float:
        found = replace(setting, layer=replace(setting.layer, sink=sink), X=setting.X + COMMON_PARTS[-1]).hessian()
        return float(found.outer["Q", "Q"].frobenius_norm())

    without = norm(None)
    return [norm(logit) / without for logit in LOGITS]


def _two_tokens() -> float:
    tokens = torch.tensor([[9.0], [11.0], [0.0]], dtype=torch.float64)
    return float(_row_moments(torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64), tokens)[1])


@dataclass(frozen=True)
class _Row:
    """A row of attention with a sink, beside the same without.

    Attributes:
        first: By how much the first moment, over 1 - a, differs from that without.
        second: Trace of the second moment over that without.
        off: Error of the formula for the second moment.
        mean_square: ``|m|^2 / tr C`` without.
    """

    first: float
    second: float
    off: float
    mean_square: float


def _rows(seed: int, common: float, logit: float) -> list[_Row]:
    """All rows of a layer whose tokens share a common part."""
    setting = _setting(seed, 1.0, None)
    X = setting.X + common
    A, sunk = setting.layer.attend(X[None]).weights[0], _with_sink(setting.layer, X, logit)
    found = []
    for plain, with_sink in zip(A, sunk, strict=True):
        (m, C), (first, second) = _row_moments(plain, X), _row_moments(with_sink, nnf.pad(X, (0, 0, 0, 1)))
        left, a = with_sink[:-1].sum(), with_sink[-1]
        off = (second - left * (C + a * torch.outer(m, m))).norm() / second.norm()
        moved = (first / left - m).norm() / m.norm()
        found.append(_Row(float(moved), float(second.trace() / C.trace()), float(off), float(m @ m / C.trace())))
    return found


def _with_sink(layer: SelfAttention, X: Tensor, logit: float) -> Tensor:
    return replace(layer, sink=logit).attend(X[None]).weights[0]


def _row_moments(weights: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    row = weights[None]
    return first_moment(row, tokens)[0], second_moment(row, tokens)[0]
