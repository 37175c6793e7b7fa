"""What is formed, what is merged, what is refused."""

from __future__ import annotations

import pytest
import torch
from curvlinops._torch_base import PyTorchLinearOperator

import hessianlens as hl
from hessianlens import memory
from hessianlens.operators import Factor, Term, TokenSum, term
from tests.operators.registry import kronecker_sum
from tests.oracles.comparison import assert_same
from tests.variants import randn, self_attention, square_loss, tokens


def test_terms_that_share_all_but_one_factor_merge() -> None:
    p, G, K = randn(4, 3), randn(4, 2, 2, seed=1), randn(4, 2, 2, seed=2)
    first = TokenSum.of(
        [Term(1.0, (Factor("p", "na", p), Factor("G", "nbd", G), Factor("p", "nc", p)))], (3, 2), (3, 2)
    )
    second = TokenSum.of(
        [Term(2.0, (Factor("p", "na", p), Factor("K", "nbd", K), Factor("p", "nc", p)))], (3, 2), (3, 2)
    )
    total = first + second
    assert isinstance(total, TokenSum)
    assert len(total.terms) == 1
    assert "(G + 2 K)" in str(total)
    assert "(-2 G + 6 K)" in str(3 * second - 2 * first) or "(6 K - 2 G)" in str(3 * second - 2 * first)
    assert_same(total.to_dense(), first.to_dense() + second.to_dense())


def test_difference_with_itself_is_exactly_zero() -> None:
    op, _ = kronecker_sum()
    assert float((op - op).frobenius_norm()) == 0


class Plain(PyTorchLinearOperator):
    """A dense matrix as an operator of curvlinops."""

    SELF_ADJOINT = True

    def __init__(self, matrix: torch.Tensor) -> None:
        super().__init__([(3, 2)], [(3, 2)])
        self.matrix = matrix

    def _matmat(self, X):
        return [(self.matrix @ X[0].reshape(6, -1)).reshape(3, 2, -1)]

    @property
    def dtype(self):
        return self.matrix.dtype

    @property
    def device(self):
        return self.matrix.device


def test_algebra_with_a_plain_operator_of_curvlinops() -> None:
    op, dense = kronecker_sum()
    v, other = randn(6), randn(6, 6, seed=1)
    other = other + other.T
    assert_same((op + Plain(other)) @ v, (dense + other) @ v)
    assert_same((Plain(other) - op) @ v, (other - dense) @ v)
    assert_same((op @ Plain(other)) @ v, dense @ other @ v)


def test_dense_form_that_does_not_fit_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = self_attention(None, 0, width=512, output=None)
    X = randn(2, 512)
    op = hl.attention_hessian(layer, X, grad=torch.zeros_like(X), curvature=1.0).full["Q", "Q"]
    with pytest.raises(hl.InputError, match=r"262144x262144 would need 512\.0 GiB.*op @ v"):
        op.to_dense()
    assert float(op.trace()) > 0
    monkeypatch.setattr(memory, "available_bytes", lambda device: 20_000_000)
    smaller = self_attention(40, 0, width=48, output=None)
    op = hl.attention_hessian(smaller, randn(2, 48), hl.SquareLoss(randn(2, 48))).full["Q", "Q"]
    with pytest.raises(
        hl.InputError,
        match=r"1920x1920 would need 28\.1 MiB \(\d+\.\d MiB while it is formed\), but only 19\.1 MiB are free on cpu",
    ):
        op.to_dense()


def test_nothing_of_the_size_of_a_block_is_formed() -> None:
    """Factors and the largest intermediate stay far below the (d d_K)^2 entries of the block."""
    layer = self_attention(48, 0, width=64, output=None)
    X = randn(2, 20, 64)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(randn(2, 20, 64, seed=1)))
    entries = (64 * 48) ** 2
    term.compile_contraction.cache_clear()
    for row in "QKV":
        for column in "QKV":
            op = H.full[row, column]
            assert op.held_bytes < 0.05 * entries * 8
            op @ randn(op.shape[1])
            op.frobenius_norm()
    assert term.compile_contraction.cache_info().currsize > 0


def test_blocks_are_built_once_and_mirrored() -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(), X, square_loss(X)).full
    assert grid["Q", "K"] is grid["Q", "K"]
    assert_same(grid["K", "Q"].to_dense(), grid["Q", "K"].to_dense().T)


def test_subgrids_keep_order_and_values() -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(), X, square_loss(X)).full
    part = grid[["V", "Q"], :]
    assert list(part.rows) == ["V", "Q"]
    assert part.shape == (12 + 12, 36)
    assert_same(part["V", "K"].to_dense(), grid["V", "K"].to_dense())
    dense = grid[:].to_dense()
    assert_same(part.to_dense(), torch.cat([dense[24:], dense[:12]]))


@pytest.mark.parametrize("key", ["Q", ("Q", "W"), ("Q",), ("Q", slice(0, 1)), 3])
def test_unknown_blocks_are_named(key) -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(), X, square_loss(X)).full
    with pytest.raises(hl.InputError, match="Block"):
        grid[key]


def test_norms_of_all_blocks() -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(), X, square_loss(X)).full
    norms = grid.norms()
    assert set(norms) == {(r, c) for r in "QKV" for c in "QKV"}
    assert_same(norms["V", "Q"], grid["Q", "V"].to_dense().norm())


def test_trace_of_a_rectangular_block_is_refused() -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(2), X, square_loss(X)).full
    with pytest.raises(hl.InputError, match="trace"):
        grid["Q", "V"].trace()


def test_inner_product_of_blocks_of_different_shape_is_refused() -> None:
    X = tokens(2)
    grid = hl.attention_hessian(self_attention(2), X, square_loss(X)).full
    with pytest.raises(hl.InputError, match="same ones"):
        grid["Q", "Q"].frobenius_inner(grid["V", "V"])
    with pytest.raises(hl.InputError, match="structured operator"):
        grid["Q", "Q"].frobenius_inner(torch.eye(8))


def test_inner_product_between_parts() -> None:
    X = tokens(2)
    H = hl.attention_hessian(self_attention(), X, square_loss(X))
    expected = (H.outer[:].to_dense() * H.functional[:].to_dense()).sum()
    assert_same(H.outer[:].frobenius_inner(H.functional[:]), expected, relative=1e-9)


def test_products_in_lower_precision() -> None:
    layer = self_attention(4, width=6, output=None, dtype=torch.float32)
    X = randn(5, 6).float()
    H = hl.attention_hessian(layer, X, hl.SquareLoss(randn(5, 6, seed=1).float()))
    dense = H.full[:].to_dense()
    assert dense.dtype == torch.float32
    v = randn(dense.shape[1]).float()
    assert_same(H.full[:] @ v, dense @ v, relative=1e-5)


def test_identity_alone() -> None:
    """Identities closed upon themselves count their size."""
    x = Factor("x", "a", torch.tensor([2.0, 3.0]))
    assert float(term.contract([x, Factor.identity("bd", 4), Factor.identity("db", 4)], "")) == 20.0
    assert term.contract([x, Factor.identity("bd", 3)], "b").tolist() == [5.0, 5.0, 5.0]
