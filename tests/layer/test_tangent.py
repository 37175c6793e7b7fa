"""Products in one tangent pass: any rows and columns, any number of vectors, and nothing built for them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention.activations import Softmax
from hessianlens.layer import dense, diagonal, head_tangent, hessian, tangent
from hessianlens.layer.projection import Projection
from hessianlens.operators import BlockGrid, TokenSum
from tests.layer.test_rotary import rotary
from tests.oracles.comparison import assert_same
from tests.variants import ALL_ACTIVATIONS, DOUBLE, LENGTH, layers, losses, randn, self_attention, square_loss, tokens

PARTS = ("outer", "functional", "full", "t_outer", "t_functional")
LAYERS = {
    **layers(),
    "rotary": rotary(causal=True),
    "rotary heads": hl.MultiHeadAttention([rotary(), rotary(2, seed=9, activation="sigmoid")]),
}


@pytest.fixture(autouse=True)
def dense_from_closed_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small layers would find their entries from the same derivatives as products do; these are to be compared."""
    monkeypatch.setattr(dense, "_WORKSPACE_BYTES", 0)


@pytest.fixture(autouse=True)
def queries_and_keys_meet_as_in_large_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones do without the gradient of the merged matrix."""
    monkeypatch.setattr(head_tangent, "_FEW", 0)


def hessian_of(kind: str, loss: str = "cross-entropy") -> hl.layer.AttentionHessian:
    X = tokens(2)
    return hl.attention_hessian(LAYERS[kind], X, losses(X)[loss])


def assert_multiplies(op: BlockGrid, dense: Tensor, vectors: int = 1) -> None:
    """A grid's products against its closed form."""
    v = randn(op.shape[1], vectors)
    expected = dense @ v
    if float(expected.abs().max()) < 1e-14:
        assert float((op @ v).abs().max()) < 1e-14
    else:
        assert_same(op @ v, expected, f"{list(op.rows)} x {list(op.columns)}")


def selections(names: list) -> list[tuple[list, list]]:
    """Rows and columns of every size, also turned around."""
    some = [names[:1], names[1:] or names, names[::-1], names[:2], names[-1:]]
    return list(itertools.product(some, some))


@pytest.mark.parametrize("part", PARTS[1:3])
@pytest.mark.parametrize("kind", LAYERS)
def test_queries_and_keys_of_small_layers_meet_without_their_merged_matrix(
    kind: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_tangent, "_FEW", 2**10)
    H = hessian_of(kind)
    assert not any(head.score_pair_pays for head in H._tangent.heads)
    grid = H.part(part)
    assert_multiplies(grid, grid.to_dense(), vectors=2)
    assert_multiplies(grid[list(grid.rows)[:1], :], grid.to_dense()[: grid[list(grid.rows)[:1], :].shape[0]])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_any_rows_and_columns(kind: str, part: str) -> None:
    grid = hessian_of(kind).part(part)
    sizes = [shape[0] * shape[1] for shape in grid.rows.values()]
    places = dict(zip(grid.rows, torch.arange(sum(sizes)).split(sizes), strict=True))
    dense = grid.to_dense()
    for rows, columns in selections(list(grid.rows)):
        op = grid.subgrid(rows, columns)
        chosen = dense[torch.cat([places[r] for r in rows])][:, torch.cat([places[c] for c in columns])]
        assert_multiplies(op, chosen)
        assert_multiplies(op.adjoint(), chosen.T, 2)


@pytest.mark.parametrize("loss", losses(tokens(None)))
@pytest.mark.parametrize("kind", LAYERS)
def test_many_vectors_are_multiplied_some_at_a_time(kind: str, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tangent, "_WORKSPACE_BYTES", 3 * 2 * LENGTH * LENGTH * 8)
    for part in ("outer", "full"):
        grid = hessian_of(kind, loss).part(part)
        assert_multiplies(grid, grid.to_dense(), 7)


