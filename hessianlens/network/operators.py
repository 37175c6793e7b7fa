"""`hessian`, `ggn` and `functional`: the curvature of any pair of named blocks, in closed form where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.curvature import BlockPairOperator, FunctionalOperator, GaussNewtonOperator, HessianOperator, verify
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.last_attention import ExactAttention, closed_form_bytes, exact_attention
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.sizes import readable

Pattern = str | Sequence[str]
Operator = BlockPairOperator | StructuredOperator

_MATRIX_FREE: dict[str, type[BlockPairOperator]] = {
    "full": HessianOperator,
    "ggn": GaussNewtonOperator,
    "functional": FunctionalOperator,
}
METHODS = ("auto", "exact", "products")
_CHEAP_OUTPUTS = 512
"""Outputs a position, and width of the model, up to which the closed form is taken without being asked for."""


def hessian(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Hessian between named blocks, as an operator.

    Args:
        problem: From `hessianlens.problem`.
        rows: Block names, globs or ``re:`` expressions; several blocks are stacked in model order.
        cols: The same for the columns; default: the rows.
        method: "exact" (closed form, for weights of a decoder's last attention layer), "products" (matrix-free, exact
            products by double backward), or "auto": the closed form where it applies and is cheap.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> hessian(problem, "layer0.attn.q").shape
    (64, 64)
    >>> hessian(problem, "layer0.mlp.in")
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
        exact = closed_form(problem, (*row_blocks, *column_blocks), forced=method == "exact")
        one = len(row_blocks) == len(column_blocks) == 1
        if exact is not None and one and exact.covers((*row_blocks, *column_blocks)):
            verify(problem, [block.parameter for block in (*row_blocks, *column_blocks)])
            return exact.operator(part, row_blocks[0], column_blocks[0])
        if method == "exact":
            raise InputError(
                "method: the closed form knows single weights of a decoder's last attention layer (q, k, v, o), with "
                "two query-key matrices a head, under a loss that acts on every position alone; got "
                f"{', '.join(b.name for b in row_blocks)} x "
                f"{', '.join(b.name for b in column_blocks)}. Use method='products'."
            )
    return _MATRIX_FREE[part](problem, row_blocks, column_blocks)


def closed_form(problem: Problem, blocks: Sequence[Block], forced: bool = False) -> ExactAttention | None:
    """The closed form of the last attention layer, if attention is asked for and it is cheap.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What is asked for.
        forced: Take it whatever it costs, as long as it fits in memory; `InputError` if it does not.
    """
    attention = [block for block in blocks if ".attn." in block.name]
    if not attention:
        return None
    needed, outputs = closed_form_bytes(problem, attention)
    fits = needed <= SAFE_SHARE * available_bytes(problem.device)
    if not forced:
        wide = max(outputs, max(max(block.shape) for block in attention)) > _CHEAP_OUTPUTS
        return None if wide or not fits else exact_attention(problem)
    expect(
        fits,
        f"memory: the closed form for {outputs} outputs a position needs {readable(needed)}, "
        f"{readable(available_bytes(problem.device))} are free; use method='products', or fewer or shorter sequences.",
    )
    return exact_attention(problem)
