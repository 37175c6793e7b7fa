"""The two theorems: every block of the attention Hessian against automatic differentiation."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.lab.claims.check import Check, at_least, at_most, share
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.measures import value_functional_checks
from hessianlens.lab.claims.samples import (
    EXACT,
    Sample,
    described,
    gap,
    largest,
    numbers,
    sample,
    seeds,
    small_samples,
    smallest,
)
from hessianlens.theory import paper

FORMULA = "3 seeds x 4 shapes (L, d_V, d_K), float64, against torch.func; relative difference at most 1e-10"
THEOREMS = {"outer": "theorem_3_1", "functional": "theorem_3_2"}


def printed(part: str, one: Sample, row: str, column: str) -> Tensor:
    """A block as Theorem 3.1 or 3.2 writes it."""
    block: Tensor = getattr(paper, THEOREMS[part])(one.setting, row, column)
    return block


def block_checks(part: str, pairs: tuple[str, ...]) -> tuple[Check, ...]:
    """The theorem's blocks against automatic differentiation, one check a block."""
    return tuple(
        at_most(
            f"{part} block {pair}, largest relative difference",
            largest(gap(printed(part, s, *pair), s.witness.block(part, *pair)) for s in small_samples()),
            EXACT,
        )
        for pair in pairs
    )


@claim(
    "P1",
    source="Equations (2), (3), (4)",
    statement="The Hessian is the sum of an outer-product and a functional part, each a symmetric 3 x 3 grid of blocks;"
    " the second derivative of F stacks the Hessians of its entries, L d_V p_i q_i rows by p_j q_j columns.",
    method="torch.func.hessian of the loss against J^T C J plus (dl/dF kron I) d2F, with d2F from jacrev of jacrev and"
    " stacked as Equation (4) says; " + FORMULA,
)
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
            at_most("H - H_o - H_f, largest relative difference", largest(gaps), EXACT),
            at_most("H_o and H_f minus their transposes, largest relative difference", largest(asymmetries), EXACT),
            share("second derivatives with L d_V p q rows", sum(sizes), len(sizes)),
        )
    )


def _stacked_second_derivative(one: Sample) -> tuple[Tensor, int]:
    witness = one.witness
    flat = torch.cat([w.reshape(-1) for w in one.weights.values()])
    first = torch.func.jacrev(lambda w: witness.output(w).reshape(-1))
    second: Tensor = torch.func.jacrev(lambda w: first(w).reshape(-1))(flat)
    return second, len(flat)


@claim(
    "P3",
    source="Theorem 3.1",
    statement="Closed forms of the outer-product blocks VV, QQ, VQ and QK.",
    method="the printed Kronecker products against J^T C J; " + FORMULA + ". The theorem as stated; the third line of"
    " its proof prints 1/sqrt(d_K) twice and T_1 for M_1",
)
def outer_product_theorem() -> Finding:
    """The four printed blocks."""
    return Finding(checks=block_checks("outer", ("VV", "QQ", "VQ", "QK")))


@claim(
    "P4",
    source="Section 3, before Theorem 3.1",
    statement="The key blocks are left out because they are essentially symmetric to the query blocks, apart from"
    " the arrangement.",
    method="KK, VK and QK as the printed forms with the outer factor of W_K, (W_Q kron I) K, in the place of that of"
    " W_Q, I kron W_K, against torch; " + FORMULA,
)
def key_blocks() -> Finding:
    """Symmetric in form; not by exchange of the two names."""
    exchanged = [_exchange_ratio(s) for s in small_samples()]
    one = sample(seeds(1)[0], 2, 2, 1)
    return Finding(
        checks=tuple(c for part in THEOREMS for c in block_checks(part, ("KK", "VK", "QK"))),
        correction="The symmetry is one of form. The key blocks are not the query blocks with the names W_Q and W_K"
        " exchanged: the softmax normalises over the keys of each query, so queries and keys play different parts.",
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


@claim(
    "P5",
    source="Theorem 3.2",
    statement="The functional Hessian of the value matrix is zero.",
    method="largest entry of the autograd Hessian of <dl/dF, F> with respect to W_V, and of the library's block;"
    " 3 seeds x 4 shapes; exactly zero wanted",
)
def value_block_without_functional_part() -> Finding:
    """F is linear in W_V."""
    return Finding(checks=value_functional_checks())


@claim(
    "P6",
    source="Theorem 3.2",
    statement="Closed forms of the functional blocks QQ, VQ and QK, the last a sum of two terms.",
    method="the printed Kronecker products against the Hessian of <dl/dF, F>; KK and VK, which the paper leaves out,"
    " with the key factor; " + FORMULA,
)
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


@claim(
    "P7",
    source="Theorems 3.1 and 3.2",
    statement="Z_1 is L d_V x d_V^2, Z_2 is L d_V^3 x d_V^2, S is d_V^3 x d_V and R_m is m x m L d_V.",
    method="the matrices built as defined, at 4 shapes (L, d_V, d_K)",
)
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


CLAIMS = (
    gauss_newton_decomposition,
    outer_product_theorem,
    key_blocks,
    value_block_without_functional_part,
    functional_theorem,
    sizes_of_the_building_blocks,
)
