"""What must hold of a matrix-free operator on every case, stated once and checked for right and wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.problems import Problem
from tests.curvature.registry import CASES, dense_of, problem_of
from tests.oracles.comparison import assert_same
from tests.oracles.network import PARTS
from tests.variants import randn

Make = Callable[..., object]
"""An operator from a problem, rows and columns."""

OPERATORS: dict[str, Make] = {
    "full": lambda p, rows, cols=None: hl.hessian(p, rows, cols, method="hvp"),
    "ggn": lambda p, rows, cols=None: hl.ggn(p, rows, cols, method="hvp"),
    "functional": lambda p, rows, cols=None: hl.functional(p, rows, cols, method="hvp"),
}


def identity(op) -> Tensor:
    return torch.eye(op.shape[1], dtype=op.dtype)


def some_pairs(names: list[str]) -> Iterator[tuple[str, str]]:
    """Every block as rows with the next one as columns, and two pairs the other way round."""
    yield from zip(names, names[1:] + names[:1], strict=True)
    yield names[-1], names[0]
    yield names[2], names[0]


def whole_matrix(part: str, name: str, make: Make) -> None:
    """All blocks stacked, on random vectors: no entry of a diagonal or off-diagonal block can be wrong unseen."""
    op = make(problem_of(name), list(CASES[name].blocks))
    V = randn(op.shape[1], 4, seed=0)
    assert_same(op @ V, getattr(dense_of(name), PARTS[part]) @ V, part, CASES[name].relative)


def single_blocks(part: str, name: str, make: Make) -> None:
    """Diagonal blocks by themselves, and pairs of blocks, with a single vector and with several."""
    dense, relative = dense_of(name), CASES[name].relative
    names = list(CASES[name].blocks)
    for row, column in [*((n, n) for n in names), *some_pairs(names)]:
        op, expected = make(problem_of(name), row, column), dense.block(PARTS[part], row, column)
        assert op.shape == tuple(expected.shape)
        # A block may be zero, or tiny beside the others, by structure; then their rounding is the measure.
        size = max(float(expected.norm()), 1e-3 * float(getattr(dense, PARTS[part]).norm()))
        for V in (randn(op.shape[1], 2, seed=1), randn(op.shape[1], seed=1)):
            error = float((op @ V - expected @ V).norm())
            assert error <= relative * size * float(V.norm()), f"{part} {row} x {column}: relative error {error / size}"


def tensor_lists(part: str, name: str, make: Make) -> None:
    """Vectors, and matrices, as one tensor per block."""
    names = list(CASES[name].blocks)
    op = make(problem_of(name), names[::-1], names[:-1])
    dense, relative = getattr(dense_of(name), PARTS[part]), CASES[name].relative
    expected = dense[:, : op.shape[1]]
    for columns in ((), (2,)):
        V = randn(op.shape[1], *columns, seed=2)
        pieces = [v.reshape(*s, *columns) for v, s in zip(V.split(op._in_shape_flat), op._in_shape, strict=True)]
        found = op @ pieces
        assert [tuple(f.shape) for f in found] == [(*problem_of(name).blocks[n].shape, *columns) for n in names]
        assert_same(torch.cat([f.reshape(-1, *columns) for f in found]), expected @ V, f"{part} @ list", 10 * relative)


def adjoint(part: str, name: str, make: Make) -> None:
    """Rows and columns exchanged, twice."""
    names = list(CASES[name].blocks)
    op, expected = make(problem_of(name), names[0], names[1:]), getattr(dense_of(name), PARTS[part])
    rows = dense_of(name).ranges[names[0]]
    U = randn(op.shape[0], 2, seed=3)
    assert_same(op.adjoint() @ U, expected[rows, rows.stop :].T @ U, f"{part}^T @ U", 10 * CASES[name].relative)
    assert op.adjoint().adjoint().shape == op.shape


AGREEMENTS = (whole_matrix, single_blocks, tensor_lists, adjoint)


def same_operator(found: Problem, expected: Problem, blocks: list[str], relative: float) -> None:
    """Two problems have the same curvature in every part."""
    for part, make in OPERATORS.items():
        V = randn(make(expected, blocks).shape[1], 2, seed=4)
        op = make(found, blocks)
        assert_same((op @ V.to(op.dtype)).double(), (make(expected, blocks) @ V).double(), part, relative)
