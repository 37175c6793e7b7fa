"""Block-hollow matrices and their eigenvalues: the T-functional Hessian, MLPs, and the bulk of the spectrum."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, equal
from hessianlab.claims.quantities import EXACT, flip_gap, group_spread, largest, median, pair_gap
from hessianlab.claims.samples import Weights, Witness, many_samples, mean_square, normal, numbers, sample

SIZES = ((6, 3, 2), (5, 2, 4), (4, 3, 3))
"""(L, d, hidden width) of two-layer MLPs."""


def _mlp_spectra(relu: bool) -> list[tuple[Tensor, int]]:
    """Eigenvalues of the functional Hessian of two-layer MLPs, and their hidden width."""
    found = []
    for L, d, width in SIZES:
        for seed in seeds(3):
            X, Y = normal(seed + 30, L, d), normal(seed + 40, L, d)
            weights = {"1": normal(seed, d, width), "2": normal(seed + 10, width, d)}

            def output(w: Weights, X: Tensor = X) -> Tensor:
                hidden = X @ w["1"]
                return (torch.relu(hidden) if relu else hidden) @ w["2"]

            found.append((torch.linalg.eigvalsh(Witness(output, weights, mean_square(Y)).functional), width))
    return found


def mlp_checks(kind: str) -> tuple[Check, Check]:
    """Pairs and multiplicity of a two-layer MLP, "linear" or "ReLU"."""
    spectra = _mlp_spectra(kind == "ReLU")
    return (
        at_most(
            f"two-layer {kind} MLP: spectrum minus its mirror image, largest", (pair_gap(v) for v, _ in spectra), EXACT
        ),
        at_most(
            f"two-layer {kind} MLP: spread inside groups of the hidden width, largest",
            (group_spread(v, width) for v, width in spectra),
            EXACT,
        ),
    )


@claim("P21")
def like_a_two_layer_mlp() -> Finding:
    """The same with linear layers; ReLU keeps the pairs and loses the multiplicity."""
    linear, relu = mlp_checks("linear"), mlp_checks("ReLU")
    values = _small_relu_spectrum()
    return Finding(
        checks=(*linear, *relu),
        conditional=linear,
        support=(
            relu[0],
            at_least(
                "ReLU: largest spread inside groups", largest(group_spread(v, w) for v, w in _mlp_spectra(True)), 1e-3
            ),
        ),
        example="X = [[1], [-1]], two hidden units with W_1 = [1, -1], ReLU, F - Y = [1, 2]: the non-zero eigenvalues"
        f" are {numbers(values)}, two different pairs; a linear MLP with two hidden units has one pair, twice.",
    )


def _small_relu_spectrum() -> Tensor:
    X = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    weights = {"1": torch.tensor([[1.0, -1.0]], dtype=torch.float64), "2": torch.ones(2, 1, dtype=torch.float64)}
    target = torch.tensor([[0.0], [-1.0]], dtype=torch.float64)
    witness = Witness(lambda w: torch.relu(X @ w["1"]) @ w["2"], weights, mean_square(target))
    return torch.linalg.eigvalsh(witness.functional)


@claim("B15")
def like_a_two_layer_linear_mlp() -> Finding:
    """Linear layers, as the article says."""
    return Finding(checks=mlp_checks("linear"))


@claim("B12")
def block_hollow_matrices() -> Finding:
    """True for two blocks and B not zero."""
    two = [s.query_key("t_functional") for s in many_samples()]
    three = [s.linear.hessian.functional[:].to_dense() for s in many_samples()]
    flips = [flip_gap(m) for m in two]
    pairs = at_most("two blocks: spectrum minus its mirror image, largest of 50", map(_mirror, two), EXACT)
    flipped = at_most("two blocks: residual of the flipped eigenvectors, largest of 50", flips, EXACT)
    signs = equal("two blocks: layers with both signs", sum(_both_signs(m) for m in two), 50)
    fitted = [s.at_target.query_key("t_functional").abs().max() for s in many_samples()[:5]]
    small = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    return Finding(
        checks=(
            pairs,
            flipped,
            signs,
            at_most("three blocks: spectrum minus its mirror image, largest of 50", map(_mirror, three), EXACT),
        ),
        conditional=(pairs, flipped, signs),
        support=(
            at_least("three blocks: distance from the mirror image, largest of 50", largest(map(_mirror, three)), 0.01),
            equal("three blocks: layers with both signs", sum(_both_signs(m) for m in three), 50),
            at_most("zero residual: largest entry of the T-functional Hessian", float(torch.stack(fitted).max()), 0.0),
        ),
        example=f"[[0, 1, 1], [1, 0, 1], [1, 1, 0]] has zero blocks on the diagonal and eigenvalues"
        f" {numbers(torch.linalg.eigvalsh(small))}.",
    )


def _mirror(matrix: Tensor) -> float:
    return pair_gap(torch.linalg.eigvalsh(matrix))


def _both_signs(matrix: Tensor) -> bool:
    values = torch.linalg.eigvalsh(matrix)
    limit = 1e-10 * float(values.abs().max())
    return bool(values[0] < -limit) and bool(values[-1] > limit)


BULK = (0.1, 0.9)
SCALES = (0.1, 0.2, 1.0, 2.0)


@measured
def _bulk_distances() -> dict[float, list[tuple[float, float]]]:
    """Distance of the bulk of the query-key spectrum from those of the T-functional and T-outer parts, by scale."""
    found: dict[float, list[tuple[float, float]]] = {}
    for scale in SCALES:
        for shape in ((10, 6, 6), (10, 6, 2), (12, 8, 4)):
            for seed in seeds(5):
                one = sample(seed, *shape, token_scale=scale)
                whole, functional, outer = (_bulk(one.query_key(p)) for p in ("full", "t_functional", "t_outer"))
                size = whole.abs().sum()
                found.setdefault(scale, []).append(
                    (float((whole - functional).abs().sum() / size), float((whole - outer).abs().sum() / size))
                )
    return found


def _bulk(matrix: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(matrix)
    return values[int(BULK[0] * len(values)) : int(BULK[1] * len(values))]


@claim("P22")
def bulk_of_the_spectrum() -> Finding:
    """At small tokens the T-functional part is almost the whole spectrum; at large ones the T-outer part joins."""
    found = _bulk_distances()
    checks = {
        s: at_most(f"distance from the T-functional bulk, token scale {s:g}, largest of 15", (f for f, _ in v), 0.2)
        for s, v in found.items()
    }
    nearer = {s: sum(f < o for f, o in v) for s, v in found.items()}
    high = SCALES[-1]
    one = sample(first_seed(), 10, 6, 2, token_scale=high)
    bulks = {p: _bulk(one.query_key(p)) for p in ("full", "t_functional", "t_outer")}
    return Finding(
        checks=tuple(checks.values()),
        conditional=(checks[SCALES[0]], checks[SCALES[1]]),
        support=(
            at_least(
                f"distance from the T-functional bulk at scale {high:g}, median",
                median(f for f, _ in found[high]),
                0.25,
            ),
            at_least("of 15, nearer to the T-functional bulk at scale 0.1", nearer[SCALES[0]], 15),
        ),
        example=f"L = 10, d_V = 6, d_K = 2, tokens N(0, {high:g}^2): mean absolute eigenvalue of the bulk"
        f" {float(bulks['full'].abs().mean()):.3g}; of the T-functional part"
        f" {float(bulks['t_functional'].abs().mean()):.3g}, of the T-outer part"
        f" {float(bulks['t_outer'].abs().mean()):.3g}.",
        curves=Curves(
            "token scale",
            "median distance of the bulk",
            {
                "from the T-functional part": (SCALES, tuple(median(f for f, _ in v) for v in found.values())),
                "from the T-outer part": (SCALES, tuple(median(o for _, o in v) for v in found.values())),
            },
            log_x=True,
        ),
    )
