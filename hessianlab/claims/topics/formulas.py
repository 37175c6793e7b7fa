"""The printed formulas against autograd, and what documents say of the literature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, seeds
from hessianlab.claims.finding import Finding, at_most, equal
from hessianlab.claims.quantities import EXACT, drawn_samples, gap, largest, same
from hessianlab.claims.samples import normal, numbers, small_samples, softmax_rows
from hessianlab.paper import block_diagonal, kron, theorem_3_1, theorem_3_2, vec
from hessianlab.paper.printed import Block
from hessianlens.layer import numerical_rank
from hessianlens.operators.commutation import commutation_matrix

SIZES = ((2, 3, 4, 2), (3, 2, 2, 5), (4, 3, 3, 3))
"""(n, m, p, q) of random matrices."""


def _largest_gap(shapes: str, sides: Callable[..., tuple[Tensor, Tensor]]) -> float:
    gaps = []
    for n, m, p, q in SIZES:
        sizes = {"n": n, "m": m, "p": p, "q": q, "N": n + 1, "1": 1, "3": 3}
        for seed in seeds(3):
            matrices = (normal(seed + i, *map(sizes.__getitem__, shape)) for i, shape in enumerate(shapes.split()))
            gaps.append(gap(*sides(*matrices)))
    return largest(gaps)


def _derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return jacrev(function)(at).reshape(-1, at.numel())


@claim("P2")
def jacobians() -> Finding:
    """Lemma B.1 block by block; the key block is ours, with the same middle."""
    checks = [
        same(
            f"dF/dW_{name}",
            (
                (paper.lemma_b_1(s.setting, name), s.by_autograd.jacobian[:, s.by_autograd.place(name)])
                for s in small_samples()
            ),
        )
        for name in ("V", "Q", "K")
    ]
    rows = [
        gap(paper.softmax_jacobian(s.setting.A), jacrev(softmax_rows)(s.setting.T).reshape(2 * (s.shape[0] ** 2,)))
        for s in small_samples()
    ]
    return Finding(checks=(*checks, at_most("dA/dT, largest relative difference", rows, EXACT)))


@claim("P10")
def second_derivative_of_softmax() -> Finding:
    """The matrix is right; the letter on its left-hand side is not."""
    gaps = []
    for length in (2, 3, 4):
        for seed in seeds(3):
            T = normal(seed, length, length)
            exact = torch.func.hessian(softmax_rows)(T).reshape(length**4, length**2)
            gaps.append(gap(paper.softmax_second_derivative(softmax_rows(T)), exact))
    L, d = 2, 3
    X, W_V, T = (normal(first_seed() + n, *s) for n, s in ((1, (L, d)), (2, (d, d)), (3, (L, L))))
    of_output = torch.func.hessian(lambda t: softmax_rows(t) @ X @ W_V)(T).reshape(-1, L**2)
    return Finding(
        checks=(at_most("blockdiag D_i minus d2A/dT2, largest relative difference", gaps, EXACT),),
        support=(equal(f"rows of d2F/dT2 at L = {L}, d_V = {d}", of_output.shape[0], L * d * L**2),),
        example=f"L = {L}, d_V = {d}: the printed matrix has {L**4} rows, the second derivative of F has"
        f" {of_output.shape[0]}.",
    )


@claim("P11")
def kronecker_rules() -> Finding:
    """One check an equation."""
    return Finding(
        checks=tuple(
            at_most(f"Equation {number}, largest relative difference", _largest_gap(*rule), EXACT)
            for number, rule in _RULES.items()
        )
    )


def _both(*pairs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Several equalities as one."""
    return torch.cat([a.reshape(-1) for a, _ in pairs]), torch.cat([b.reshape(-1) for _, b in pairs])


_RULES: dict[str, tuple[str, Callable[..., tuple[Tensor, Tensor]]]] = {
    "(6)": (
        "nm pq pq",
        lambda A, B, C: _both((kron(A, B + C), kron(A, B) + kron(A, C)), (kron(B + C, A), kron(B, A) + kron(C, A))),
    ),
    "(7)": ("nm pq 1", lambda A, B, k: _both((kron(k * A, B), k * kron(A, B)), (kron(A, k * B), k * kron(A, B)))),
    "(8)": ("nm pq mn", lambda A, B, C: (torch.kron(torch.kron(A, B), C), torch.kron(A, torch.kron(B, C)))),
    "(9)": ("nm pq mp qn", lambda A, B, C, D: (kron(A, B) @ kron(C, D), kron(A @ C, B @ D))),
    "(10)": ("nm pq", lambda A, B: (kron(A, B).T, kron(A.T, B.T))),
    "(11)": ("N1 p1", lambda a, b: _both((kron(a.T, b), b @ a.T), (kron(b, a.T), b @ a.T))),
    "(12)": ("nm mp q1", lambda A, B, v: (A @ kron(v.T, B), kron(v.T, A @ B))),
    "(14)": (
        "mqp mn p3",
        lambda A, B, C: (
            block_diagonal(A) @ kron(B, C),
            torch.cat([kron(B[i : i + 1], one @ C) for i, one in enumerate(A)]),
        ),
    ),
    "(15)": ("nm mp pq", lambda A, X, B: (kron(A, B.T), _derivative(lambda x: A @ x @ B, X))),
    "(16)": ("nm pq", lambda X, Y: (paper.equation_16(X, Y), _derivative(lambda x: kron(x, Y), X))),
    "(17)": ("nm pq", lambda X, Y: (paper.equation_17(X, Y), _derivative(lambda y: kron(X, y), Y))),
    "(18)": (
        "nq",
        lambda X: (commutation_matrix(X.shape[1], X.shape[0], X.dtype), _derivative(lambda x: x.T.contiguous(), X)),
    ),
}
"""Shapes of the matrices that an equation is about (N is n + 1), and both of its sides."""


