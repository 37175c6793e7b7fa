"""Sums and multiples of operators that have no common closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import indent

import torch
from torch import Tensor

from hessianlens.errors import check_number, check_that, expect
from hessianlens.operators.operator import Operator
from hessianlens.operators.tensor_list_operator import TensorListOperator, is_linear_operator


class LinearCombination(Operator):
    """``sum_k c_k A_k``, of any operators between the same parameters.

    Products, traces and diagonals are those of the summands; its norm and entries take one matvec per column. It is
    exact if all of its summands are.

    Args:
        terms: Numbers and operators, at least one pair; combinations among them are taken apart.

    >>> import hessianlens as hl
    >>> model, task = hl.models.Transformer(layers=1, d_model=4, d_mlp=3, dtype=torch.float64), hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    >>> H, G = (make(problem, "layer0.mlp.in", method="hvp") for make in (hl.hessian, hl.ggn))
    >>> op = H - G / 2
    >>> op
    LinearCombination 12x12 float64, about 2 gradients per matvec + about 3 gradients per matvec:
      +1 HessianOperator 12x12: [layer0.mlp.in] x [layer0.mlp.in], double backward, about 2 gradients per matvec
      -0.5 GaussNewtonOperator 12x12: [layer0.mlp.in] x [layer0.mlp.in], Jacobian products, about 3 gradients per matvec
    >>> bool(torch.isclose(op.trace(), op.to_dense().trace()))
    True
    """

    def __init__(self, terms: Sequence[tuple[float, TensorListOperator]]) -> None:
        flat: list[tuple[float, TensorListOperator]] = []
        for number, op in _checked(terms):
            flat += [(number * c, A) for c, A in op.terms] if isinstance(op, LinearCombination) else [(number, op)]
        expect(
            all(math.isfinite(number) for number, _ in flat),
            "scalar: the numbers of a multiple of a multiple have an infinite product, expected a finite one.",
        )
        super().__init__(flat[0][1]._in_shape, flat[0][1]._out_shape)
        self.terms: tuple[tuple[float, TensorListOperator], ...] = tuple(flat)

    @property
    def exact(self) -> bool:  # type: ignore[override]  # a summand may learn that only when it is asked
        """Whether every summand is in closed form."""
        return all(isinstance(op, Operator) and op.exact for _, op in self.terms)

    def exact_within(self, hvps: float) -> bool:
        """Whether every summand is in closed form, for no more HVPs than these, which an estimate takes of each."""
        return all(isinstance(op, Operator) and op.exact_within(hvps) for _, op in self.terms)

    @property
    def method(self) -> str:  # type: ignore[override]
        """How the numbers of the summands are computed."""
        return " and ".join(dict.fromkeys(_method(op) for _, op in self.terms))

    @property
    def why(self) -> str:  # type: ignore[override]  # summands learn how their products are made while they make them
        """What the summands say of themselves now."""
        return _why([op for _, op in self.terms])

    @property
    def dtype(self) -> torch.dtype:
        """The widest dtype of the summands."""
        found: torch.dtype = self.terms[0][1].dtype
        for _, op in self.terms[1:]:
            found = torch.promote_types(found, op.dtype)
        return found

    @property
    def device(self) -> torch.device:
        """The device of the summands."""
        found: torch.device = self.terms[0][1].device
        return found

    @property
    def product_cost(self) -> str:
        """Those of the summands."""
        return " + ".join(
            op.product_cost if isinstance(op, Operator) else f"a matvec of {type(op).__name__}" for _, op in self.terms
        )

    def announce(self, products: int) -> None:
        """To every summand."""
        for _, op in self.terms:
            if isinstance(op, Operator):
                op.announce(products)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        result: list[Tensor] | None = None
        for number, op in self.terms:
            products = [number * part.to(self.dtype) for part in op._matmat([x.to(op.dtype) for x in X])]
            result = products if result is None else [a + b for a, b in zip(result, products, strict=True)]
        assert result is not None
        return result

    def _adjoint(self) -> LinearCombination:
        return LinearCombination([(number, op.adjoint()) for number, op in self.terms])

    def _diagonal(self) -> Tensor:
        parts = [(number, op) for number, op in self.terms if isinstance(op, Operator)]
        if len(parts) < len(self.terms):
            return super()._diagonal()
        return torch.stack([number * op._diagonal().to(self.dtype) for number, op in parts]).sum(0)

    def __repr__(self) -> str:
        summands = "\n".join(indent(f"{number:+.4g} {_shown(op)}", "  ") for number, op in self.terms)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"LinearCombination {self.shape[0]}x{self.shape[1]} {dtype}, {self.product_cost}:\n{summands}"


def _checked(terms: object) -> list[tuple[float, TensorListOperator]]:
    """Numbers with operators between the same parameters, on one device."""
    pairs = isinstance(terms, Sequence) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in terms)
    check_that(pairs and bool(terms), "terms", terms, "pairs of a number and an operator, at least one")
    assert isinstance(terms, Sequence)
    for number, op in terms:
        check_number("scalar", number)
        check_that(is_linear_operator(op), "operator", op, "a linear operator of this package or curvlinops")
    first = terms[0][1]
    for _, op in terms[1:]:
        expect(
            first._in_shape == op._in_shape and first._out_shape == op._out_shape,
            f"operator: got one {op.shape[0]}x{op.shape[1]} on other parameters, expected "
            f"{first.shape[0]}x{first.shape[1]} on the same ones.",
        )
        expect(first.device == op.device, f"operator: got one on {op.device}, expected {first.device} as the other.")
    return list(terms)


def _shown(op: TensorListOperator) -> str:
    return repr(op) if isinstance(op, Operator) else f"{type(op).__name__} {op.shape[0]}x{op.shape[1]}"


def _method(op: TensorListOperator) -> str:
    return op.method if isinstance(op, Operator) else f"products of {type(op).__name__}"


def _why(summands: Sequence[TensorListOperator]) -> str:
    if len(summands) == 1 and isinstance(summands[0], Operator):
        return summands[0].why
    through = [op for op in summands if not (isinstance(op, Operator) and op.exact)]
    if not through:
        return "every summand is in closed form"
    first = through[0].why if isinstance(through[0], Operator) else f"{type(through[0]).__name__} has only these"
    return f"{len(through)} of {len(summands)} summands go through matvecs: {first}"
