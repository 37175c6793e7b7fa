"""The two theorems: every block of the attention Hessian against automatic differentiation."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Finding, at_least, at_most, share
from hessianlab.claims.quantities import EXACT, gap, largest, same, smallest, value_functional_checks
from hessianlab.claims.samples import Sample, described, numbers, sample, small_samples

THEOREMS = {"outer": "theorem_3_1", "functional": "theorem_3_2"}


def printed(part: str, one: Sample, row: str, column: str) -> Tensor:
    """A block as Theorem 3.1 or 3.2 writes it."""
    block: Tensor = getattr(paper, THEOREMS[part])(one.setting, row, column)
    return block


def block_checks(part: str, pairs: tuple[str, ...]) -> tuple[Check, ...]:
    """The theorem's blocks against automatic differentiation, one check a block."""
    return tuple(
        same(f"{part} block {pair}", ((printed(part, s, *pair), s.witness.block(part, *pair)) for s in small_samples()))
        for pair in pairs
    )


@claim("P1")
def gauss_newton_decomposition() -> Finding:
    """Equation (2) with the layout of Equation (4)."""
    gaps, asymmetries, sizes = [], [], []
    for one in small_samples():
        stacked, rows = _stacked_second_derivative(one)
        weighted = torch.kron(one.witness.gradient.reshape(1, -1), torch.eye(rows, dtype=one.X.dtype)) @ stacked
        gaps.append(gap(one.witness.outer + weighted, one.witness.full))
        asymmetries += [gap(part, part.T) for part in (one.witness.outer, weighted)]
        sizes.append(stacked.shape[0] == one.Y.numel() * rows)
    return Finding(
        checks=(
            at_most("H - H_o - H_f, largest relative difference", gaps, EXACT),
            at_most("H_o and H_f minus their transposes, largest relative difference", asymmetries, EXACT),
            share("second derivatives with L d_V p q rows", sum(sizes), len(sizes)),
        )
    )


def _stacked_second_derivative(one: Sample) -> tuple[Tensor, int]:
    witness = one.witness
    flat = torch.cat([w.reshape(-1) for w in one.weights.values()])
    first = torch.func.jacrev(lambda w: witness.output(w).reshape(-1))
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
        example=f"{described(one)}: H_o(K,K) = {numbers(one.witness.block('outer', 'K', 'K'))}, and H_o(Q,Q) with W_Q"
        f" and W_K exchanged = {numbers(_exchanged(one).witness.block('outer', 'Q', 'Q'))}.",
    )


def _exchanged(one: Sample) -> Sample:
    w = one.weights
    return Sample(one.X, one.Y, {"Q": w["K"], "K": w["Q"], "V": w["V"]})


def _exchange_ratio(one: Sample) -> float:
    other = _exchanged(one).witness.block("outer", "Q", "Q")
    return float(one.witness.block("outer", "K", "K").norm() / other.norm())


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
