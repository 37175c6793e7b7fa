"""A matrix known by Hessian-vector products that may have a closed form, planned and built when somebody needs it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from hessianlens.display import Cells, facts
from hessianlens.errors import Refusal, check_function, check_that
from hessianlens.operators.base import StructuredOperator
from hessianlens.operators.exponent_scaling import Scaled
from hessianlens.operators.kronecker import Rearranged
from hessianlens.operators.operator import Operator
from hessianlens.sizes import number_of
from hessianlens.state_guard import restores_state

T = TypeVar("T")


class NotCertified(Exception):
    """A closed form that turned out not to be the matrix while it was built; the message says by how much."""


@dataclass(frozen=True, eq=False)
class ClosedFormPlan:
    """How a closed form would be had.

    Attributes:
        why: Why there is one.
        build: Builds it; `NotCertified` if it turns out not to be the matrix.
        hvps: HVPs that it takes.
        fast_matvecs: Whether it multiplies faster than HVPs once it is built.
        little_hvps: HVPs up to which it is little work, whatever it is for.
    """

    why: str
    build: Callable[[], StructuredOperator]
    hvps: int = 0
    fast_matvecs: bool = False
    little_hvps: float = math.inf


class HybridOperator(Operator):
    """HVPs for single matvecs; norm, trace, diagonal and entries from the closed form where there is one.

    Constructing it runs nothing. The plan is made with the first question that needs it, and the closed form is built
    with the first number that comes from it. One that is not certified is dropped: HVPs answer instead.

    Args:
        hvps: The matrix by its HVPs.
        plan: Gives the plan of a closed form of the same matrix; or why there is none.
        min_matvecs: Matvecs, made or announced, from which on the closed form multiplies if it does so faster.

    >>> from hessianlens.operators import Factor, Term, TokenSum
    >>> closed = TokenSum.of([Term(2.0, (Factor("1", "ac", torch.eye(2)), Factor.identity("bd", 3)))], (2, 3), (2, 3))
    >>> op = HybridOperator(closed, lambda: ClosedFormPlan("it is twice the identity", lambda: closed, hvps=6))
    >>> op
    HybridOperator 6x6 float32
    >>> op.exact, op.trace(), op @ torch.ones(6)
    (True, tensor(12.), tensor([2., 2., 2., 2., 2., 2.]))
    >>> op
    HybridOperator 6x6 float32 (exact: 6 HVPs)
    """

    def __init__(self, hvps: Operator, plan: Callable[[], ClosedFormPlan | Refusal], min_matvecs: int = 20) -> None:
        check_that(isinstance(hvps, Operator), "hvps", hvps, "an operator")
        check_function("plan", plan, "a function that gives the plan of a closed form, or a Refusal")
        super().__init__(list(hvps._in_shape), list(hvps._out_shape))
        self.hvps, self._make_plan, self._min_matvecs = hvps, plan, min_matvecs
        self._made = self._matvecs = 0
        self._closed: StructuredOperator | None = None
        self._dropped: Refusal | None = None

    @cached_property
    @restores_state
    def plan(self) -> ClosedFormPlan | Refusal:
        """The plan of the closed form, or why there is none."""
        found = self._make_plan()
        if isinstance(found, Refusal):
            self._drop(found)
        return found

    @property
    @restores_state
    def closed(self) -> StructuredOperator | Refusal:
        """The certified closed form, or why there is none."""
        if self._closed is None and self._dropped is None and isinstance(self.plan, ClosedFormPlan):
            try:
                self._closed = self.plan.build()
            except NotCertified as error:
                self._drop(Refusal(str(error)))
        found = self._dropped or self._closed
        assert found is not None
        return found

    def _drop(self, refusal: Refusal) -> None:
        self._closed, self._dropped = None, refusal
        self.hvps.why = refusal.reason

    @property
    @restores_state
    def exact(self) -> bool:  # type: ignore[override]
        """Whether its numbers come from a certified closed form, which is built for the answer."""
        closed = self.closed
        if isinstance(closed, StructuredOperator):
            zeros = [torch.zeros(*shape, 1, dtype=self.dtype, device=self.device) for shape in self._in_shape]
            try:
                closed._matmat(zeros)
            except NotCertified as error:
                self._drop(Refusal(str(error)))
        return self._dropped is None

    @restores_state
    def exact_within(self, hvps: float) -> bool:
        """Whether its closed form, if there is one, is built already or takes no more HVPs than these, or few."""
        plan = self.plan
        if self._closed is None and isinstance(plan, ClosedFormPlan) and plan.hvps > max(hvps, plan.little_hvps):
            return False
        return self.exact

    @property
    def why(self) -> str:  # type: ignore[override]
        """Why there is a closed form, or why not and how HVPs are made."""
        plan = self.plan
        if self._dropped is None and isinstance(plan, ClosedFormPlan):
            return plan.why if self._closed is None else self._closed.why
        return self.hvps.why

    @property
    def method(self) -> str:  # type: ignore[override]
        """How its numbers are computed."""
        return "closed form and HVPs" if self._dropped is None else self.hvps.method

    @property
    def dtype(self) -> torch.dtype:
        """That of the HVPs."""
        return self.hvps.dtype

    @property
    def device(self) -> torch.device:
        """That of the HVPs."""
        return self.hvps.device

    @property
    def product_cost(self) -> str:
        """That of an HVP."""
        return self.hvps.product_cost

    @property
    def cost(self) -> str:
        """What a matvec costs, and what the rest does."""
        if isinstance(plan := self.plan, Refusal) or self._dropped is not None:
            return self.hvps.cost
        measured = self.hvps.measured_cost
        hvps = number_of(plan.hvps, "HVP")
        closed = f"{self.product_cost}; its norm, trace, diagonal and entries from a closed form: {hvps}"
        return f"{closed}; {measured}" if measured else closed

    def announce(self, products: int) -> None:
        """Announce how many matvecs will follow: a closed form that multiplies faster is then built first."""
        super().announce(products)
        self.hvps.announce(products)
        self._matvecs = max(self._matvecs, self._made + products)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        self._made += X[0].shape[-1]
        self._matvecs = max(self._matvecs, self._made)  # those that were announced are not counted twice
        if self._multiplies_in_closed_form():
            return self._answer(lambda op: op._matmat(X))
        return self.hvps._matmat(X)

    def _multiplies_in_closed_form(self) -> bool:
        if self._dropped is not None or (self._closed is None and self._matvecs < self._min_matvecs):
            return False
        plan = self.plan
        if not isinstance(plan, ClosedFormPlan) or not plan.fast_matvecs:
            return False
        return self._closed is not None or self._matvecs >= plan.hvps

    @restores_state
    def _answer(self, ask: Callable[[Operator], T]) -> T:
        """From the closed form, or by HVPs where there is none."""
        closed = self.closed
        if isinstance(closed, StructuredOperator):
            try:
                return ask(closed)
            except NotCertified as error:
                self._drop(Refusal(str(error)))
        return ask(self.hvps)

    def _adjoint(self) -> HybridOperator:
        def turned() -> ClosedFormPlan | Refusal:
            plan = self.plan
            if isinstance(plan, Refusal) or self._dropped is not None:
                return self._dropped or Refusal(str(plan))
            return replace(plan, build=self._turned)

        hvps = self.hvps.adjoint()
        assert isinstance(hvps, Operator)
        return HybridOperator(hvps, turned, self._min_matvecs)

    def _turned(self) -> StructuredOperator:
        closed = self.closed
        if isinstance(closed, Refusal):
            raise NotCertified(closed.reason)
        found = closed.adjoint()
        assert isinstance(found, StructuredOperator)
        found.why = closed.why
        return found

    def _dense_into(self, target: Tensor) -> None:
        self._answer(lambda op: op._dense_into(target))

    def _trace(self) -> Tensor:
        return self._answer(lambda op: op._trace())

    def _diagonal(self) -> Tensor:
        return self._answer(lambda op: op._diagonal())

    def _frobenius_square(self) -> Scaled:
        return self._answer(lambda op: op._frobenius_square())

    def _rearranged(self) -> Rearranged:
        return self._answer(lambda op: op._rearranged())

    def _cells(self) -> Cells:
        """What is known without running anything."""
        known = {"rows": self.shape[0], "columns": self.shape[1], "dtype": str(self.dtype).removeprefix("torch.")}
        return facts({**known, "closed form": self._state() or "not planned yet", "matvec": self.product_cost})

    def __repr__(self) -> str:
        """Short, and nothing runs for it."""
        rows, columns = self.shape
        dtype = str(self.dtype).removeprefix("torch.")
        state = f" ({self._state()})" if self._state() else ""
        return f"{type(self).__name__} {rows}x{columns} {dtype}{state}"

    def _state(self) -> str:
        if self._dropped is not None:
            return "HVPs"
        if not isinstance(plan := vars(self).get("plan"), ClosedFormPlan):
            return ""
        return f"{'exact' if self._closed else 'exact on demand'}: {number_of(plan.hvps, 'HVP')}"
