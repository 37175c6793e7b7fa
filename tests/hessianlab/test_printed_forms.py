"""The paper's printed Kronecker forms are a second witness of the closed forms."""

from __future__ import annotations

import itertools
import math

import pytest

import hessianlens as hl
from hessianlab import paper
from tests.oracles.comparison import assert_same


@pytest.mark.parametrize("d_k", [2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_theorems_3_1_and_3_2(seed: int, d_k: int) -> None:
    setting = paper.PrintedAttention.random(4, 3, d_k, seed=seed)
    layer = hl.SelfAttention(setting.W_Q, setting.W_K, setting.W_V)
    H = hl.attention_hessian(layer, setting.X, hl.SquareLoss(setting.Y))
    for row, column in itertools.product("QKV", "QKV"):
        assert_same(H.outer[row, column].to_dense(), paper.theorem_3_1(setting, row, column), f"3.1 {row}{column}")
        expected = paper.theorem_3_2(setting, row, column)
        if (row, column) != ("V", "V"):
            assert_same(H.functional[row, column].to_dense(), expected, f"3.2 {row}{column}")
        else:
            assert float(expected.abs().max()) == float(H.functional["V", "V"].to_dense().abs().max()) == 0


@pytest.mark.parametrize("d_k", [2, 3, 5])
def test_remark_4_1_linear_attention(d_k: int) -> None:
    setting = paper.PrintedAttention.random(4, 3, d_k, seed=2)
    layer = hl.SelfAttention(setting.W_Q, setting.W_K, setting.W_V, activation="linear")
    H = hl.attention_hessian(layer, setting.X, hl.SquareLoss(setting.Y))
    for row, column in itertools.product("QKV", "QKV"):
        assert_same(H.outer[row, column].to_dense(), paper.remark_4_1_outer(setting, row, column))
        expected = paper.remark_4_1_functional(setting, row, column)
        if row != column:
            assert_same(H.functional[row, column].to_dense(), expected, f"4.1 {row}{column}")


@pytest.mark.parametrize("d_k", [2, 3, 5])
def test_remark_d_1_split(d_k: int) -> None:
    setting = paper.PrintedAttention.random(4, 3, d_k, seed=3)
    layer = hl.SelfAttention(setting.W_Q, setting.W_K, setting.W_V)
    H = hl.attention_hessian(layer, setting.X, hl.SquareLoss(setting.Y))
    for mine, printed in ((H.t_outer, paper.t_outer_product), (H.t_functional, paper.t_functional)):
        assert_same(mine[:].to_dense(), paper.query_first(printed(setting)), printed.__name__)


def test_lemma_4_1_single_matrix() -> None:
    setting = paper.PrintedAttention.random(4, 3, 2, seed=4)
    merged = setting.W_Q @ setting.W_K.T / math.sqrt(2)
    layer = hl.SingleMatrixAttention(merged, setting.W_V)
    H = hl.attention_hessian(layer, setting.X, hl.SquareLoss(setting.Y))
    assert_same(H.full["QK", "QK"].to_dense(), paper.lemma_4_1(paper.merge_query_key(setting)))
