"""Matvecs that were announced are not counted twice: a few of them ask for no plan of a closed form."""

from __future__ import annotations

import torch

from hessianlens.operators import Factor, HybridOperator, Term, TokenSum
from hessianlens.operators.hybrid import ClosedFormPlan


def test_a_plan_is_asked_for_where_so_many_matvecs_are_made_or_announced() -> None:
    closed = TokenSum.of([Term(2.0, (Factor("1", "ac", torch.eye(2)), Factor.identity("bd", 3)))], (2, 3), (2, 3))
    asked: list[int] = []

    def plan() -> ClosedFormPlan:
        asked.append(1)
        return ClosedFormPlan("it is twice the identity", lambda: closed, hvps=6)

    op = HybridOperator(closed, plan, min_matvecs=20)
    op.announce(10)
    for _ in range(19):
        op @ torch.ones(6)
    assert not asked
    op @ torch.ones(6)
    assert asked
    early = HybridOperator(closed, plan, min_matvecs=20)
    asked.clear()
    early @ torch.ones(6, 12)
    early.announce(8)
    early @ torch.ones(6)
    assert asked
