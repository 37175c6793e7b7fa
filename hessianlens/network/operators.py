"""`hessian`, `ggn` and `functional`: the curvature of any pair of named blocks, in closed form where there is one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from hessianlens.curvature import MATRIX_FREE, verify
from hessianlens.errors import InputError, Refusal
from hessianlens.network.base import thresholds
from hessianlens.network.base.price import little_hvps
from hessianlens.network.base.question import NO_LIMITS, Limits, Question
from hessianlens.network.planner import Choice, Planner, planner_of
from hessianlens.operators import (
    BlockGrid,
    HybridOperator,
    Operator,
    StructuredOperator,
)
from hessianlens.operators.hybrid import ClosedFormPlan, NotCertified
from hessianlens.parts import method_name
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.state_guard import restores_state

Pattern = str | Sequence[str]


@restores_state
def hessian(problem: Problem, rows: Pattern, cols: Pattern | None = None, *, method: str = "auto") -> Operator:
    """The Hessian between named blocks, as an operator.

    It has the methods of every `Operator`, and all of them are exact: from the closed form where there is one
    (``op.exact``), else from HVPs, one per column. ``op.why`` says which and why, ``op.cost`` what it costs.

    Args:
        problem: From `hessianlens.problem`.
        rows: Block names, globs or ``re:`` expressions; several blocks are stacked in model order.
        cols: The same for the columns; default: `rows`.
        method: "exact" (closed form, for weights, biases and gains of any layer that enter through a linear map),
            "hvp" (matrix-free: exact Hessian-vector products by double backward), or "auto": the closed form where it
            takes few HVPs and little memory.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> hessian(problem, "layer0.attn.q").shape
    (64, 64)
    >>> hessian(problem, "layer0.mlp.in", method="hvp")
    HessianOperator 128x128: [layer0.mlp.in] x [layer0.mlp.in], double backward, about 2 gradients per matvec
    >>> hessian(problem, "layer0.mlp.in").why
    'it enters through a linear map, and the loss couples no two positions of its output; 16 HVPs'
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
    method = method_name(method)
    row_blocks = problem.select(rows)
    column_blocks = row_blocks if cols is None else problem.select(cols)
    hvps = MATRIX_FREE[part](problem, row_blocks, column_blocks)
    if method == "hvp":
        hvps.why = "method='hvp' was asked for"
        return hvps
    blocks = _Blocks(problem, row_blocks, column_blocks, part)
    if method == "exact":
        choices = blocks.choices(NO_LIMITS)
        if isinstance(choices, Refusal):
            raise InputError(f"method: got 'exact', but {choices}; expected 'auto' or 'hvp'.")
        try:
            return blocks.joined(choices)
        except NotCertified as error:
            raise InputError(f"method: got 'exact', but {error}; expected 'auto' or 'hvp'.") from error
    return HybridOperator(hvps, blocks.plan, thresholds.CLOSED_FORM_MIN_MATVECS)


Choices = dict[tuple[str, str], Choice]
"""By row and column; of two blocks that are each other's transpose, the first."""


@dataclass(frozen=True, eq=False)
class _Blocks:
    """A part of the curvature between some blocks and others, by closed forms."""

    problem: Problem
    rows: Sequence[Block]
    columns: Sequence[Block]
    part: str

    def plan(self) -> ClosedFormPlan | Refusal:
        """How the closed form of all blocks together would be had within the usual limits; or why there is none."""
        choices = self.choices(Limits())
        if isinstance(choices, Refusal):
            return choices
        costs = {choice.question.pair: choice.cost for choice in choices.values()}
        shared = {pair if cost.shared is None else cost.shared: cost.upfront_hvps for pair, cost in costs.items()}
        certificates = {column: cost.certificate_hvps for (_, column), cost in costs.items()}
        return ClosedFormPlan(
            why=_why(choices),
            build=partial(self.joined, choices),
            hvps=sum(shared.values()) + sum(certificates.values()),
            fast_matvecs=all(choice.cost.fast_matvecs for choice in choices.values()),
            little_hvps=little_hvps(self.problem),
        )

    def choices(self, limits: Limits) -> Choices | Refusal:
        """A route for every block, if all ranks have one; else why one of them has none."""
        planner, own = planner_of(self.problem), list[Choices | Refusal]()

        def look() -> str:
            own.append(self._own_choices(planner, limits))
            return str(own[0]) if isinstance(own[0], Refusal) else ""

        refusals = self.problem.ranks.all_gather("closed forms", look)
        refused = next(filter(None, refusals), "")
        return Refusal(refused) if refused else own[0]

    def _own_choices(self, planner: Planner, limits: Limits) -> Choices | Refusal:
        left, choices = limits, Choices()
        for row in self.rows:
            for column in self.columns:
                if (column.name, row.name) in choices:
                    continue
                found = planner.choose(Question(row, column, left))
                if isinstance(found, Refusal):
                    several = len(self.rows) * len(self.columns) > 1
                    return Refusal(f"{row.name} x {column.name}: {found}") if several else found
                left = Limits(left.hvps - found.cost.hvps, left.held_bytes - found.cost.held_bytes)
                choices[row.name, column.name] = found
        return choices

    def joined(self, choices: Choices) -> StructuredOperator:
        """The closed form of all blocks together, each certified when it is built; `NotCertified` if one is not."""
        verify(self.problem, [b.parameter for b in self.rows], [b.parameter for b in self.columns])
        planner = planner_of(self.problem)
        planner.announce([choice.question for choice in choices.values()])
        if len(self.rows) == len(self.columns) == 1:
            return self._certified(planner, choices[self.rows[0].name, self.columns[0].name])

        def build(row: Hashable, column: Hashable) -> StructuredOperator:
            assert isinstance(row, str) and isinstance(column, str)
            if (row, column) in choices:
                return self._certified(planner, choices[row, column])
            turned = self._certified(planner, choices[column, row]).adjoint()
            assert isinstance(turned, StructuredOperator)
            return turned

        same = [block.name for block in self.rows] == [block.name for block in self.columns]
        shapes: list[dict[Hashable, tuple[int, ...]]] = [
            {block.name: block.shape for block in blocks} for blocks in (self.rows, self.columns)
        ]
        grid = BlockGrid(shapes[0], shapes[1], build, self.problem.dtype, self.problem.device, symmetric=same)
        grid.why = _why(choices)
        return grid

    def _certified(self, planner: Planner, choice: Choice) -> StructuredOperator:
        found = planner.operator(choice, self.part)
        if isinstance(found, Refusal):
            raise NotCertified(found.reason)
        return found[0]


def _why(choices: Choices) -> str:
    return "; ".join(dict.fromkeys(choice.why for choice in choices.values()))