def _with_a_common_part(size: float) -> hl.layer.AttentionHessian:
    """Tokens around a vector far away, which queries and keys do not see: scores are of ordinary size."""
    common = (size * randn(4, seed=21)).round()
    X = (tokens(2) * 2**20).round() / 2**20 + common
    away = torch.eye(4, dtype=DOUBLE) - torch.outer(common, common) / common.square().sum()
    layer = self_attention()
    blind = layer.with_parameters({n: away @ w for n, w in layer.parameters.items() if n in "QK"})
    return hl.attention_hessian(blind, X, hl.SquareLoss(blind(X) + randn(2, LENGTH, 3)))


def _errors(H: hl.layer.AttentionHessian) -> list[float]:
    """Of the products of every part with diagonal blocks, relative to the closed form."""
    found = []
    for part, name in itertools.product(PARTS[:3], H.full.rows):
        dense = H.part(part)[name, name].to_dense()
        expected = dense @ (v := randn(dense.shape[1]))
        size = float(expected.norm())
        found.append(float((H.part(part)[name, name] @ v - expected).norm()) / size if size else 0.0)
    return found


def test_what_all_tokens_have_in_common_takes_no_digits_along(monkeypatch: pytest.MonkeyPatch) -> None:
    assert max(_errors(_with_a_common_part(1e6))) < 1e-13
    monkeypatch.setattr(Projection, "lopsided", False)
    assert max(_errors(_with_a_common_part(1e6))) > 1e-12


def test_nothing_is_built_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for the whole nor for blocks, sums, multiples and adjoints."""

    def refuse(*_: object) -> None:
        pytest.fail("a block was built")

    monkeypatch.setattr(hessian, "_BLOCK_TERMS", dict.fromkeys(hessian._BLOCK_TERMS, refuse))
    H = hessian_of("factored values")
    ops = [
        H.full[:],
        H.full["Q", "O"],
        H.outer[["Q", "K"], :],
        2.0 * H.full,
        H.full["Q", "K"] / 2,
        H.outer + H.functional,
    ]
    ops += [H.full["Q", "O"].adjoint(), H.outer["Q", "Q"] - H.functional["Q", "Q"], H.full[["O"], :].adjoint()]
    for op in ops:
        op @ randn(op.shape[1])
        assert op.multiply_adds > 0 < op.held_bytes


def test_sums_and_multiples() -> None:
    H = hessian_of("two heads")
    v, dense = randn(H.full.shape[1]), H.full.to_dense()
    assert_same((H.outer + H.functional) @ v, dense @ v, "sum of parts")
    assert_same((2.0 * H.full - H.full / 4 + H.full) @ v, 2.75 * dense @ v, "combination")
    row, column = ("Q", 0), ("V", 1)
    block, u = H.outer[row, column], randn(H.outer[row, column].shape[1])
    assert_same((block * 3.0 + H.functional[row, column]) @ u, 3 * block.to_dense() @ u, "blocks")


def test_blocks_of_other_names_add_up_by_their_terms() -> None:
    H = hessian_of("self-attention")
    both = H.full["Q", "Q"] + H.full["K", "K"]
    assert isinstance(both, TokenSum)
    v = randn(both.shape[1])
    assert_same(both @ v, H.full["Q", "Q"] @ v + H.full["K", "K"] @ v, "sum")


def test_a_product_can_be_differentiated() -> None:
    H = hessian_of("self-attention")
    v, w = randn(H.full.shape[1]).requires_grad_(), randn(H.full.shape[0], seed=1)
    (found,) = torch.autograd.grad((H.full @ v) @ w, v)
    assert_same(found, H.full @ w, "gradient")


def test_vectors_are_not_overwritten() -> None:
    H, v = hessian_of("rotary"), randn(hessian_of("rotary").full.shape[1])
    before = v.clone()
    first, second = H.full @ v, H.full @ v
    assert torch.equal(v, before) and torch.equal(first, second)


def test_a_wrong_tangent_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks must notice an activation whose tangent forgets a derivative."""
    right = Softmax.tangent

    def wrong(self: Softmax, value: Tensor, weights: Tensor):
        return right(self, value, 0 * weights)

    monkeypatch.setattr(Softmax, "tangent", wrong)
    X = tokens(2)
    H = hl.attention_hessian(self_attention(), X, square_loss(X))
    assert_multiplies(H.outer, H.outer.to_dense())
    with pytest.raises(AssertionError, match="relative error"):
        assert_multiplies(H.full, H.full.to_dense())


