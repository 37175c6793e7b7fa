"""Figures 1 and 4 and the sizes by activation, against dense autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hessianlab.experiments.models import diagonal_blocks, toy_problem
from hessianlab.experiments.statistics import EDGES, entry_sizes, log_histogram
from hessianlab.figures import activations, block_entries
from hessianlab.figures.block_entries import pooled_map
from hessianlens.models import Transformer
from hessianlens.tasks import Addition
from tests.oracles.network import dense_network_hessian, whole

NAMES = {
    "W_E": "token_embedding",
    "W_pos": "position_embedding",
    "W_Q": "blocks.0.attention.W_Q",
    "W_K": "blocks.0.attention.W_K",
    "W_V": "blocks.0.attention.W_V",
    "W_O": "blocks.0.attention.W_O",
    "W_in": "blocks.0.mlp.W_in",
    "b_in": "blocks.0.mlp.b_in",
    "W_out": "blocks.0.mlp.W_out",
    "b_out": "blocks.0.mlp.b_out",
    "W_U": "W_U",
    "b_U": "b_U",
}
D, SEQUENCES, SEED, DATA = 2, 3, 5, 11


def dense(attention: str = "softmax") -> tuple[torch.Tensor, dict[str, slice]]:
    """The Hessian of the published order by torch's own double differentiation, and where each weight is."""
    model = Transformer(1, D, attention=attention, attention_bias=False, seed=SEED, dtype=torch.float64)
    task = Addition()
    batch = task.batch(SEQUENCES, DATA)
    assert len(NAMES) == len(list(model.parameters()))
    pieces = {name: (own, ()) for name, own in NAMES.items()}
    found = dense_network_hessian(model, [batch["tokens"]], lambda o, _: task.cross_entropy(o[0], batch), pieces)
    return found.full, found.ranges


@pytest.mark.long
def test_the_map_is_the_hessian_in_the_published_order() -> None:
    expected, places = dense()
    cell = {
        "kind": "map",
        "d_model": D,
        "sequences": SEQUENCES,
        "data_seed": DATA,
        "carries": "none",
        "seed": SEED,
        "pixels": 10_000,
    }
    found = block_entries.FIG1.measure(cell)
    assert list(block_entries.ORDER) == list(NAMES)
    whole = block_entries.whole_hessian(toy_problem(D, "softmax", SEED, SEQUENCES, DATA, "none"))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-13)
    assert found.arrays["whole"].dtype == np.float32
    assert found.arrays["whole_sizes"].tolist() == [place.stop - place.start for place in places.values()]
    large = expected.abs().numpy() > 1e-6
    np.testing.assert_allclose(found.arrays["whole"][large], np.log10(expected.abs().numpy()[large]), atol=1e-4)
    same = slice(places["W_Q"].start, places["W_O"].stop)
    shown = expected[same, same].abs().numpy()
    np.testing.assert_allclose(10.0 ** found.arrays["attention"], shown, rtol=1e-4, atol=1e-12)
    (gap,) = [row["gap"] for row in found.rows if row["block"] == "attention"]
    assert isinstance(gap, float) and gap < 1e-11
    by_name = {row["block"]: row for row in found.rows if "median" in row}
    for name, place in places.items():
        assert by_name[name]["largest"] == pytest.approx(float(expected[place, place].abs().max()), rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("attention", ["softmax", "linear", "relu_normalised"])
def test_diagonal_blocks_are_those_of_autograd(attention: str) -> None:
    expected, places = dense(attention)
    found = diagonal_blocks(toy_problem(D, attention, SEED, SEQUENCES, DATA, "none"))
    for name, weight in (("query", "W_Q"), ("key", "W_K"), ("value", "W_V")):
        block = expected[places[weight], places[weight]]
        (row,) = [r for r in found.rows if r["block"] == name and r["part"] == "full"]
        assert row["norm"] == pytest.approx(float(block.norm()), rel=1e-8)
        assert row["rms"] == pytest.approx(float(block.square().mean().sqrt()), rel=1e-8)
        assert row["median"] == pytest.approx(float(np.median(block.abs().numpy())), rel=1e-6)
        assert found.arrays[name].sum() == block.numel()


def test_batches_give_the_hessian_of_all_sequences_together() -> None:
    cell = {"attention": "softmax", "d_model": 4, "seed": 0, "data_seed": 3, "carries": "none"}
    many = block_entries.FIG4.measure({**cell, "batches": 3, "sequences": 2})
    problem = toy_problem(4, "softmax", 0, 2, 3, "none", batches=3)
    tokens = torch.cat([batch["tokens"] for batch in problem.data])
    task = Addition()
    model = Transformer(1, 4, attention_bias=False, seed=0, dtype=torch.float64)
    blocks = whole("blocks.0.attention.W_V")
    dense = dense_network_hessian(model, [tokens], lambda o, _: task.cross_entropy(o[0], tokens), blocks)
    (row,) = [r for r in many.rows if r["block"] == "value" and r["part"] == "full"]
    assert row["norm"] == pytest.approx(float(dense.full.norm()), rel=1e-9)


def test_a_lone_layer_is_measured_by_its_three_blocks() -> None:
    cell = {"place": "layer", "activation": "sigmoid", "seed": 0, "d_model": 3, "length": 5}
    rows = activations.ACTIVATION_OFFSET.measure(cell).rows
    assert {(r["block"], r["part"]) for r in rows} == {
        (b, p) for b in ("query", "key", "value") for p in ("outer", "functional", "full")
    }
    (value,) = [r for r in rows if (r["block"], r["part"]) == ("value", "full")]
    # Values meet the square loss through an identity: two thirds of the entries are exactly zero, and not the median.
    assert value["zeros"] == pytest.approx(2 / 3)
    assert isinstance(value["median"], float) and value["median"] > 0
    (functional,) = [r for r in rows if (r["block"], r["part"]) == ("value", "functional")]
    assert functional["norm"] == 0


def test_histogram_counts_every_entry_that_is_not_zero() -> None:
    matrix = torch.tensor([[0.0, 3e-5], [-3e-5, 1e-30]], dtype=torch.float64)
    counts = log_histogram(matrix)
    place = int(np.searchsorted(EDGES, np.log10(3e-5))) - 1
    assert counts[place] == 2 and counts[0] == 1 and counts.sum() == 3
    assert entry_sizes(matrix)["zeros"] == 0.25


def test_pooling_keeps_the_largest_entry_and_the_borders() -> None:
    matrix = torch.zeros(5, 5, dtype=torch.float64)
    matrix[2, 4], matrix[0, 0], matrix[1, 1] = -100.0, 1.0, 10.0
    found = pooled_map(matrix, [3, 2], pixels=3)
    assert found.tile == 2 and found.sizes.tolist() == [2, 1]
    assert found.logs.shape == (3, 3)
    assert found.logs[0, 0] == 1 and found.logs[1, 2] == 2
    assert np.isneginf(found.logs).sum() == 7
