"""What a temperature does to the two parts of the query-key Hessian."""

from __future__ import annotations

import math
from dataclasses import replace

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close
from hessianlab.claims.quantities import block_norm, slope
from hessianlab.claims.samples import Sample, described, holding, sample, samples_of
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

TEMPERATURES = (0.003, 0.01, 0.03, 0.1, 1.0, 10.0, 100.0, 1000.0)
LATE = (1e3, 1e4)
PARTS = {"t_outer": 2, "t_functional": 1}
"""Parts of the query-key Hessian and the power of 1/t the paper gives them."""

NAMES = {"t_outer": "T-outer-product", "t_functional": "T-functional"}


@measured
def _samples() -> tuple[Sample, ...]:
    return samples_of(((6, 4, 3), (5, 3, 3)), 5)


def _at(one: Sample, temperature: float) -> AttentionHessian:
    """The Hessian at a temperature, everything else that depends on it moving along."""
    return attention_hessian(replace(one.layer, temperature=temperature), one.X, SquareLoss(one.Y))


def _explicit(one: Sample, temperature: float) -> AttentionHessian:
    """Only the factors: attention matrix, residual and loss curvature held at temperature one."""
    layer = holding(replace(one.layer, temperature=temperature), one.X, one.setting.A)
    return attention_hessian(layer, one.X, grad=one.hessian.loss.gradient[0], curvature=2 / one.Y.numel())


@claim("P49")
def temperature_factors() -> Finding:
    """The explicit factors; the attention matrix moves with t too."""
    free = {p: [block_norm(_at(s, 2.0), p) / block_norm(_at(s, 1.0), p) for s in _samples()] for p in PARTS}
    held = {p: [block_norm(_explicit(s, 2.0), p) / block_norm(s.hessian, p) for s in _samples()] for p in PARTS}
    late = {p: [slope(LATE, [block_norm(_at(s, t), p) for t in LATE]) for s in _samples()] for p in PARTS}
    small = sample(first_seed(), 2, 1, 1)
    ratios = {p: block_norm(_at(small, 2.0), p) / block_norm(_at(small, 1.0), p) for p in PARTS}

    def farthest(values: list[float], wanted: float) -> float:
        return max(values, key=lambda v: abs(v - wanted))

    return Finding(
        checks=tuple(
            close(f"{NAMES[p]} at t = 2 over t = 1, farthest of 10", free[p], 2.0**-e, 0.01 * 2.0**-e)
            for p, e in PARTS.items()
        ),
        conditional=tuple(
            close(f"{NAMES[p]}, attention and residual held, farthest of 10", held[p], 2.0**-e, 1e-9)
            for p, e in PARTS.items()
        ),
        support=(
            *(
                close(f"{NAMES[p]}: power of t, t = 1,000 to 10,000, farthest of 10", late[p], -e, 0.05)
                for p, e in PARTS.items()
            ),
        ),
        example=f"{described(small)}: from t = 1 to t = 2 the norm of the T-outer-product Hessian is multiplied by"
        f" {ratios['t_outer']:.3f} (claimed 0.25), that of the T-functional by {ratios['t_functional']:.3f} (claimed"
        " 0.5).",
        curves=_factor_curves(_samples()[max(range(10), key=lambda i: abs(free["t_outer"][i] - 0.25))]),
    )


def _factor_curves(one: Sample) -> Curves:
    """Norms over those at t = 1, the claimed factors beside them."""
    ts = (1.0, 2.0, 4.0, 10.0, 30.0, 100.0)
    drawn = {}
    for part, power in PARTS.items():
        drawn[NAMES[part]] = (ts, tuple(block_norm(_at(one, t), part) / block_norm(one.hessian, part) for t in ts))
        drawn[f"1/t^{power}" if power > 1 else "1/t"] = (ts, tuple(t**-power for t in ts))
    return Curves.log_log("temperature", "norm over that at t = 1", drawn)


@claim("P50")
def temperature_limits() -> Finding:
    """The ratio grows with t at both ends."""
    ratios = [[_ratio(s, t) for t in TEMPERATURES] for s in _samples()]
    cold = [r[0] for r in ratios if math.isfinite(r[0])]
    return Finding(
        checks=(
            at_least("T-functional over T-outer-product at t = 1000, smallest of 10", (r[-1] for r in ratios), 10),
            at_most(f"T-functional over T-outer-product at t = 0.003, largest of {len(cold)}", cold, 0.5),
            at_least("layers of 10 in which both parts are above zero at t = 0.003", len(cold), 3),
            close("power of t in the ratio, t = 100 to 1000, mean", _mean_slope(ratios), 1, 0.05),
        ),
        curves=Curves.log_log(
            "temperature",
            "T-functional over T-outer-product norm",
            {f"seed {s}": (TEMPERATURES[1:], tuple(r[1:])) for s, r in zip(seeds(5), ratios, strict=False)},
        ),
    )


def _ratio(one: Sample, temperature: float) -> float:
    """T-functional over T-outer-product norm; not a number where both are too small for float64."""
    H = _at(one, temperature)
    outer = block_norm(H, "t_outer")
    return block_norm(H, "t_functional") / outer if outer > 1e-290 else math.nan


def _mean_slope(ratios: list[list[float]]) -> float:
    return sum(slope(TEMPERATURES[-2:], r[-2:]) for r in ratios) / len(ratios)
