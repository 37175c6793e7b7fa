"""Every kind of structured operator, with its dense matrix worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.operators import BlockGrid, Factor, StructuredOperator, Term, TokenSum
from tests.variants import layers, losses, randn, recent_layers, self_attention, tokens

Made = tuple[StructuredOperator, Tensor]


def kronecker_sum(dtype: torch.dtype = torch.float64) -> Made:
    p, G = randn(6, 3).to(dtype), randn(6, 2, 2, seed=1).to(dtype)
    op = TokenSum.of([Term(1.5, (Factor("p", "na", p), Factor("G", "nbd", G), Factor("p", "nc", p)))], (3, 2), (3, 2))
    return op, 1.5 * sum(torch.kron(torch.outer(x, x), g) for x, g in zip(p, G, strict=True))


def rectangular_with_swapped_axes() -> Made:
    p, q, G = randn(4, 3), randn(4, 5, seed=1), randn(4, 2, 3, seed=2)
    op = TokenSum.of([Term(1.0, (Factor("p", "na", p), Factor("G", "nbc", G), Factor("q", "nd", q)))], (3, 2), (3, 5))
    return op, torch.einsum("na,nbc,nd->abcd", p, G, q).reshape(6, 15)


def low_rank_factors() -> Made:
    p, R = randn(4, 3), randn(4, 5, 2, seed=1)
    op = TokenSum.of(
        [Term(-2.0, (Factor("p", "na", p), Factor("R", "nbr", R), Factor("R", "ndr", R), Factor("p", "nc", p)))],
        (3, 5),
        (3, 5),
    )
    return op, -2 * torch.einsum("na,nbr,ndr,nc->abcd", p, R, R, p).reshape(15, 15)


def identity_factor() -> Made:
    B = randn(3, 4)
    op = TokenSum.of([Term(1.0, (Factor("B", "ac", B), Factor.identity("bd", 2)))], (3, 2), (4, 2))
    return op, torch.kron(B, torch.eye(2, dtype=B.dtype))


def chained_identities() -> Made:
    """Identities that only rename summed indices must vanish."""
    p, c = randn(4, 3), randn(4, seed=1)
    factors = (
        Factor("p", "na", p),
        Factor.identity("bf", 2),
        Factor("c", "n", c),
        Factor.identity("fg", 2),
        Factor.identity("gd", 2),
        Factor("p", "nc", p),
    )
    dense = torch.kron(torch.einsum("na,n,nc->ac", p, c, p), torch.eye(2, dtype=p.dtype))
    return TokenSum.of([Term(1.0, factors)], (3, 2), (3, 2)), dense


def sum_of_unlike_terms() -> Made:
    first, dense = kronecker_sum()
    second, other = identity_factor_square()
    total = first + second
    assert isinstance(total, StructuredOperator)
    return total, dense + other


def identity_factor_square() -> Made:
    B = randn(3, 3, seed=3)
    op = TokenSum.of([Term(0.5, (Factor("B", "ac", B), Factor.identity("bd", 2)))], (3, 2), (3, 2))
    return op, 0.5 * torch.kron(B, torch.eye(2, dtype=B.dtype))


def identity_alone() -> Made:
    factors = (Factor.identity("ac", 3), Factor.identity("bd", 2))
    op = TokenSum([Term(0.3, factors)], (3, 2), (3, 2), torch.float64, torch.device("cpu"))
    return op, 0.3 * torch.eye(6, dtype=torch.float64)


def damped() -> Made:
    """A block plus a multiple of the identity."""
    (first, dense), (second, eye) = kronecker_sum(), identity_alone()
    total = first + second
    assert isinstance(total, StructuredOperator)
    return total, dense + eye


def zero() -> Made:
    return TokenSum([], (3, 2), (4, 2), torch.float64, torch.device("cpu")), torch.zeros(6, 8, dtype=torch.float64)


def grid() -> Made:
    top, left = kronecker_sum()
    right, dense = identity_factor_square()
    blocks = {("u", "u"): (top, left), ("u", "v"): (right, dense), ("v", "u"): (right, dense), ("v", "v"): (top, left)}
    shapes = {"u": (3, 2), "v": (3, 2)}
    op = BlockGrid(shapes, shapes, lambda r, c: blocks[r, c][0], torch.float64, torch.device("cpu"))
    rows = [torch.cat([blocks[r, c][1] for c in shapes], 1) for r in shapes]
    return op, torch.cat(rows)


def _whole(kind: str, part: str) -> Callable[[], Made]:
    def make() -> Made:
        X = tokens(2)
        grid = hl.attention_hessian({**layers(), **recent_layers()}[kind], X, losses(X)["cross-entropy"]).part(part)
        # the dense blocks are checked against autograd in tests/layer/test_witnesses.py
        return grid[:], torch.cat([torch.cat([grid[r, c].to_dense() for c in grid.columns], 1) for r in grid.rows])

    return make


def _long_sequence_block(row: str, column: str) -> Callable[[], Made]:
    """Wide parameters and a batch, large enough that slicing and the symmetry of norms come into play."""

    def make() -> Made:
        layer = self_attention(20, width=24, output=22)
        X, Y = randn(3, 18, 24, seed=2), randn(3, 18, 22, seed=3)
        block = hl.attention_hessian(layer, X, hl.SquareLoss(Y)).full[row, column]
        return block, block @ torch.eye(block.shape[1], dtype=torch.float64)

    return make


def _long_block_of_a_head() -> Made:
    X = tokens(2, 9)
    block = hl.attention_hessian(self_attention(2), X, hl.SquareLoss(randn(2, 9, 3))).functional["K", "K"]
    return block, block @ torch.eye(block.shape[1], dtype=torch.float64)


OPERATORS: dict[str, Callable[[], Made]] = {
    "Kronecker sum": kronecker_sum,
    "rectangular, swapped axes": rectangular_with_swapped_axes,
    "low-rank factors": low_rank_factors,
    "identity factor": identity_factor,
    "chained identities": chained_identities,
    "sum of unlike terms": sum_of_unlike_terms,
    "identity alone": identity_alone,
    "block plus identity": damped,
    "zero": zero,
    "grid": grid,
    **{
        f"{kind}, {part}": _whole(kind, part)
        for kind in (*layers(), "gated values")
        for part in ("outer", "functional", "full")
    },
    **{f"wide block {r}{c}": _long_sequence_block(r, c) for r, c in ("QQ", "QK", "VQ", "KV", "VV")},
    "functional block of one head": _long_block_of_a_head,
}
