"""Value and two row derivatives of every activation, against autograd; and rows without anything to see."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import hessianlens as hl
from hessianlens.attention.activations import (
    ACTIVATIONS,
    ElementwiseFunction,
    Exp,
    ReLU,
    RowFunction,
    RowNormalised,
    Sigmoid,
    Softmax,
    as_activation,
)
from tests.oracles.comparison import assert_same
from tests.variants import ALL_ACTIVATIONS, MASKS, randn, self_attention

L = 5


def _visible(mask: str) -> torch.Tensor:
    masking = hl.attention.masks.Masking(**MASKS[mask](L))
    return masking.resolve(2, L, torch.float64, torch.device("cpu"))[0]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
def test_row_derivatives(name: str, mask: str) -> None:
    a = as_activation(ALL_ACTIVATIONS[name]())
    T, w, visible = randn(2, L, L), randn(2, L, L, seed=1), _visible(mask)
    J = a.jacobian(T, visible).to_dense()
    D = a.curvature(T, visible, w).apply(torch.eye(L, dtype=T.dtype)[None, None])
    expected_J, expected_D = torch.zeros_like(J), torch.zeros_like(D)
    for s in range(2):
        for i in range(L):

            def row(t: torch.Tensor, s: int = s, i: int = i) -> torch.Tensor:
                return a.value(T.index_put((torch.tensor(s), torch.tensor(i)), t), visible)[s, i]

            expected_J[s, i] = jacobian(row, T[s, i])
            expected_D[s, i] = hessian(lambda t, r=row, s=s, i=i: (w[s, i] * r(t)).sum(), T[s, i])
    assert_same(J, expected_J, "J")
    assert_same(D, expected_D, "D")


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
def test_hidden_entries_are_zero_and_do_not_matter(name: str) -> None:
    a = as_activation(ALL_ACTIVATIONS[name]())
    visible = _visible("boolean mask with an empty row")
    T = randn(2, L, L)
    A = a.value(T, visible)
    assert float(A[~visible].abs().max()) == 0
    assert_same(a.value(T.masked_fill(~visible, 1e6), visible), A, "hidden scores leak")


@pytest.mark.parametrize("name", ALL_ACTIVATIONS)
def test_a_row_that_sees_nothing_is_zero_with_zero_derivatives(name: str) -> None:
    a = as_activation(ALL_ACTIVATIONS[name]())
    T, visible = randn(1, 2, 2), torch.tensor([[[False, False], [True, True]]])
    eye = torch.eye(2, dtype=T.dtype)[None, None]
    for found in (
        a.value(T, visible)[0, 0],
        a.jacobian(T, visible).apply(eye)[0, 0],
        a.curvature(T, visible, randn(1, 2, 2, seed=1)).apply(eye)[0, 0],
    ):
        assert float(found.abs().max()) == 0


def test_softmax_is_torch_softmax_and_stable() -> None:
    T = 1e4 * randn(2, L, L)
    assert_same(Softmax().value(T, torch.ones_like(T, dtype=torch.bool)), T.softmax(-1))
    causal = _visible("causal")
    expected = T.masked_fill(~causal, -torch.inf).softmax(-1)
    assert_same(Softmax().value(T, causal), expected)


def test_relu_row_without_positive_scores_is_zero_after_normalisation() -> None:
    T, seen = -torch.ones(1, 1, 3, dtype=torch.float64), torch.ones(1, 1, 3, dtype=torch.bool)
    a = as_activation("relu_normalised")
    assert a.value(T, seen).tolist() == [[[0.0, 0.0, 0.0]]]
    assert float(a.jacobian(T, seen).to_dense().abs().max()) == 0


def test_sigmoid_bias() -> None:
    T, seen = torch.zeros(1, 4, 4, dtype=torch.float64), torch.ones(1, 4, 4, dtype=torch.bool)
    assert Sigmoid("-log L").value(T, seen)[0, 0, 0].item() == pytest.approx(1 / (1 + 4))
    assert Sigmoid(math.log(3)).value(T, seen)[0, 0, 0].item() == pytest.approx(0.75)
    with pytest.raises(hl.InputError, match="bias"):
        Sigmoid("log L")


def test_names_classes_and_functions_become_activations() -> None:
    assert all(isinstance(as_activation(name), hl.attention.Activation) for name in ACTIVATIONS)
    assert isinstance(as_activation(ReLU), ReLU)
    assert isinstance(as_activation(torch.sigmoid), RowFunction)
    for wrong in ("sofmax", 3):
        with pytest.raises(hl.InputError, match="softmax, linear"):
            as_activation(wrong)


def test_functions_that_return_the_wrong_shape_are_named() -> None:
    X = randn(L, 4)
    for activation in (RowFunction(lambda t: t.sum(-1), "total"), ElementwiseFunction(lambda t: t.sum(), "total")):
        layer = self_attention(None, 0, output=None, activation=activation)
        with pytest.raises(hl.InputError, match="activation total"):
            hl.attention_hessian(layer, X, hl.SquareLoss(X))


def test_row_function_equals_the_built_in_activation() -> None:
    X, Y = randn(2, L, 4), randn(2, L, 4, seed=1)
    hessians = [
        hl.attention_hessian(self_attention(3, 0, output=None, causal=True, activation=a), X, hl.SquareLoss(Y))
        .full[:]
        .to_dense()
        for a in ("softmax", lambda t: torch.softmax(t, -1))
    ]
    assert_same(hessians[1], hessians[0])


# --- one weight close to one: what is left keeps its digits ----------------------------------------------------------

GAPS = (30.0, 100.0, 300.0)


@pytest.mark.parametrize("gap", GAPS)
def test_softmax_next_to_a_single_weight(gap: float) -> None:
    """Scores (0, -gap): with e = exp(-gap), J = e/(1+e)^2 (1 -1; -1 1) and D(w) = J (w_2 - w_1) (1-e)/(1+e)."""
    T, seen = torch.tensor([[[0.0, -gap]]], dtype=torch.float64), torch.ones(1, 1, 2, dtype=torch.bool)
    e, w = math.exp(-gap), torch.tensor([[[0.3, 2.0]]], dtype=torch.float64)
    pattern = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    J, D = Softmax().jacobian(T, seen).to_dense()[0, 0], Softmax().curvature(T, seen, w).to_dense()[0, 0]
    assert_same(J, e / (1 + e) ** 2 * pattern, "J", 1e-14)
    assert_same(D, 1.7 * e * (1 - e) / (1 + e) ** 3 * pattern, "D", 1e-14)


@pytest.mark.parametrize("gap", GAPS)
def test_any_activation_over_its_row_sum(gap: float) -> None:
    """exp over its sum is softmax, also where one weight is close to one."""
    T, seen, w = -gap * torch.rand(2, 3, 4, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.bool), randn(2, 3, 4)
    T[..., 0] = 0
    over_sum, softmax = RowNormalised(Exp()), Softmax()
    assert_same(over_sum.jacobian(T, seen).to_dense(), softmax.jacobian(T, seen).to_dense(), "J", 1e-13)
    assert_same(over_sum.curvature(T, seen, w).to_dense(), softmax.curvature(T, seen, w).to_dense(), "D", 1e-13)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("t", [*GAPS, 1e-9])
def test_slopes_of_sigmoid_and_tanh_at_their_ends(t: float, sign: float) -> None:
    """Both are even; they fall as exp(-|t|) and 4 exp(-2 |t|). The second derivatives are odd, and linear near 0."""
    with mpmath.workdps(400):
        half = mpmath.mpf(sign * t)
        s = 1 / (1 + mpmath.exp(-half))
        sech = mpmath.sech(half) ** 2
        expected = {
            "sigmoid": (s * (1 - s), s * (1 - s) * (1 - 2 * s)),
            "tanh": (sech, -2 * mpmath.tanh(half) * sech),
        }
        expected = {name: [float(x) for x in pair] for name, pair in expected.items()}
    for name, pair in expected.items():
        _, first, second = as_activation(name).derivatives(torch.tensor(sign * t, dtype=torch.float64))
        assert [float(first), float(second)] == pytest.approx(pair, rel=1e-14, abs=0), name


def test_nan_stays_nan() -> None:
    T, seen = torch.tensor([[[0.0, torch.nan]]], dtype=torch.float64), torch.ones(1, 1, 2, dtype=torch.bool)
    for name in ("softmax", "sigmoid", "tanh", "relu_normalised"):
        assert bool(as_activation(name).jacobian(T, seen).to_dense().isnan().any()), name
