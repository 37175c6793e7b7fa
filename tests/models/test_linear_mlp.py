"""Linear MLPs on tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.models import LinearMLP
from tests.oracles import comparison
from tests.variants import DOUBLE

TOKENS = torch.tensor([[1, 4, 2, 0], [3, 3, 0, 1]])


def assert_same(found: Tensor, expected: Tensor, what: str = "", relative: float = comparison.RELATIVE) -> None:
    comparison.assert_same(found.detach(), expected.detach(), what, relative)


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_it_is_a_product_of_matrices(layers: int) -> None:
    model = LinearMLP(layers, width=6, seed=1, dtype=DOUBLE)
    x = model.token_embedding[TOKENS]
    for layer in model.layers:
        assert layer.bias is None
        x = x @ layer.weight.T
    assert x.shape == (2, 4, 12)
    assert_same(model(TOKENS), x)


def test_weights_follow_torch_and_the_embedding_its_scale() -> None:
    model = LinearMLP(3, width=128, vocab=200, embedding_std=0.1, seed=2)
    bound = 1 / math.sqrt(128)
    for layer in model.layers:
        theirs = torch.nn.Linear(128, len(layer.weight), bias=False).weight
        assert bound * 0.99 < layer.weight.abs().max().item() <= bound
        assert layer.weight.std().item() == pytest.approx(theirs.std().item(), rel=0.03)
    assert model.token_embedding.std().item() == pytest.approx(0.1, rel=0.03)


def test_seed_dtype_and_scale_are_independent() -> None:
    one, ten = (LinearMLP(2, 8, embedding_std=s, seed=4, dtype=DOUBLE) for s in (1.0, 10.0))
    assert_same(ten(TOKENS), 10 * one(TOKENS))
    single = LinearMLP(2, 8, embedding_std=1.0, seed=4)
    for p, q in zip(one.parameters(), single.parameters(), strict=True):
        assert torch.equal(p.float(), q)
    assert not torch.equal(one(TOKENS), LinearMLP(2, 8, seed=5, dtype=DOUBLE)(TOKENS))


def test_redrawing_changes_the_embedding_only() -> None:
    model, before = LinearMLP(2, 8, seed=4), LinearMLP(2, 8, seed=4).state_dict()
    model.redraw_embeddings(0.3, seed=5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (name != "token_embedding")
    assert torch.equal(model.token_embedding, LinearMLP(2, 8, seed=5, embedding_std=0.3).token_embedding)


def test_it_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    LinearMLP(3, 8)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(("options", "named"), [({"layers": 0}, "layers"), ({"embedding_std": -1.0}, "embedding_std")])
def test_bad_options_are_named(options: dict, named: str) -> None:
    with pytest.raises(hl.InputError, match=named):
        LinearMLP(**options)


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(hl.InputError, match="vocab = 3"):
        LinearMLP(vocab=3)(TOKENS)
