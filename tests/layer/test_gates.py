"""Output gates: closed form = matrix-free product = dense autograd, for every block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention.side_by_side import SideBySideAttention, TokenwiseHead
from hessianlens.errors import InputError, Refusal
from hessianlens.layer import expansion, gated
from tests.oracles.comparison import assert_same
from tests.oracles.layers import assert_all_properties
from tests.pairwise import pairwise
from tests.variants import (
    ALL_ACTIVATIONS,
    DOUBLE,
    LENGTH,
    MASKS,
    OUTPUT,
    SCORE_OPTIONS,
    WIDTH,
    factored_values,
    losses,
    query_key_norm,
    randn,
    rotary,
    self_attention,
    square_loss,
    tokens,
)

GATES = {"of every entry": OUTPUT, "of the head": 1}


def gate(kind: str, seed: int = 30) -> dict[str, Tensor]:
    return {"gate": randn(WIDTH, GATES[kind], seed=seed)}


@pairwise(kind=GATES, mask=MASKS, more=SCORE_OPTIONS, batch=[None, 2], temperature=[1.0, 0.6])
def test_every_block(kind: str, mask: str, more: str, batch: int | None, temperature: float) -> None:
    X = tokens(batch)
    options = {**gate(kind), **MASKS[mask](LENGTH), **SCORE_OPTIONS[more]()}
    assert_all_properties(self_attention(3, temperature=temperature, **options), X, square_loss(X))


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    X = tokens(None)
    layer = self_attention(3, activation=ALL_ACTIVATIONS[activation](), causal=True, **gate("of every entry"))
    assert_all_properties(layer, X, square_loss(X))


@pairwise(loss=losses(tokens(None)), kind=GATES, batch=[None, 2])
def test_every_loss(loss: str, kind: str, batch: int | None) -> None:
    X = tokens(batch)
    assert_all_properties(self_attention(2, causal=True, **gate(kind)), X, losses(X)[loss])


@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_and_long_sequences(length: int) -> None:
    X = tokens(2, length)
    assert_all_properties(self_attention(2, causal=True, **gate("of every entry")), X, square_loss(X))


@pytest.mark.parametrize("loss", ["square", "coupling tokens"])
def test_heads_of_different_kinds(loss: str) -> None:
    """Heads with a gate each of its own kind, one without."""
    X = tokens(2)
    heads = [
        self_attention(2, **gate("of every entry")),
        factored_values(**gate("of the head", 31)),
        rotary(4, key_norm=query_key_norm(4, "layer", 3), **gate("of every entry", 32)),
        hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8)),
    ]
    assert_all_properties(hl.MultiHeadAttention(heads), X, losses(X)[loss])


def test_in_cross_attention() -> None:
    X, X_kv = tokens(2), randn(2, LENGTH, WIDTH, seed=9)
    assert_all_properties(self_attention(2, **gate("of every entry")), X, square_loss(X), X_kv)
    assert_all_properties(self_attention(2, **gate("of the head")), X, square_loss(X), X_kv[:, :3])


@pytest.mark.parametrize("loss", losses(tokens(None)))
def test_heads_side_by_side(loss: str) -> None:
    X = tokens(2)
    layer = SideBySideAttention([self_attention(2, output=2), TokenwiseHead(randn(WIDTH, 1, seed=3))])
    assert_all_properties(layer, X, losses(X)[loss])


def test_derivatives_kept_as_diagonal_plus_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large problems use: nothing is formed because it is small."""
    monkeypatch.setattr(expansion, "_SMALL", 0)
    X = tokens(2)
    assert_all_properties(self_attention(3, **gate("of every entry")), X, square_loss(X))


def test_tokens_without_a_loss_are_dropped() -> None:
    X, loss = tokens(2), hl.losses.CustomLoss(lambda F: torch.exp((F[-2] * F[-1]).sum() / 5))
    layer = self_attention(3, **gate("of every entry"))
    assert_all_properties(layer, X, loss)
    assert hl.attention_hessian(layer, X, loss).heads[0].scores.shape == (2, 2, LENGTH)


def test_split_at_the_scores_adds_up() -> None:
    X, layer = tokens(2), self_attention(3, **gate("of every entry"))
    H = hl.attention_hessian(layer, X, square_loss(X))
    assert_same((H.t_outer + H.t_functional).to_dense(), H.full[["Q", "K"], ["Q", "K"]].to_dense(), "sum")
    pairs = hl.layer.eigenvalue_pairs(H).eigenvalues()
    assert_same(pairs, torch.linalg.eigvalsh(H.t_functional[:].to_dense()), "pairs")


def test_an_open_gate_is_none() -> None:
    """At logits of 40 the gate is one to rounding, and its blocks vanish."""
    X = torch.cat([tokens(2)[..., :-1], torch.ones(2, LENGTH, 1, dtype=DOUBLE)], -1)
    opened = torch.zeros(WIDTH, OUTPUT, dtype=DOUBLE)
    opened[-1] = 40
    H, plain = (
        hl.attention_hessian(self_attention(3, **options), X, square_loss(X)) for options in ({"gate": opened}, {})
    )
    names = ["Q", "K", "V"]
    assert_same(H.full[names, names].to_dense(), plain.full[:].to_dense(), "open")
    assert float(H.full["gate", "gate"].frobenius_norm()) < 1e-15


def test_a_gate_without_its_second_derivative_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, layer = tokens(2), self_attention(3, **gate("of every entry"))
    second = gated.GatedOutput.second_derivative
    monkeypatch.setattr(gated.GatedOutput, "second_derivative", lambda self, g: second(self, g) * 1.01)
    with pytest.raises(AssertionError, match=r"functional\[Q, gate\]"):
        assert_all_properties(layer, X, square_loss(X))


def test_there_is_no_sketch() -> None:
    X, layer = tokens(2), self_attention(3, **gate("of the head"))
    found = hl.attention_hessian(layer, X, square_loss(X)).sketch.block("full", "Q", "Q")
    assert isinstance(found, Refusal) and "gate" in found.reason


@pytest.mark.parametrize(
    ("shape", "message"), [((WIDTH, 2), "gate: got shape"), ((3, OUTPUT), "gate: got shape"), ((WIDTH,), "W_gate")]
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        self_attention(3, gate=randn(*shape))
