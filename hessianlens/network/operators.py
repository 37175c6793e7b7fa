"""`hessian`, `ggn` and `functional`: the curvature of any pair of named blocks, in closed form where there is one."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.curvature import MATRIX_FREE, verify
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.last_attention import ExactAttention, closed_form_bytes, exact_attention
from hessianlens.operators import Operator
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.sizes import readable

Pattern = str | Sequence[str]

METHODS = ("auto", "exact", "products")
_CHEAP_OUTPUTS = 512
"""Outputs a position, and width of the model, up to which the closed form is taken without being asked for."""


def hessian(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Hessian between named blocks, as an operator.

    It has the methods of every `Operator`, and all of them give exact numbers: from the closed form where there is one
    (``op.exact``), else by products, one a column. ``op.why`` says which and why, ``op.cost`` what it takes.

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
    >>> hessian(problem, "layer0.mlp.in").why
    "only weights of a decoder's last attention layer have a closed form, not layer0.mlp.in"
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
    both = (*row_blocks, *column_blocks)
    why = "method='products' was asked for"
    if method != "products":
        exact, why = _searched(problem, both, forced=method == "exact")
        if exact is not None and len(both) == 2 and exact.covers(both):
            verify(problem, [block.parameter for block in both])
            closed = exact.operator(part, *both)
            closed.why = f"what follows {exact.prefix}, the last attention layer, acts on every position alone"
            return closed
        if method == "exact":
            raise InputError(
                "method: the closed form knows single weights of a decoder's last attention layer (q, k, v, o), with "
                "two query-key matrices a head, under a loss that acts on every position alone; got "
                f"{', '.join(b.name for b in row_blocks)} x "
                f"{', '.join(b.name for b in column_blocks)}. Use method='products'."
            )
        why = why if exact is None else _why_not_covered(exact, both)
    found = MATRIX_FREE[part](problem, row_blocks, column_blocks)
    found.why = why
    return found


def _why_not_covered(exact: ExactAttention, blocks: Sequence[Block]) -> str:
    """Why a closed form that is there does not answer for some blocks."""
    outside = [block.name for block in blocks if not exact.covers([block])]
    if outside:
        return f"{outside[0]} is none of the weights of {exact.prefix} that the closed form knows (q, k, v, o)"
    return "several blocks are joined, and the closed form knows single ones"


def closed_form(problem: Problem, blocks: Sequence[Block], forced: bool = False) -> ExactAttention | None:
    """The closed form of the last attention layer, if attention is asked for and it is cheap.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What is asked for.
        forced: Take it whatever it costs, as long as it fits in memory; `InputError` if it does not.
    """
    return _searched(problem, blocks, forced)[0]


def _searched(problem: Problem, blocks: Sequence[Block], forced: bool) -> tuple[ExactAttention | None, str]:
    """The closed form, or None and why there is none."""
    attention = [block for block in blocks if ".attn." in block.name]
    if not attention:
        return None, f"only weights of a decoder's last attention layer have a closed form, not {blocks[0].name}"
    needed, outputs = closed_form_bytes(problem, attention)
    free = available_bytes(problem.device)
    short = needed > SAFE_SHARE * free
    if forced:
        expect(
            not short,
            f"memory: the closed form for {outputs} outputs a position needs {readable(needed)}, {readable(free)} are "
            "free; use method='products', or fewer or shorter sequences.",
        )
    elif (widest := max(outputs, *(max(block.shape) for block in attention))) > _CHEAP_OUTPUTS:
        return None, (
            f"the model is wide ({widest} features or outputs a position), and the closed form is taken by itself up "
            f"to {_CHEAP_OUTPUTS}; method='exact' takes it"
        )
    elif short:
        return None, f"the closed form needs {readable(needed)} of memory, {readable(free)} are free"
    exact = exact_attention(problem)
    if exact is None:
        return None, (
            "the model is not a decoder of a known kind whose last attention layer is followed by maps and a loss that "
            "act on every position alone"
        )
    return exact, ""
