"""Every kind of operator keeps the one contract, and operators that break it are found out."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest
import torch
from curvlinops._torch_base import PyTorchLinearOperator
from curvlinops.examples import TensorLinearOperator
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature import MATRIX_FREE, HessianOperator
from hessianlens.operators import LinearCombination, Operator, TokenSum, operator
from hessianlens.operators.exponent_scaling import Scaled
from tests.curvature.registry import dense_of, problem_of
from tests.operators.registry import OPERATORS as CLOSED_FORMS
from tests.operators.registry import kronecker_sum
from tests.oracles.comparison import assert_same
from tests.oracles.contract import CONTRACT
from tests.oracles.network import PARTS
from tests.variants import randn

Made = tuple[Operator, Tensor]
MAKE = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}
TOY, DEEP = "toy", "toy, two layers, two heads, pre-norm, sigmoid"
Q, V, MLP = "layer0.attn.q", "layer0.attn.v", "layer0.mlp.in"


def block(
    part: str, rows: str | list[str], cols: str | list[str] | None = None, method: str = "hvp", case: str = TOY
) -> Made:
    """A block of a model, with its dense matrix by autograd."""
    op = MAKE[part](problem_of(case), rows, cols, method=method)
    dense, places = getattr(dense_of(case), PARTS[part]), dense_of(case).ranges
    chosen = [rows, rows if cols is None else cols]
    indices = [
        torch.cat([torch.arange(dense.shape[0])[places[name]] for name in ([c] if isinstance(c, str) else c)])
        for c in chosen
    ]
    return op, dense[indices[0]][:, indices[1]]


def combined(first: Made, second: Made, a: float, b: float) -> Made:
    return a * first[0] + b * second[0], a * first[1] + b * second[1]


def adjoint(made: Made) -> Made:
    return made[0].adjoint(), made[1].T


def with_theirs() -> Made:
    """One of ours and one of curvlinops'."""
    op, dense = block("full", "layer0.attn.v.bias", case=DEEP)
    matrix = randn(*dense.shape, seed=5)
    return op - TensorLinearOperator(matrix), dense - matrix


REGISTRY: dict[str, Callable[[], Made]] = {
    **{
        f"closed form: {name}": make for name, make in CLOSED_FORMS.items() if name in ("Kronecker sum", "grid", "zero")
    },
    **{f"closed form: {name}": CLOSED_FORMS[name] for name in ("rectangular, swapped axes", "wide block QQ")},
    **{f"arranged grid, {part}": lambda part=part: block(part, Q, method="exact") for part in MAKE},
    "arranged grid, off the diagonal": lambda: block("full", Q, V, "exact"),
    "arranged grid, two heads": lambda: block("full", "layer1.attn.k", method="exact", case=DEEP),
    **{f"products, {part}": lambda part=part: block(part, MLP) for part in MAKE},
    **{f"products, {part}, off the diagonal": lambda part=part: block(part, Q, MLP) for part in MAKE},
    "products, several blocks": lambda: block("full", [Q, MLP]),
    "products, several blocks by one": lambda: block("ggn", [Q, V, MLP], "unembed"),
    **{f"linear map, {part}": lambda part=part: block(part, MLP, method="exact") for part in MAKE},
    "linear maps, off the diagonal": lambda: block("functional", Q, MLP, "exact"),
    "linear maps, several blocks": lambda: block("full", [Q, V, MLP], "unembed", "exact"),
    "auto, hybrid": lambda: block("full", MLP, method="auto"),
    "auto, hybrid, off the diagonal": lambda: block("functional", Q, MLP, method="auto"),
    "auto, several blocks": lambda: block("full", [Q, MLP], method="auto"),
    "a multiple of a hybrid one": lambda: ((r := block("ggn", MLP, method="auto"))[0] * 2.0, 2.0 * r[1]),
    "adjoint of a hybrid one": lambda: adjoint(block("full", Q, MLP, method="auto")),
    "auto, closed form": lambda: block("ggn", V, method="auto"),
    "a sum of products": lambda: combined(block("ggn", MLP), block("functional", MLP), 1.0, 1.0),
    "a difference of products": lambda: combined(block("full", Q, MLP), block("ggn", Q, MLP), 1.0, -1.0),
    "a multiple of products": lambda: ((r := block("full", MLP))[0] * -3.0, -3.0 * r[1]),
    "closed form minus products": lambda: combined(block("full", Q, method="exact"), block("ggn", Q), 1.0, -2.0),
    "products plus closed form": lambda: combined(block("full", V, Q), block("ggn", V, Q, "exact"), 0.5, 1.0),
    "a sum of sums": lambda: combined(
        combined(block("full", Q), block("ggn", Q), 1.0, 2.0),
        combined(block("functional", Q), block("ggn", Q, method="exact"), -1.0, 3.0),
        2.0,
        -1.0,
    ),
    "a sum of unlike closed forms": lambda: combined(
        block("full", Q, method="exact"), block("full", V, method="exact"), 1.0, -1.0
    ),
    "a sum with one of curvlinops'": with_theirs,
    "adjoint of products": lambda: adjoint(block("full", Q, MLP)),
    "adjoint of an arranged grid": lambda: adjoint(block("functional", Q, V, "exact")),
    "adjoint of a sum": lambda: adjoint(combined(block("full", V, Q), block("ggn", V, Q, "exact"), 0.5, 1.0)),
}


