"""`hessian`, `ggn` and `functional`: the curvature of any pair of named blocks, in closed form where there is one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from hessianlens.curvature import BlockPairOperator, FunctionalOperator, GaussNewtonOperator, HessianOperator, verify
from hessianlens.errors import check_choice, expect
from hessianlens.network.exactly import ANY_PRICE, Answer, Price, exactly
from hessianlens.operators import BlockGrid, StructuredOperator
from hessianlens.problems import Block, Problem, check_problem

Pattern = str | Sequence[str]
Operator = BlockPairOperator | StructuredOperator

_MATRIX_FREE: dict[str, type[BlockPairOperator]] = {
    "full": HessianOperator,
    "ggn": GaussNewtonOperator,
    "functional": FunctionalOperator,
}
METHODS = ("auto", "exact", "products")


def hessian(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Hessian between named blocks, as an operator.

    Args:
        problem: From `hessianlens.problem`.
        rows: Block names, globs or ``re:`` expressions; several blocks are stacked in model order.
        cols: The same for the columns; default: the rows.
        method: "exact" (closed form: weights, biases and gains of any layer that enter through a linear map),
            "products" (matrix-free, exact products by double backward), or "auto": the closed form where it takes few
            products and little memory.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> hessian(problem, "layer0.attn.q").shape
    (64, 64)
    >>> hessian(problem, "layer0.mlp.in", method="products")
    HessianOperator 128x128: [layer0.mlp.in] x [layer0.mlp.in], double backward, about 2 gradients a product
    """
    return _operator("full", problem, rows, cols, method)


def ggn(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Gauss-Newton matrix ``J^T C J`` between named blocks; arguments as for `hessian`."""
    return _operator("ggn", problem, rows, cols, method)


def functional(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The functional Hessian, Hessian minus Gauss-Newton, between named blocks; arguments as for `hessian`."""
    return _operator("functional", problem, rows, cols, method)


def _operator(part: str, problem: Problem, rows: Pattern, cols: Pattern | None, method: str) -> Operator:
    check_problem(problem)
    check_choice("method", method, METHODS)
    row_blocks = problem.select(rows)
    column_blocks = row_blocks if cols is None else problem.select(cols)
    if method != "products":
        found = _exact(part, problem, row_blocks, column_blocks, ANY_PRICE if method == "exact" else Price())
        if not isinstance(found, str):
            return found
        expect(method != "exact", f"method: got 'exact', but {found}; expected 'auto' or 'products'.")
    return _MATRIX_FREE[part](problem, row_blocks, column_blocks)


def _exact(
    part: str, problem: Problem, rows: Sequence[Block], columns: Sequence[Block], price: Price
) -> StructuredOperator | str:
    """The matrix in closed form; why there is none, in words, if it cannot be had at the price."""
    source, spent = exactly(problem), 0.0
    answers: dict[tuple[Hashable, Hashable], Answer] = {}
    for row in rows:
        for column in columns:
            mirrored = answers.get((column.name, row.name))
            if mirrored is None:
                left = replace(price, products=price.products - spent)
                found = source.answer(row, column, left)
                if isinstance(found, str):
                    return f"{row.name} x {column.name}: {found}"
                spent += found.products
                answers[row.name, column.name] = found
    verify(problem, [block.parameter for block in rows], [block.parameter for block in columns])
    if len(rows) == len(columns) == 1:
        return answers[rows[0].name, columns[0].name].operator(part)

    def build(row: Hashable, column: Hashable) -> StructuredOperator:
        if (row, column) in answers:
            return answers[row, column].operator(part)
        turned = answers[column, row].operator(part).adjoint()
        assert isinstance(turned, StructuredOperator)
        return turned

    same = [block.name for block in rows] == [block.name for block in columns]
    return BlockGrid(_shapes(rows), _shapes(columns), build, problem.dtype, problem.device, symmetric=same)


def _shapes(blocks: Sequence[Block]) -> dict[Hashable, tuple[int, ...]]:
    return {block.name: block.shape for block in blocks}
