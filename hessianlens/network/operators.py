"""`hessian`, `ggn` and `functional`: the curvature of any pair of named blocks, in closed form where there is one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from hessianlens.curvature import MATRIX_FREE, verify
from hessianlens.errors import check_choice, expect
from hessianlens.network.exact_blocks import ANY_PRICE, Answer, Exactly, Price, exactly
from hessianlens.operators import BlockGrid, Operator, StructuredOperator, Twofold
from hessianlens.parts import METHODS
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.state_guard import restores_state

Pattern = str | Sequence[str]


@restores_state
def hessian(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Hessian between named blocks, as an operator.

    It has the methods of every `Operator`, and all of them give exact numbers: from the closed form where there is one
    (``op.exact``), else by products, one a column. ``op.why`` says which and why, ``op.cost`` what it takes.

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
    >>> hessian(problem, "embed").why
    'it enters the network through embedding'
    """
    return _operator("full", problem, rows, cols, method)


@restores_state
def ggn(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Gauss-Newton matrix ``J^T C J`` between named blocks; arguments as for `hessian`."""
    return _operator("ggn", problem, rows, cols, method)


@restores_state
def functional(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The functional Hessian, Hessian minus Gauss-Newton, between named blocks; arguments as for `hessian`."""
    return _operator("functional", problem, rows, cols, method)


def _operator(part: str, problem: Problem, rows: Pattern, cols: Pattern | None, method: str) -> Operator:
    check_problem(problem)
    check_choice("method", method, METHODS)
    row_blocks = problem.select(rows)
    column_blocks = row_blocks if cols is None else problem.select(cols)
    products = MATRIX_FREE[part](problem, row_blocks, column_blocks)
    products.why = "method='products' was asked for"
    if method == "products":
        return products
    answers = _agreed(problem, row_blocks, column_blocks, ANY_PRICE if method == "exact" else Price())
    if isinstance(answers, str):
        expect(method != "exact", f"method: got 'exact', but {answers}; expected 'auto' or 'products'.")
        products.why = answers
        return products
    verify(problem, [block.parameter for block in row_blocks], [block.parameter for block in column_blocks])
    joined = partial(_joined, answers, part, row_blocks, column_blocks, problem)
    if method == "exact" or not any(answer.waits for answer in answers.values()):
        return joined()
    return Twofold(products, joined, _why(answers))


Answers = dict[tuple[Hashable, Hashable], Answer]
"""By row and column; of two blocks that are each other's transpose, the first."""


def _agreed(problem: Problem, rows: Sequence[Block], columns: Sequence[Block], price: Price) -> Answers | str:
    """Every block exactly, if all processes can have it; else why one of them cannot, in words."""
    source, own = exactly(problem), list[Answers | str]()

    def look() -> str:
        own.append(_answers(source, rows, columns, price))
        return own[0] if isinstance(own[0], str) else ""

    refusals = problem.ranks.shared("closed forms", look)
    return next(filter(None, refusals), own[0])


def _answers(source: Exactly, rows: Sequence[Block], columns: Sequence[Block], price: Price) -> Answers | str:
    """Every block exactly; why one of them is not, in words, if it cannot be had at the price."""
    left, answers = price, Answers()
    for row in rows:
        for column in columns:
            if (column.name, row.name) in answers:
                continue
            found = source.answer(row, column, left)
            if isinstance(found, str):
                return f"{row.name} x {column.name}: {found}" if len(rows) * len(columns) > 1 else found
            left = Price(left.products - found.products, left.held_bytes - found.held_bytes)
            answers[row.name, column.name] = found
    return answers


def _joined(
    answers: Answers, part: str, rows: Sequence[Block], columns: Sequence[Block], problem: Problem
) -> StructuredOperator:
    """The closed form of all blocks together."""
    if len(rows) == len(columns) == 1:
        return _with_reason(answers[rows[0].name, columns[0].name], part)

    def build(row: Hashable, column: Hashable) -> StructuredOperator:
        if (row, column) in answers:
            return _with_reason(answers[row, column], part)
        turned = _with_reason(answers[column, row], part).adjoint()
        assert isinstance(turned, StructuredOperator)
        return turned

    same = [block.name for block in rows] == [block.name for block in columns]
    grid = BlockGrid(_shapes(rows), _shapes(columns), build, problem.dtype, problem.device, symmetric=same)
    grid.why = _why(answers)
    return grid


def _why(answers: Answers) -> str:
    return "; ".join(dict.fromkeys(answer.why for answer in answers.values()))


def _with_reason(answer: Answer, part: str) -> StructuredOperator:
    operator = answer.operator(part)
    operator.why = answer.why
    return operator


def _shapes(blocks: Sequence[Block]) -> dict[Hashable, tuple[int, ...]]:
    return {block.name: block.shape for block in blocks}