@cache
def made(name: str) -> Made:
    return REGISTRY[name]()


@pytest.mark.parametrize("holds", CONTRACT, ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", REGISTRY)
def test_the_contract(name: str, holds) -> None:
    holds(*made(name))


# --- operators that break it -----------------------------------------------------------------------------------------


class WrongDiagonal(HessianOperator):
    """The diagonal in another order."""

    def _diagonal(self) -> Tensor:
        return super()._diagonal().flip(0)


class WrongTrace(HessianOperator):
    """Without the last entry."""

    def _trace(self) -> Tensor:
        return super()._diagonal()[:-1].sum()


class WrongNorm(HessianOperator):
    """Without the last column."""

    def _frobenius_square(self) -> Scaled:
        return Scaled(self.to_dense()[:, :-1].square().sum(), 0)


class WrongEntries(HessianOperator):
    """The first column twice."""

    def _dense_into(self, target: Tensor) -> None:
        super()._dense_into(target)
        target[:, 1] = target[:, 0]


class TheirSums(HessianOperator):
    """Sums and multiples are those of curvlinops, without a trace or norm."""

    __add__ = PyTorchLinearOperator.__add__
    __mul__ = PyTorchLinearOperator.__mul__


class Silent(HessianOperator):
    """Does not say why."""

    why = ""


class Boasting(HessianOperator):
    """Says that it is in closed form; its multiples know better."""

    exact = True

    def __mul__(self, scalar) -> Operator:
        return HessianOperator(self.problem, self.rows, self.columns) * scalar


class Forgetful(LinearCombination):
    """A sum that multiplies with its first summand only."""

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        return LinearCombination(self.terms[:1])._matmat(X)


class NormOfNorms(LinearCombination):
    """Norms of summands added up."""

    def _frobenius_square(self) -> Scaled:
        norms = [abs(c) * op.frobenius_norm() for c, op in self.terms]
        return Scaled(torch.stack(norms).sum() ** 2, 0)


class WithoutNumbers(LinearCombination):
    """The diagonals added up as if every number were one."""

    def _diagonal(self) -> Tensor:
        return torch.stack([op.diagonal() for _, op in self.terms]).sum(0)


class OwnAdjoint(TokenSum):
    """Takes itself for symmetric."""

    def _adjoint(self) -> TokenSum:
        return self


def _hessian(kind: type[HessianOperator]) -> Made:
    problem = problem_of(TOY)
    return kind(problem, problem.select(MLP), problem.select(MLP)), block("full", MLP)[1]


def _sum(kind: type[LinearCombination]) -> Made:
    (H, full), (G, ggn) = block("full", MLP), block("ggn", MLP)
    return kind([(1.0, H), (-0.5, G)]), full - 0.5 * ggn


def _tokens(kind: type[TokenSum]) -> Made:
    right, dense = kronecker_sum()
    return kind(right.terms, (3, 2), (3, 2), torch.float64, torch.device("cpu")), dense


WRONG = [
    (_hessian, WrongDiagonal, "trace_and_diagonal"),
    (_hessian, WrongTrace, "trace_and_diagonal"),
    (_hessian, WrongNorm, "frobenius_norm"),
    (_hessian, WrongEntries, "dense_form"),
    (_hessian, TheirSums, "algebra_keeps_the_contract"),
    (_hessian, Silent, "told_in_words"),
    (_hessian, Boasting, "algebra_keeps_the_contract"),
    (_sum, Forgetful, "product_with_vector"),
    (_sum, NormOfNorms, "frobenius_norm"),
    (_sum, WithoutNumbers, "trace_and_diagonal"),
    (_tokens, OwnAdjoint, "adjoint_is_transpose"),
]


@pytest.mark.parametrize(("make", "kind", "caught_by"), WRONG, ids=lambda x: getattr(x, "__name__", x))
def test_an_operator_that_breaks_it_is_found_out(make, kind: type[Operator], caught_by: str) -> None:
    op, dense = make(kind)
    (holds,) = [check for check in CONTRACT if check.__name__ == caught_by]
    with pytest.raises(AssertionError):
        holds(op, dense)


@pytest.mark.parametrize("make", [_hessian, _sum, _tokens])
def test_what_they_are_made_from_is_right(make) -> None:
    for holds in CONTRACT:
        holds(*make({_hessian: HessianOperator, _sum: LinearCombination, _tokens: TokenSum}[make]))


# --- by products -----------------------------------------------------------------------------------------------------


class Counting(HessianOperator):
    """Counts vectors, its adjoint's too."""

    widths: list[int] = []  # noqa: RUF012

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        self.widths.append(X[0].shape[-1])
        return super()._matmat(X)


def test_the_shorter_side_is_gone_through_some_vectors_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, (_, dense) = problem_of(TOY), block("full", Q, MLP)
    monkeypatch.setattr(operator, "_WORKSPACE", 5 * max(dense.shape))
    for rows, cols, matrix in ((Q, MLP, dense), (MLP, Q, dense.T)):
        op = Counting(problem, problem.select(rows), problem.select(cols))
        for found, expected in ((op.frobenius_norm, matrix.norm()), (op.to_dense, matrix)):
            Counting.widths.clear()
            assert_same(found(), expected)
            assert sum(Counting.widths) == min(dense.shape) and max(Counting.widths) == 5
    assert f"take {min(dense.shape)} matvecs" in op.cost


def test_trace_and_diagonal_are_found_some_columns_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, (_, dense) = problem_of(TOY), block("full", Q)
    monkeypatch.setattr(operator, "_WORKSPACE", 5 * len(dense))
    op = Counting(problem, problem.select(Q), problem.select(Q))
    Counting.widths.clear()
    assert_same(op.diagonal(), dense.diagonal())
    assert_same(op.trace(), dense.trace())
    assert max(Counting.widths) == 5


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e-307])
def test_the_square_of_a_norm_need_not_fit(scale: float) -> None:
    op, dense = block("ggn", MLP)
    assert float((scale * op).frobenius_norm()) / scale == pytest.approx(float(dense.norm()))


