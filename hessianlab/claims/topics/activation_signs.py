"""Signs of the diagonal blocks of one layer, with softmax and without."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlab.claims.activations import SHAPES, drawn_samples, hessian, named
from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Check, Finding, at_least, at_most, share
from hessianlab.claims.quantities import EXACT, block_norm, extremes, gap, largest, relative_minimum, smallest
from hessianlab.claims.samples import Sample, many_samples, sample
from hessianlens.layer import attention_hessian
from hessianlens.losses import CrossEntropyLoss, CustomLoss, Loss, SquareLoss

COUNT = 50
SIGN = 1e-9
"""Size, relative to the largest eigenvalue, from which an eigenvalue has a sign."""


def _outer_minimum(loss: str) -> float:
    """Smallest relative eigenvalue of the outer product of the whole layer."""
    return smallest(
        relative_minimum(attention_hessian(s.layer, s.X, _loss(loss, s.Y)).outer[:].to_dense())
        for s in many_samples()[:20]
    )


def _loss(name: str, Y: Tensor) -> Loss:
    if name == "square loss":
        return SquareLoss(Y)
    if name == "cross-entropy":
        return CrossEntropyLoss(Y.argmax(-1)[None])
    return CustomLoss(lambda F: (1 - torch.exp(-(F - Y).square().sum(-1) / 2)).mean())


@claim("A4")
def parts_and_signs() -> Finding:
    """The sum, and the outer product under three losses."""
    decomposition = largest(gap(s.witness.outer + s.witness.functional, s.witness.full) for s in drawn_samples())
    convex = tuple(
        at_least(f"smallest relative eigenvalue of H_o, {n}", _outer_minimum(n), -EXACT)
        for n in ("square loss", "cross-entropy")
    )
    both = sum(
        low < -SIGN and high > SIGN
        for low, high in (extremes(s.hessian.functional[:].to_dense()) for s in many_samples()[:20])
    )
    common = (
        at_most("largest distance of H_o + H_f from the Hessian", decomposition, EXACT),
        *convex,
        share("layers whose H_f is indefinite", both, 20),
    )
    bounded = _outer_minimum("bounded loss")
    return Finding(
        checks=(*common, at_least("smallest relative eigenvalue of H_o, bounded loss", bounded, -EXACT)),
        conditional=common,
        support=(at_most("smallest relative eigenvalue of H_o, bounded loss", bounded, -0.01),),
        example="one output F = w, target 0, loss 1 - exp(-F^2 / 2): the curvature (1 - w^2) exp(-w^2 / 2) is "
        f"{_bounded_curvature(2.0):.2f} at w = 2; in 20 random layers the smallest eigenvalue of H_o reaches "
        f"{bounded:.2f} of the largest.",
    )


def _bounded_curvature(w: float) -> float:
    at = torch.tensor(w, dtype=torch.float64)
    return float(torch.func.hessian(lambda F: 1 - torch.exp(-(F**2) / 2))(at))


def _indefinite(matrices: list[Tensor]) -> int:
    return sum(low < -SIGN and high > SIGN for low, high in map(extremes, matrices))


def _functional_query(one: Sample) -> Tensor:
    return one.hessian.functional["Q", "Q"].to_dense()


@claim("A17")
def functional_blocks_indefinite() -> Finding:
    """Fifty layers, two tokens, and no residual."""
    blocks = {n: [s.hessian.functional[n, n].to_dense() for s in many_samples()] for n in "QK"}
    generic = tuple(
        share(f"layers with H_f({n},{n}) of both signs, L = 6", _indefinite(m), COUNT, 0.95) for n, m in blocks.items()
    )
    two, three = ([_functional_query(sample(seed, n, 3, 2)) for seed in seeds(COUNT)] for n in (2, 3))
    signs = [extremes(m) for m in two]
    positive, negative = sum(low > -SIGN for low, _ in signs), sum(high < SIGN for _, high in signs)
    fitted = largest(float(_functional_query(s.at_target).norm()) for s in many_samples()[:10])
    smallest_norm = smallest(float(m.norm()) for ms in blocks.values() for m in ms)
    return Finding(
        checks=(
            *generic,
            at_least("smallest norm of such a block", smallest_norm, 1e-6),
            share("layers with H_f(Q,Q) of both signs, two tokens", _indefinite(two), COUNT, 0.95),
            at_least("norm of H_f(Q,Q) where the output is the target", fitted, 1e-6),
        ),
        conditional=generic,
        support=(
            share("two tokens: layers without a negative eigenvalue of H_f(Q,Q)", positive, COUNT, 0.02),
            share("two tokens: layers without a positive eigenvalue of H_f(Q,Q)", negative, COUNT, 0.02),
            share("three tokens: layers with H_f(Q,Q) of both signs", _indefinite(three), COUNT, 0.9),
            at_most("norm of H_f(Q,Q) where the output is the target", fitted, 1e-12),
        ),
        example=f"two tokens, {COUNT} random layers: H_f(Q,Q) has both signs in {_indefinite(two)}, only non-negative "
        f"eigenvalues in {positive}, only non-positive ones in {negative}.",
    )


def _minimum(activation: str) -> list[float]:
    """Of every layer, the smallest relative eigenvalue of its diagonal blocks."""
    layers = [hessian(activation, seed, SHAPES[0], 1.0).full for seed in seeds(COUNT)]
    return [smallest(relative_minimum(full[n, n].to_dense()) for n in "QKV") for full in layers]


def _hollow(activation: str) -> Check:
    sizes = []
    for seed in seeds(COUNT):
        H = hessian(activation, seed, SHAPES[0], 1.0)
        parts = [block_norm(H, "functional", 2 * n) / block_norm(H, "outer", 2 * n) for n in "QKV"]
        sizes.append(largest(parts))
    return at_most(f"{named(activation)}: largest functional over outer diagonal block", sizes, 1e-12)


@claim("A18")
def removing_softmax() -> Finding:
    """Signs with linear, ReLU and sigmoid attention."""
    lows = {a: _minimum(a) for a in ("linear", "relu", "sigmoid")}
    hollow = {a: _hollow(a) for a in lows}
    signs = {
        a: share(f"{named(a)}: layers with semi-definite diagonal blocks", sum(v > -SIGN for v in found), COUNT)
        for a, found in lows.items()
    }
    kept = tuple(check for a in ("linear", "relu") for check in (hollow[a], signs[a]))
    negative = sum(v < -SIGN for v in lows["sigmoid"])
    return Finding(
        checks=(*kept, hollow["sigmoid"], signs["sigmoid"]),
        conditional=kept,
        support=(share("sigmoid: layers with an indefinite diagonal block", negative, COUNT, 0.8),),
        example=f"{COUNT} random layers: a diagonal block has a negative eigenvalue in {negative} with sigmoid, in "
        f"{sum(v < -SIGN for v in lows['linear'])} with linear attention; smallest with sigmoid: "
        f"{smallest(lows['sigmoid']):.2f} of the largest.",
    )
