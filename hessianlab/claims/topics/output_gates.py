"""Gates of the output and of the values: sharpness, the gap between blocks, and signs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close
from hessianlab.claims.quantities import ROUNDING, farthest, relative_minimum
from hessianlab.claims.samples import normal
from hessianlab.experiments.models import LoneLayer, lone_layer
from hessianlab.experiments.statistics import geometric_mean, log_log_slope
from hessianlens.attention import ValueGate
from hessianlens.layer import AttentionHessian, predicted_growth

LAYERS = 5
D_MODEL, D_K, LENGTH = 8, 4, 12
SCALES = (0.003, 0.3, 3.0)
SMALL = (0.003, 0.01, 0.03)
GATE_STDS = (0.0, 1.0, 10.0)
"""Of gate weights, times 1 / sqrt(d)."""
VALUE_SCALES = (1.0, 10.0)
SCORE_WEIGHT_SCALES = (1.0, 10.0)
SMALL_LOGIT = 0.1
FUNCTIONS = ("linear", "sigmoid", "silu", "tanh")
BLOCKS = ("Q", "K", "V", "gate")


def _gate(seed: int, std: float) -> Tensor:
    return std * normal(5000 + seed, D_MODEL, D_MODEL) / D_MODEL**0.5


def _gated(setting: LoneLayer, gate: Tensor | None) -> LoneLayer:
    return replace(setting, layer=replace(setting.layer, gate=gate))


def _largest_eigenvalue(H: AttentionHessian, part: str, names: tuple[str, ...]) -> float:
    rows = [torch.cat([H.part(part)[row, column].to_dense() for column in names], 1) for row in names]
    return float(torch.linalg.eigvalsh(torch.cat(rows))[-1])


def _sharpness(seed: int, std: float, values: float, scores: float) -> tuple[float, float, float]:
    """Sharpness with a gate over that without: of the Hessian, its Gauss-Newton part, and without the gate's rows."""
    found = lone_layer(D_MODEL, D_K, LENGTH, seed)
    factors = {"Q": scores, "K": scores, "V": values}
    enlarged = {name: factors[name] * W for name, W in found.layer.parameters.items()}
    plain = replace(found, layer=found.layer.with_parameters(enlarged))
    without, gated = plain.hessian(), _gated(plain, _gate(seed, std)).hessian()
    full, outer = (_largest_eigenvalue(without, part, BLOCKS[:3]) for part in ("full", "outer"))
    return (
        _largest_eigenvalue(gated, "full", BLOCKS) / full,
        _largest_eigenvalue(gated, "outer", BLOCKS) / outer,
        _largest_eigenvalue(gated, "full", BLOCKS[:3]) / full,
    )


def _peak(seed: int, scores: float) -> float:
    """Mean over rows of the largest attention weight."""
    found = lone_layer(D_MODEL, D_K, LENGTH, seed)
    enlarged = {name: W if name == "V" else scores * W for name, W in found.layer.parameters.items()}
    weights = found.layer.with_parameters(enlarged).attend(found.X[None]).weights
    return float(weights.amax(-1).mean())


@claim("D6")
def sharpness_with_a_gate() -> Finding:
    """The largest eigenvalue with a gate over that without."""
    found = {
        (scores, values, std): [_sharpness(seed, std, values, scores) for seed in seeds(LAYERS)]
        for scores in SCORE_WEIGHT_SCALES
        for values in VALUE_SCALES
        for std in GATE_STDS[:2]
    }
    ratios = {key: [full for full, _, _ in layers] for key, layers in found.items()}
    by_scores = {
        scores: at_most(
            f"W_Q, W_K x {scores:g}, {LAYERS} layers x values x gates: sharpness, with a gate over without",
            [ratio for key, several in ratios.items() if key[0] == scores for ratio in several],
            1,
        )
        for scores in SCORE_WEIGHT_SCALES
    }
    half_open = found[1.0, 1.0, 0.0]
    worst = max(max(several) for several in ratios.values())
    return Finding(
        checks=tuple(by_scores.values()),
        conditional=(by_scores[1.0],),
        support=(
            close(
                "gate of zero: Gauss-Newton sharpness over that without",
                [outer for _, outer, _ in half_open],
                0.25,
                0.05,
            ),
            at_most(
                "gate of zero: sharpness of a constant factor over that of the gate",
                [constant / full for full, _, constant in half_open],
                1 + 1e-9,
            ),
            at_least("W_Q, W_K and values x 10: largest ratio", max(ratios[10.0, 10.0, 0.0]), 2),
            at_least("W_Q, W_K x 10: mean largest weight of a row", [_peak(seed, 10.0) for seed in seeds(LAYERS)], 0.9),
            at_most("W_Q, W_K as drawn: the same", [_peak(seed, 1.0) for seed in seeds(LAYERS)], 0.7),
        ),
        numbers={"open": geometric_mean([full for full, _, _ in half_open]), "largest": worst},
        example="sharpness with a gate of zero over that without, geometric mean: "
        + "; ".join(
            f"W_Q, W_K x {scores:g}, values x {values:g}: {geometric_mean(ratios[scores, values, 0.0]):.2f}"
            for scores in SCORE_WEIGHT_SCALES
            for values in VALUE_SCALES
        )
        + ".",
    )