def test_a_norm_that_does_not_fit_is_refused() -> None:
    class Large(HessianOperator):
        def _matmat(self, X: list[Tensor]) -> list[Tensor]:
            return [torch.full_like(x, 1e308) for x in super()._matmat(X)]

    with pytest.raises(hl.InputError, match=r"frobenius_norm: it is about 10\^309"):
        _hessian(Large)[0].frobenius_norm()


def test_numbers_whose_product_does_not_fit_are_refused() -> None:
    op, _ = block("ggn", MLP)
    with pytest.raises(hl.InputError, match="scalar: the numbers of a multiple of a multiple"):
        1e200 * (1e200 * op)


def test_products_that_are_not_finite_are_refused() -> None:
    class Infinite(HessianOperator):
        def _matmat(self, X: list[Tensor]) -> list[Tensor]:
            return [x / 0 for x in super()._matmat(X)]

    op, _ = _hessian(Infinite)
    for method in (op.frobenius_norm, op.trace, op.diagonal, op.to_dense):
        with pytest.raises(hl.InputError, match="infinite or NaN"):
            method()


def test_a_dense_matrix_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    op, dense = block("full", MLP)
    monkeypatch.setattr("hessianlens.memory.available_bytes", lambda device: 1000)
    monkeypatch.setattr("hessianlens.memory._NEVER_A_PROBLEM", 0)
    with pytest.raises(hl.InputError, match=f"The dense matrix of shape {'x'.join(map(str, dense.shape))} would need"):
        op.to_dense()