def assert_diagonals(grid: BlockGrid) -> None:
    """Traces and diagonals against the closed form."""
    for name in grid.rows:
        dense = grid[name, name].to_dense()
        size = max(1.0, float(dense.norm()))
        assert float((grid[name, name].diagonal() - dense.diagonal()).norm()) <= 1e-13 * size, name
        assert abs(float(grid[name, name].trace() - dense.trace())) <= 1e-13 * size, name
    twice = (2.0 * grid + grid).trace()
    assert float(twice) == pytest.approx(3 * float(grid.to_dense().trace()), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "relu_normalised", "user row function", "user class"])
def test_traces_and_diagonals_of_every_activation(activation: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagonal, "_WORKSPACE_BYTES", 2 * 2 * LENGTH * 3 * 8)
    monkeypatch.setattr(diagonal, "_BLOCK", 2)
    X = tokens(2)
    layer = self_attention(activation=ALL_ACTIVATIONS[activation](), causal=True)
    assert_diagonals(hl.attention_hessian(layer, X, square_loss(X)).part(part))


@pytest.mark.parametrize("part", PARTS[:3])
@pytest.mark.parametrize("loss", losses(tokens(None)))
@pytest.mark.parametrize("kind", LAYERS)
def test_traces_and_diagonals_of_every_layer_and_loss(kind: str, loss: str, part: str) -> None:
    assert_diagonals(hessian_of(kind, loss).part(part))


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "relu_normalised"])
@pytest.mark.parametrize("loss", ["cross-entropy", "by token"])
def test_traces_of_queries_and_keys_from_one_product_and_by_columns(
    loss: str, activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few tokens at a time, then as if the products of all entries of values and tokens had no room."""
    X, layer = tokens(2), self_attention(activation=ALL_ACTIVATIONS[activation](), causal=True)
    monkeypatch.setattr(diagonal, "_PAIRED_WORKSPACE_BYTES", 3 * 8 * layer.d_model * layer.d_v)
    together = hl.attention_hessian(layer, X, losses(X)[loss])
    assert_diagonals(together.full)
    assert together._tangent.diagonals[0]._paired_traces is not None
    monkeypatch.setattr(diagonal, "_PAIRS_BYTES", 0)
    by_columns = hl.attention_hessian(layer, X, losses(X)[loss])
    assert by_columns._tangent.diagonals[0]._paired_traces is None
    for name in ("Q", "K"):
        assert_same(by_columns.full[name, name].trace(), together.full[name, name].trace(), name)


def test_a_wrong_trace_of_queries_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = diagonal.outer_traces

    def wrong(*given: object) -> tuple[Tensor, Tensor]:
        queries, keys = right(*given)  # type: ignore[arg-type]
        return keys, queries

    monkeypatch.setattr(diagonal, "outer_traces", wrong)
    grid = hessian_of("self-attention", "cross-entropy").full
    with pytest.raises(AssertionError):
        assert_diagonals(grid)


def test_diagonals_of_sequences_that_are_shorter_than_values_are_wide() -> None:
    X = tokens(2, 2)
    assert_diagonals(hl.attention_hessian(self_attention(), X, square_loss(X)).full)


@pytest.mark.parametrize("loss", ["square", "cross-entropy"])
def test_nothing_is_built_for_traces_and_diagonals(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = hessian_of("factored values", loss).full.to_dense().diagonal()
    monkeypatch.setattr(hessian, "_BLOCK_TERMS", {})
    found = hessian_of("factored values", loss).full
    assert_same(found.diagonal(), expected, "diagonal")
    assert float(found.trace()) == pytest.approx(float(expected.sum()), rel=1e-12)
