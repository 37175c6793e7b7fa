"""Blocks of one layer: what they depend on, powers of the weights, and temperature."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, as_printed, at_least, at_most, close, share
from hessianlab.claims.quantities import (
    EXACT,
    block_norm,
    farthest,
    gap,
    largest,
    same,
    slope,
    smallest,
    value_functional_checks,
)
from hessianlab.claims.samples import Sample, described, holding, numbers, sample, samples_of, small_samples
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

THEOREMS = {"outer": "theorem_3_1", "functional": "theorem_3_2"}


def printed(part: str, one: Sample, row: str, column: str) -> Tensor:
    """A block as Theorem 3.1 or 3.2 writes it."""
    block: Tensor = getattr(paper, THEOREMS[part])(one.setting, row, column)
    return block


def block_checks(part: str, pairs: tuple[str, ...]) -> tuple[Check, ...]:
    """The theorem's blocks against automatic differentiation, one check per block."""
    return tuple(
        same(
            f"{part} block {pair}",
            ((printed(part, s, *pair), s.by_autograd.block(part, *pair)) for s in small_samples()),
        )
        for pair in pairs
    )


@claim("P1")
def gauss_newton_decomposition() -> Finding:
    """Equation (2) with the layout of Equation (4)."""
    gaps, asymmetries, sizes = [], [], []
    for one in small_samples():
        stacked, rows = _stacked_second_derivative(one)
        weighted = torch.kron(one.by_autograd.gradient.reshape(1, -1), torch.eye(rows, dtype=one.X.dtype)) @ stacked
        gaps.append(gap(one.by_autograd.outer + weighted, one.by_autograd.full))
        asymmetries += [gap(part, part.T) for part in (one.by_autograd.outer, weighted)]
        sizes.append(stacked.shape[0] == one.Y.numel() * rows)
    return Finding(
        checks=(
            at_most("H - H_o - H_f, largest relative difference", gaps, EXACT),
            at_most("H_o and H_f minus their transposes, largest relative difference", asymmetries, EXACT),
            share("second derivatives with L d_V p q rows", sum(sizes), len(sizes)),
        )
    )


def _stacked_second_derivative(one: Sample) -> tuple[Tensor, int]:
    by_autograd = one.by_autograd
    flat = torch.cat([w.reshape(-1) for w in one.weights.values()])
    first = torch.func.jacrev(lambda w: by_autograd.output(w).reshape(-1))
    second: Tensor = torch.func.jacrev(lambda w: first(w).reshape(-1))(flat)
    return second, len(flat)


@claim("P3")
def outer_product_theorem() -> Finding:
    """The four printed blocks."""
    return Finding(checks=block_checks("outer", ("VV", "QQ", "VQ", "QK")))


@claim("P4")
def key_blocks() -> Finding:
    """Symmetric in form; not by exchange of the two names."""
    exchanged = [_exchange_ratio(s) for s in small_samples()]
    one = sample(first_seed(), 2, 2, 1)
    return Finding(
        checks=tuple(c for part in THEOREMS for c in block_checks(part, ("KK", "VK", "QK"))),
        support=(
            at_least(
                "norm of KK over that of QQ with W_Q and W_K exchanged, largest distance from 1",
                largest(abs(r - 1) for r in exchanged),
                0.1,
            ),
        ),
        example=f"{described(one)}: H_o(K,K) = {numbers(one.by_autograd.block('outer', 'K', 'K'))}, and H_o(Q,Q) "
        f"with W_Q and W_K exchanged = {numbers(_exchanged(one).by_autograd.block('outer', 'Q', 'Q'))}.",
    )


def _exchanged(one: Sample) -> Sample:
    w = one.weights
    return Sample(one.X, one.Y, {"Q": w["K"], "K": w["Q"], "V": w["V"]})


def _exchange_ratio(one: Sample) -> float:
    other = _exchanged(one).by_autograd.block("outer", "Q", "Q")
    return float(one.by_autograd.block("outer", "K", "K").norm() / other.norm())


@claim("P5")
def value_block_without_functional_part() -> Finding:
    """F is linear in W_V."""
    return Finding(checks=value_functional_checks())


@claim("P6")
def functional_theorem() -> Finding:
    """The printed blocks and the two derived ones; both summands of QK are needed."""
    summands = [paper.theorem_3_2_query_key(s.setting) for s in small_samples()]
    share = smallest(float(min(a.norm(), b.norm()) / (a + b).norm()) for a, b in summands)
    return Finding(
        checks=(
            *block_checks("functional", ("QQ", "VQ", "QK", "KK", "VK")),
            at_least("smaller summand of QK over the block, smallest", share, 1e-3),
        )
    )


@claim("P7")
def sizes_of_the_building_blocks() -> Finding:
    """Shapes of Z_1, Z_2, S and R."""
    found: dict[str, list[bool]] = {name: [] for name in ("Z_1", "Z_2", "S", "R_{d_V}", "R_{d_V d_K}")}
    for one in small_samples():
        (L, d, k), setting = one.shape, one.setting
        found["Z_1"].append(tuple(setting.Z_1.shape) == (L * d, d**2))
        found["Z_2"].append(tuple(setting.Z_2.shape) == (L * d**3, d**2))
        found["S"].append(tuple(paper.shuffling_matrix(d).shape) == (d**3, d))
        for name, m in zip(("R_{d_V}", "R_{d_V d_K}"), (d, d * k), strict=True):
            found[name].append(tuple(paper.duplicated_residual(setting.delta, m).shape) == (m, m * L * d))
    return Finding(
        checks=tuple(share(f"{name} of the stated size", sum(hits), len(hits)) for name, hits in found.items())
    )