def test_off_the_diagonal_there_is_no_trace() -> None:
    op, _ = block("full", Q, MLP)
    for found, what in ((op.trace, "trace"), (op.diagonal, "diagonal"), ((2 * op - op).trace, "trace")):
        with pytest.raises(hl.InputError, match=f"{what}: the block is .* between different parameters"):
            found()


def test_sums_refuse_what_does_not_fit() -> None:
    op, _ = block("full", MLP)
    with pytest.raises(hl.InputError, match="operator: got one 16x16 on other parameters"):
        op + block("full", Q)[0]
    for wrong in (lambda: op + 1, lambda: op - torch.eye(2), lambda: 1 + op):
        with pytest.raises(TypeError):
            wrong()
    for wrong in (lambda: op * "2", lambda: op / 0, lambda: float("nan") * op):
        with pytest.raises(hl.InputError, match="scalar"):
            wrong()


def test_a_sum_is_as_precise_as_its_most_precise_summand() -> None:
    op, dense = kronecker_sum()
    rough, _ = kronecker_sum(torch.float32)
    for total in (op + rough, rough + op, op - -rough):
        assert isinstance(total, LinearCombination) and total.exact and total.dtype == torch.float64
        assert (total @ dense).dtype == total.diagonal().dtype == torch.float64
        assert_same(total.to_dense(), 2 * dense, "op + rough", 1e-6)


def test_every_part_has_its_operator() -> None:
    assert tuple(MATRIX_FREE) == hl.parts.PARTS


# --- why -------------------------------------------------------------------------------------------------------------


def test_it_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = problem_of(TOY)
    assert hl.hessian(toy, Q).why.startswith("all layers after layer0.attn, the last attention layer, act")
    assert (2 * hl.ggn(toy, Q, V)).why == hl.ggn(toy, Q, V).adjoint().why == hl.hessian(toy, Q).why
    assert hl.hessian(toy, Q, method="hvp").why == "method='hvp' was asked for"
    alone = "it enters through a linear map, and the loss couples no two positions of its output; "
    assert hl.hessian(toy, MLP).why == hl.hessian(toy, MLP).adjoint().why == f"{alone}3 HVPs"
    assert hl.hessian(toy, Q, MLP).why == f"{alone}4 HVPs"
    assert hl.hessian(toy, [Q, V]).why == hl.hessian(toy, Q).why
    deep = problem_of("toy, two layers, two heads, pre-norm, sigmoid")
    assert "positions of a sequence are taken together" in hl.hessian(deep, Q).why
    assert hl.hessian(deep, "pos").why.startswith("it enters by look-up, a linear map of one-hot vectors, and the ")
    pooled = problem_of("pooled encoder, loss between sequences")
    assert hl.hessian(pooled, Q).why == "the loss couples its outputs across the sequences of a batch"
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS", 2)
    assert re.search(
        r"above the limit of [12]; method='exact' allows it", hl.hessian(toy, MLP).why
    )  # its certificate counts
    monkeypatch.setattr("hessianlens.network.routes.last_attention.route.SAFE_SHARE", 0.0)
    assert "its closed form needs" in hl.hessian(toy, Q).why


def test_a_sum_says_why_it_goes_through_products() -> None:
    exact, free = block("full", Q, method="exact")[0], block("ggn", Q)[0]
    assert (exact - free).why == "1 of 2 summands go through matvecs: method='hvp' was asked for"
    assert made("a sum of unlike closed forms")[0].why == "every summand is in closed form"
    assert (exact - free).method == "closed form and Jacobian products"
    theirs = made("a sum with one of curvlinops'")[0] - made("a sum with one of curvlinops'")[0]
    assert theirs.why.startswith("4 of 4 summands") and "products of TensorLinearOperator" in theirs.method


def test_a_sum_prints_its_summands() -> None:
    text = str(2 * block("full", Q)[0] - block("ggn", Q, method="exact")[0])
    assert text.startswith("LinearCombination 16x16 float64, about 2 gradients per matvec + ")
    assert "\n  +2 HessianOperator 16x16: [layer0.attn.q]" in text and "\n  +1 ArrangedGrid 16x16" in text
