"""Signs of the diagonal blocks of one layer, with softmax and without."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.lab.claims.activations import SHAPES, drawn_samples, extremes, hessian, named
from hessianlens.lab.claims.check import Check, at_least, at_most, share
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.samples import (
    EXACT,
    Sample,
    gap,
    largest,
    many_samples,
    relative_minimum,
    sample,
    seeds,
    smallest,
)
from hessianlens.losses import CrossEntropyLoss, CustomLoss, Loss, SquareLoss
from hessianlens.theory import attention_hessian

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


@claim(
    "A4",
    source="The Hessian has blocks, and they are not equal",
    statement="H = H_o + H_f; the outer product H_o is always positive semi-definite because it is built from outer "
    "products of Jacobians; H_f can be indefinite.",
    method="sum of both parts against torch's Hessian, 3 shapes x 3 seeds; smallest eigenvalue of H_o of 20 layers "
    "with square loss, cross-entropy and the bounded loss 1 - exp(-|F - Y|^2 / 2); signs of H_f; float64",
)
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
        condition="the loss is convex in the network's output, as square loss and cross-entropy are.",
        support=(at_most("smallest relative eigenvalue of H_o, bounded loss", bounded, -0.01),),
        correction="H_o is J^T C J with C the curvature of the loss at the output. It is positive semi-definite "
        "because C is; the outer products of Jacobians alone do not make it so. For a loss that is not convex in the "
        "output, H_o has negative eigenvalues.",
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


@claim(
    "A17",
    source="Softmax makes the Hessian more indefinite",
    statement="With softmax the functional blocks of queries and keys are non-zero and indefinite, with eigenvalues "
    "of both signs.",
    method="eigenvalues of H_f(Q,Q) and H_f(K,K), 50 seeds, L = 6, d = 4, d_K = 3, square loss; of two tokens (d = "
    "3, d_K = 2), 50 seeds; and where the output is the target, 10 seeds",
)
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
        condition="there are more than two tokens and the residual is not zero, as in any ordinary sequence before "
        "a perfect fit.",
        support=(
            share("two tokens: layers without a negative eigenvalue of H_f(Q,Q)", positive, COUNT, 0.02),
            share("two tokens: layers without a positive eigenvalue of H_f(Q,Q)", negative, COUNT, 0.02),
            share("three tokens: layers with H_f(Q,Q) of both signs", _indefinite(three), COUNT, 0.9),
            at_most("norm of H_f(Q,Q) where the output is the target", fitted, 1e-12),
        ),
        correction="The functional query block is a sum over tokens, each part weighted by the residual of its token. "
        "With two tokens to choose from, each part is a square times a number, and the block has both signs only if "
        "the two numbers differ in sign. With more tokens both signs are the rule. At a residual of zero the block "
        "is zero.",
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
        parts = [float(H.functional[n, n].frobenius_norm()) / float(H.outer[n, n].frobenius_norm()) for n in "QKV"]
        sizes.append(largest(parts))
    return at_most(f"{named(activation)}: largest functional over outer diagonal block", largest(sizes), 1e-12)


@claim(
    "A18",
    source="Softmax makes the Hessian more indefinite",
    statement="Removing softmax, by sigmoid too, restores a functional Hessian without diagonal blocks, and diagonal "
    "blocks that are positive semi-definite.",
    method="functional diagonal blocks and smallest eigenvalue of H(Q,Q), H(K,K) and H(V,V), 50 seeds, L = 6, d = 4, "
    "d_K = 3, for linear, ReLU and sigmoid attention; float64",
)
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
        condition="what replaces softmax has no second derivative: the identity, or piecewise linear as ReLU. Not "
        "sigmoid.",
        support=(share("sigmoid: layers with an indefinite diagonal block", negative, COUNT, 0.8),),
        correction="The functional diagonal blocks come from the second derivative of the activation, not from "
        "softmax as such. The identity has none; sigmoid has one, so its functional query and key "
        "blocks are not zero, and in most layers (with tokens of scale one) a diagonal block is indefinite.",
        example=f"{COUNT} random layers: a diagonal block has a negative eigenvalue in {negative} with sigmoid, in "
        f"{sum(v < -SIGN for v in lows['linear'])} with linear attention; smallest with sigmoid: "
        f"{smallest(lows['sigmoid']):.2f} of the largest.",
    )


CLAIMS = (parts_and_signs, functional_blocks_indefinite, removing_softmax)