@claim("P12")
def vectorisation_by_an_identity() -> Finding:
    """The printed right-hand side is quadratic in A."""
    shapes = ((2, 3), (3, 2), (2, 2))
    draws = [normal(seed, *shape) for shape in shapes for seed in seeds(3)]
    square = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    projection = torch.tensor([[1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    return Finding(
        checks=(
            same(
                "printed right-hand side minus vec(A), square A",
                ((paper.equation_13(A, printed=True), vec(A)) for A in draws if A.shape[0] == A.shape[1]),
            ),
            equal(
                "entries of the printed right-hand side for A of size 2 x 3, against those of vec(A)",
                paper.equation_13(normal(first_seed(), 2, 3), printed=True).numel(),
                6,
            ),
        ),
        support=(
            same("(A kron I_m) vec(I_m) minus vec(A)", ((paper.equation_13(A), vec(A)) for A in draws)),
            same(
                "printed form minus vec(A A) for square A",
                ((paper.equation_13(A, printed=True), vec(A @ A)) for A in draws if A.shape[0] == A.shape[1]),
            ),
            at_most(
                "printed form minus vec(A) for a projection",
                gap(paper.equation_13(projection, printed=True), vec(projection)),
                EXACT,
            ),
        ),
        example=f"A = {numbers(square)}: vec(A) = {numbers(vec(square)[:, 0])}, printed right-hand side ="
        f" {numbers(paper.equation_13(square, printed=True)[:, 0])}.",
    )


@claim("P13")
def commutation_rules() -> Finding:
    """Equation (20) and Lemma B.3."""
    sizes = ((2, 3), (3, 2), (4, 4), (1, 5))
    swaps = [gap(paper.index_swap_matrix(M, N), commutation_matrix(N, M)) for M, N in sizes]
    return Finding(
        checks=(
            at_most("Equation (20), largest relative difference", (gap(*paper.equation_20(*s)) for s in sizes), 0),
            same("Lemma B.3", (paper.lemma_b_3(normal(seed, *s)) for s in sizes for seed in seeds(3))),
            at_most("K(M, N) minus K_{N,M} of Equation (18), largest difference", swaps, 0),
        )
    )


@claim("P23")
def rank_of_a_stack() -> Finding:
    """Measured rank against the formula."""
    cases = [(size, a, b, seed) for size in SIZES for a in range(3) for b in range(3) for seed in seeds(3)]
    cases += [((4, 4, 4, 4), 4, b, seed) for b in (3, 4, 2) for seed in seeds(3)]
    wrong = sum(not _stack_rank_agrees(*case) for case in cases)
    return Finding(checks=(equal(f"pairs of {len(cases)} whose rank differs from the formula", wrong, 0),))


def _stack_rank_agrees(size: tuple[int, int, int, int], rank_a: int, rank_b: int, seed: int) -> bool:
    m, n, p, q = size
    A, B = _of_rank(seed, m, n, rank_a), _of_rank(seed + 100, p, q, rank_b)
    stack = torch.cat([kron(torch.eye(q, dtype=A.dtype), A), kron(B, torch.eye(n, dtype=A.dtype))])
    r_a, r_b = min(rank_a, m, n), min(rank_b, p, q)
    found = numerical_rank(stack) if float(stack.abs().max()) > 0 else 0
    return found == q * r_a + n * r_b - r_a * r_b


def _of_rank(seed: int, rows: int, columns: int, rank: int) -> Tensor:
    return normal(seed, rows, rank) @ normal(seed + 50, rank, columns)


Pair = tuple[Block, Block]

PRINTED: tuple[Pair, ...] = (("V", "V"), ("Q", "Q"), ("V", "Q"), ("Q", "K"))
"""Blocks that Theorems 3.1 and 3.2 print (H_f(V,V) as zero)."""

LEFT_OUT: tuple[Pair, ...] = (("K", "K"), ("V", "K"))


def _gaps(pairs: tuple[Pair, ...]) -> float:
    """Largest distance of the theorems' blocks from automatic differentiation."""
    found = []
    for s in drawn_samples():
        for row, col in pairs:
            found.append(gap(theorem_3_1(s.setting, row, col), s.by_autograd.block("outer", row, col)))
            if (row, col) != ("V", "V"):
                found.append(gap(theorem_3_2(s.setting, row, col), s.by_autograd.block("functional", row, col)))
    return largest(found)


@claim("A33")
def all_blocks_derived() -> Finding:
    """Blocks counted and compared."""
    blocks = len({frozenset((r, c)) for r in "QKV" for c in "QKV"})
    printed = at_most("largest distance of the printed blocks from torch", _gaps(PRINTED), EXACT)
    return Finding(
        checks=(printed, equal("distinct blocks that are printed", len(PRINTED), blocks)),
        conditional=(
            printed,
            at_most("largest distance of the key blocks derived in the same way", _gaps(LEFT_OUT), EXACT),
        ),
        support=(equal("printed blocks and the two left out", len(PRINTED) + len(LEFT_OUT), blocks),),
        example=f"three weight matrices have {blocks} distinct blocks; printed are "
        f"{', '.join(a + b for a, b in PRINTED)}.",
    )