POWERS: dict[str, dict[str, tuple[int, int, int]]] = {
    "outer": {"VV": (0, 0, 0), "QQ": (0, 2, 2), "KK": (2, 0, 2), "QK": (1, 1, 2), "VQ": (0, 1, 1), "VK": (1, 0, 1)},
    "functional": {"QQ": (0, 2, 1), "VQ": (0, 1, 0)},
}
"""Powers of W_Q, W_K and W_V that Section 3.3 states, by part and block."""


@measured
def _samples() -> tuple[Sample, ...]:
    return samples_of(((5, 3, 2), (4, 3, 3)), 5)


@measured
def _powers() -> dict[tuple[str, str, str, str], list[float]]:
    """log2 of what doubling one weight does to a block, the attention matrix held; for every sample.

    Keys are part, block, weight, and what the residual does: "held", or "moving" with the weights as F - Y does.
    """
    found: dict[tuple[str, str, str, str], list[float]] = {}
    for one in _samples():
        for residual in ("held", "moving"):
            before = _norms(_hessian(one, one.weights, residual))
            for weight in "QKV":
                doubled = {**one.weights, weight: 2 * one.weights[weight]}
                after = _norms(_hessian(one, doubled, residual))
                for (part, block), norm in after.items():
                    power = round(math.log2(norm / before[part, block]), 9) + 0.0
                    found.setdefault((part, block, weight, residual), []).append(power)
    return found


def _norms(H: AttentionHessian) -> dict[tuple[str, str], float]:
    return {(p, b): block_norm(H, p, b) for p, blocks in POWERS.items() for b in blocks}


def _hessian(one: Sample, weights: dict[str, Tensor], residual: str) -> AttentionHessian:
    layer = holding(one.layer.with_parameters(weights), one.X, one.setting.A)
    if residual == "moving":
        return attention_hessian(layer, one.X, SquareLoss(one.Y))
    return one.held(layer)


def _checks(part: str, residual: str) -> tuple[Check, ...]:
    """One check per weight: its power in every block, at the sample farthest from what is stated."""
    checks = []
    for i, weight in enumerate("QKV"):
        stated = {block: powers[i] for block, powers in POWERS[part].items()}
        worst = [farthest(_powers()[part, block, weight, residual], power) for block, power in stated.items()]
        name = f"powers of W_{weight} in {part} {', '.join(stated)}, residual {residual}, farthest of {len(_samples())}"
        checks.append(as_printed(name, worst, [f"{p:.2f}" for p in stated.values()]))
    return tuple(checks)


@claim("P41")
def powers_of_the_weights() -> Finding:
    """Explicit powers; the residual brings W_V in a second time."""
    outer, held = _checks("outer", "held"), _checks("functional", "held")
    moved = _powers()["functional", "VQ", "V", "moving"]
    most = max(range(len(moved)), key=lambda i: abs(moved[i]))
    one, kept = _samples()[most], _powers()["functional", "VQ", "V", "held"][most]
    return Finding(
        checks=(*outer, *_checks("functional", "moving")),
        conditional=(*outer, *held),
        support=held,
        example=f"L = {one.shape[0]}, d_V = {one.shape[1]}, d_K = {one.shape[2]}: doubling W_V multiplies the norm of"
        f" functional VQ by {2 ** moved[most]:.3f}; with the residual held it stays (factor"
        f" {2**kept:.3f}).",
    )


TEMPERATURES = (0.003, 0.01, 0.03, 0.1, 1.0, 10.0, 100.0, 1000.0)
LATE = (1e3, 1e4)
PARTS = {"t_outer": 2, "t_functional": 1}
"""Parts of the query-key Hessian and the power of 1/t the paper gives them."""

NAMES = {"t_outer": "T-outer-product", "t_functional": "T-functional"}


@measured
def _temperature_samples() -> tuple[Sample, ...]:
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
    free = {p: [block_norm(_at(s, 2.0), p) / block_norm(_at(s, 1.0), p) for s in _temperature_samples()] for p in PARTS}
    held = {
        p: [block_norm(_explicit(s, 2.0), p) / block_norm(s.hessian, p) for s in _temperature_samples()] for p in PARTS
    }
    late = {p: [slope(LATE, [block_norm(_at(s, t), p) for t in LATE]) for s in _temperature_samples()] for p in PARTS}
    small = sample(first_seed(), 2, 1, 1)
    ratios = {p: block_norm(_at(small, 2.0), p) / block_norm(_at(small, 1.0), p) for p in PARTS}

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
        curves=_factor_curves(_temperature_samples()[max(range(10), key=lambda i: abs(free["t_outer"][i] - 0.25))]),
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
    ratios = [[_ratio(s, t) for t in TEMPERATURES] for s in _temperature_samples()]
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


@claim("P68")
def batches() -> Finding:
    """Block by block, for a mean loss."""
    gaps: dict[str, list[float]] = {"outer": [], "functional": []}
    for seed in seeds(3):
        drawn = [sample(seed + 100 * n, 5, 4, 3) for n in range(3)]
        X, Y = (torch.stack([getattr(one, name) for one in drawn]) for name in ("X", "Y"))
        whole = attention_hessian(drawn[0].layer, X, SquareLoss(Y))
        single = [attention_hessian(drawn[0].layer, one.X, SquareLoss(one.Y)) for one in drawn]
        for part, found in gaps.items():
            for row, column in (("V", "V"), ("Q", "Q"), ("V", "Q"), ("Q", "K")):
                mean = torch.stack([H.part(part)[row, column].to_dense() for H in single]).mean(0)
                found.append(gap(whole.part(part)[row, column].to_dense(), mean))
    return Finding(
        checks=tuple(
            at_most(f"{part} blocks of three sequences minus their mean, largest", v, EXACT) for part, v in gaps.items()
        )
    )