def _norm_ratio(setting: LoneLayer) -> float:
    """Gauss-Newton norm of queries over that of values."""
    H = setting.hessian()
    return float(H.outer["Q", "Q"].frobenius_norm() / H.outer["V", "V"].frobenius_norm())


def _changed_ratio(seed: int, scale: float, std: float) -> tuple[float, float]:
    """The ratio of the blocks with a gate over that without; the largest logit of the gate."""
    plain, gate = lone_layer(D_MODEL, D_K, LENGTH, seed, token_std=scale), _gate(seed, std)
    return _norm_ratio(_gated(plain, gate)) / _norm_ratio(plain), float((plain.X @ gate).abs().max())


def _power(block: str) -> float:
    """Of the tokens' scale in a Gauss-Newton block, with a gate."""
    norms = [
        geometric_mean(
            [
                float(
                    _gated(lone_layer(D_MODEL, D_K, LENGTH, seed, token_std=scale), _gate(seed, 1.0))
                    .hessian()
                    .outer[block, block]
                    .frobenius_norm()
                )
                for seed in seeds(LAYERS)
            ]
        )
        for scale in SMALL
    ]
    slope = log_log_slope(list(SMALL), norms)
    assert slope is not None
    return float(slope)


@claim("D7")
def gap_with_a_gate() -> Finding:
    """The ratio of the two blocks with a gate, beside that without."""
    every = [_changed_ratio(seed, scale, std) for std in GATE_STDS for scale in SCALES for seed in seeds(LAYERS)]
    ratios = [ratio for ratio, _ in every]
    near_zero = [ratio for ratio, logit in every if logit <= SMALL_LOGIT]
    half_open = lone_layer(D_MODEL, D_K, LENGTH, next(iter(seeds(1))))
    quarter = [
        float(_gated(half_open, _gate(0, 0.0)).hessian().outer[b, b].frobenius_norm())
        / float(half_open.hessian().outer[b, b].frobenius_norm())
        for b in "QV"
    ]
    return Finding(
        checks=(close(f"{len(every)} layers: ratio of the blocks over that without a gate", ratios, 1, 0.1),),
        conditional=(
            close(f"{len(near_zero)} layers with logits of at most {SMALL_LOGIT:g}: the same", near_zero, 1, 0.1),
        ),
        support=(
            close("gate of zero: block of queries, of values, over that without", quarter, 0.25, 1e-9),
            *(
                close(
                    f"power of the tokens' scale, {b} {b}",
                    _power(b),
                    predicted_growth("softmax", "outer", b, b) or 0,
                    0.1,
                )
                for b in "QV"
            ),
        ),
        numbers={"low": min(ratios), "high": max(ratios)},
        example=f"of {len(every)} layers {sum(abs(r - 1) > 0.1 for r in ratios)} change their ratio by more than 10 %, "
        f"one to {farthest(ratios, 1):.2f} of it.",
    )


def _signs(seed: int, function: str) -> tuple[float, float, float, float]:
    """Smallest relative eigenvalue of values, of their gate, of both together; of both at the target."""
    plain = lone_layer(D_MODEL, D_K, LENGTH, seed)
    setting = replace(plain, layer=replace(plain.layer, value_gate=ValueGate(_gate(seed, 1.0), function)))
    at_target = replace(setting, Y=setting.layer(setting.X))
    values, gate, both = (relative_minimum(_joint(setting, names)) for names in (("V",), ("value_gate",), _VALUES))
    return values, gate, both, relative_minimum(_joint(at_target, _VALUES))


_VALUES = ("V", "value_gate")


def _joint(setting: LoneLayer, names: tuple[str, ...]) -> Tensor:
    H = setting.hessian().full
    return torch.cat([torch.cat([H[row, column].to_dense() for column in names], 1) for row in names])


@claim("D8")
def signs_with_gated_values() -> Finding:
    """Signs of the diagonal blocks, and of both together."""
    found = {function: [_signs(seed, function) for seed in seeds(LAYERS)] for function in FUNCTIONS}
    values = {f: at_least(f"{f}: values, smallest eigenvalue", [v for v, _, _, _ in found[f]], ROUNDING) for f in found}
    gates = {f: at_least(f"{f}: gate, smallest eigenvalue", [g for _, g, _, _ in found[f]], ROUNDING) for f in found}
    negative = min(gate for several in found.values() for _, gate, _, _ in several)
    linear = [both for _, _, both, _ in found["linear"]]
    return Finding(
        checks=(*values.values(), *gates.values()),
        conditional=(values["linear"], gates["linear"]),
        support=(
            *values.values(),
            at_most("every function: both together, largest of the smallest eigenvalues", _each(found, 2), -0.1),
            at_least("the same at the target, where the gradient vanishes", _each(found, 3), ROUNDING),
        ),
        numbers={"negative": -negative},
        example="smallest over largest absolute eigenvalue of the gate's block, worst of the layers: "
        + ", ".join(f"{f} {min(g for _, g, _, _ in found[f]) + 0.0:.2g}" for f in found)
        + f"; of values and a linear gate together {min(linear):.2g} to {max(linear):.2g}.",
    )


def _each(found: dict[str, list[tuple[float, float, float, float]]], place: int) -> list[float]:
    return [layer[place] for several in found.values() for layer in several]
