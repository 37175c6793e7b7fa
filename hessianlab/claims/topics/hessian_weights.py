"""How the blocks depend on the weight matrices, beyond the attention scores."""

from __future__ import annotations

import math

from torch import Tensor

from hessianlab.claims.definition import claim, measured
from hessianlab.claims.finding import Check, Finding, as_printed
from hessianlab.claims.quantities import block_norm, farthest
from hessianlab.claims.samples import Sample, holding, samples_of
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

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
    """One check a weight: its power in every block, at the sample farthest from what is stated."""
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
