"""Gates of the values: closed form = matrix-free product = dense autograd, for every block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention import ValueGate
from hessianlens.attention.value_gate import FUNCTIONS, GatedValues
from hessianlens.errors import InputError, Refusal
from hessianlens.layer import expansion
from hessianlens.layer import gated_values as gated
from tests.oracles.comparison import assert_same
from tests.oracles.layers import assert_all_properties
from tests.pairwise import pairwise
from tests.variants import (
    ALL_ACTIVATIONS,
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

WIDTHS = {"of every entry": OUTPUT, "of the value": 1}


def gate(kind: str = "of every entry", function: object = "sigmoid", seed: int = 31) -> dict[str, ValueGate]:
    return {"value_gate": ValueGate(randn(WIDTH, WIDTHS[kind], seed=seed), function)}


MORE = {
    **SCORE_OPTIONS,
    "output gate": lambda: {"gate": randn(WIDTH, OUTPUT, seed=30)},
    "output gate of the head, softmax off by one": lambda: {"gate": randn(WIDTH, 1, seed=30), "sink": 0.0},
}


@pairwise(kind=WIDTHS, mask=MASKS, more=MORE, function=[*FUNCTIONS, torch.sin], batch=[None, 2], temperature=[1.0, 0.6])
def test_every_block(kind: str, mask: str, more: str, function: object, batch: int | None, temperature: float) -> None:
    X, options = tokens(batch), {**MASKS[mask](LENGTH), **MORE[more]()}
    layer = self_attention(3, temperature=temperature, **gate(kind, function), **options)
    assert_all_properties(layer, X, square_loss(X))


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    X = tokens(None)
    layer = self_attention(3, activation=ALL_ACTIVATIONS[activation](), causal=True, **gate())
    assert_all_properties(layer, X, square_loss(X))


@pairwise(loss=losses(tokens(None)), kind=WIDTHS, batch=[None, 2])
def test_every_loss(loss: str, kind: str, batch: int | None) -> None:
    X = tokens(batch)
    assert_all_properties(self_attention(2, causal=True, **gate(kind, "silu")), X, losses(X)[loss])


@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_and_long_sequences(length: int) -> None:
    X = tokens(2, length)
    assert_all_properties(self_attention(2, causal=True, **gate()), X, square_loss(X))


@pytest.mark.parametrize("loss", ["square", "coupling tokens"])
def test_heads_of_different_kinds(loss: str) -> None:
    """Factored values, rotary positions, one matrix, and a head without a gate."""
    X = tokens(2)
    heads = [
        factored_values(**gate("of the value", "tanh"), gate=randn(WIDTH, 1, seed=3)),
        rotary(4, key_norm=query_key_norm(4, "layer", 3), **gate(seed=32)),
        hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8), **gate(seed=33)),
        self_attention(2),
    ]
    assert_all_properties(hl.MultiHeadAttention(heads), X, losses(X)[loss])


def test_in_cross_attention() -> None:
    X, X_kv = tokens(2), randn(2, 7, 6, seed=9)
    shapes = ((WIDTH, 3), (6, 3), (6, OUTPUT))
    weights = [randn(*shape, seed=1 + k) / 2 for k, shape in enumerate(shapes)]
    layer = hl.attention.CrossAttention(*weights, value_gate=randn(6, OUTPUT, seed=4), gate=randn(WIDTH, 1, seed=5))
    assert_all_properties(layer, X, square_loss(X), X_kv)


def test_keys_and_values_of_another_layer() -> None:
    """Two layers that share their keys and values: the second looks at the tokens of the first."""
    X = tokens(2)
    first = self_attention(3, output=WIDTH, causal=True)
    second = self_attention(3, seed=2, causal=True, **gate(), key_norm=query_key_norm(3, "rms", 4))
    later = X + first(X)
    assert_all_properties(second, later, square_loss(later), X)


def test_derivatives_kept_as_diagonal_plus_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large problems use: nothing is formed because it is small."""
    monkeypatch.setattr(expansion, "_SMALL", 0)
    X = tokens(2)
    assert_all_properties(self_attention(3, **gate()), X, square_loss(X))


def test_tokens_without_a_loss_are_dropped() -> None:
    X, loss = tokens(2), hl.losses.CustomLoss(lambda F: torch.exp((F[-2] * F[-1]).sum() / 5))
    layer = self_attention(3, **gate())
    assert_all_properties(layer, X, loss)
    assert hl.attention_hessian(layer, X, loss).heads[0].scores.shape == (2, 2, LENGTH)


def test_a_gate_of_ones_is_none() -> None:
    """At a function that is one everywhere, its blocks vanish and all others are those without a gate."""
    X, options = tokens(2), gate(function=torch.ones_like)
    H, plain = (hl.attention_hessian(self_attention(3, **own), X, square_loss(X)) for own in (options, {}))
    names = ["Q", "K", "V"]
    for part in ("outer", "functional", "full"):
        assert_same(H.part(part)[names, names].to_dense(), plain.part(part)[:].to_dense(), part)
    assert float(H.full["value_gate", "value_gate"].frobenius_norm()) == 0


def test_a_linear_gate_is_symmetric_in_its_two_maps() -> None:
    X, V, G = tokens(2), randn(WIDTH, OUTPUT, seed=1), randn(WIDTH, OUTPUT, seed=2)
    W_Q, W_K = randn(WIDTH, 3, seed=3), randn(WIDTH, 3, seed=4)
    one, other = (
        hl.attention_hessian(hl.SelfAttention(W_Q, W_K, v, value_gate=ValueGate(g, "linear")), X, square_loss(X)).full
        for v, g in ((V, G), (G, V))
    )
    assert_same(one["V", "value_gate"].to_dense(), other["value_gate", "V"].to_dense(), "exchanged")
    assert_same(one["Q", "value_gate"].to_dense(), other["Q", "V"].to_dense(), "with queries")


def test_split_at_the_scores_adds_up() -> None:
    X, layer = tokens(2), self_attention(3, **gate())
    H = hl.attention_hessian(layer, X, square_loss(X))
    assert_same((H.t_outer + H.t_functional).to_dense(), H.full[["Q", "K"], ["Q", "K"]].to_dense(), "sum")
    assert_same(H.with_loss(H.loss).full[:].to_dense(), H.full[:].to_dense(), "the same loss again")


@pytest.mark.parametrize("place", [1, 2])
def test_a_wrong_derivative_of_the_gate_is_noticed(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, layer = tokens(2), self_attention(3, **gate())
    right = GatedValues.derivatives.func

    def wrong(values: GatedValues) -> tuple[Tensor, ...]:
        return tuple(found * 1.01 if k == place else found for k, found in enumerate(right(values)))

    monkeypatch.setattr(GatedValues, "derivatives", property(wrong))
    with pytest.raises(AssertionError, match="value_gate"):
        assert_all_properties(layer, X, square_loss(X))


def test_a_forgotten_second_derivative_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, layer = tokens(2), self_attention(3, **gate())
    monkeypatch.setattr(gated, "second_derivative_terms", lambda *_: [])
    with pytest.raises(AssertionError, match=r"functional\[V, value_gate\]"):
        assert_all_properties(layer, X, square_loss(X))


def test_blocks_behind_a_gate_have_no_sketch() -> None:
    X, layer = tokens(2), self_attention(3, **gate())
    found = hl.attention_hessian(layer, X, square_loss(X)).sketch.block("full", "Q", "V")
    assert isinstance(found, Refusal) and found.reason == "a gate multiplies the values"
    norms = hl.block_norms(hl.attention_hessian(layer, X, square_loss(X)))
    assert all(norm.exact for norm in norms.values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: randn(WIDTH, 2), "value_gate: got shape"),
        (lambda: randn(3, OUTPUT), "value_gate: got shape"),
        (lambda: randn(WIDTH), "value_gate"),
        (lambda: "silu", "value_gate: got 'silu'"),
        (lambda: ValueGate(randn(WIDTH, OUTPUT), "swish"), "function: got 'swish'"),
        (lambda: ValueGate(randn(WIDTH, OUTPUT), 3), "function: got 3"),
        (lambda: ValueGate(randn(WIDTH, OUTPUT), lambda z: z.sum()), "value_gate: its function turned shape"),
    ],
)
def test_what_is_no_gate_is_refused(given, message: str) -> None:
    with pytest.raises(InputError, match=message):
        self_attention(3, value_gate=given())(tokens(2))


def test_its_name_and_its_page(tmp_path) -> None:
    layer, X = self_attention(3, **gate(function="silu")), tokens(2)
    assert "silu gate of values" in repr(layer) and list(layer.parameters) == ["Q", "K", "V", "value_gate"]
    H = hl.attention_hessian(layer, X, square_loss(X))
    assert "value_gate" in H.page(tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda z: z.detach() * torch.sigmoid(z), "hides part of its derivative"),
        (lambda z: z.softmax(-1), "entry by entry"),
        (lambda z: z - z.mean(), "entry by entry"),
        (lambda z: torch.sigmoid(z.roll(1, -1)), "entry by entry"),
        (lambda z: z.sum(-1), "expected"),
    ],
    ids=["detached", "a row at a time", "the mean of all", "that of another entry", "another shape"],
)
def test_what_is_no_differentiable_function_of_an_entry_is_refused(
    function: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    X = tokens(2)
    with pytest.raises(hl.InputError, match=message):
        H = hl.attention_hessian(self_attention(3, **gate(function=function)), X, square_loss(X))
        H.full["value_gate", "value_gate"].frobenius_norm()


def _cancelling(z: Tensor) -> Tensor:
    """``z^2 / 2 + z^3 / 6 + ...`` as a sum of terms near one."""
    return torch.exp(z) - 1 - z


CANCELLING = {
    "exponential": _cancelling,
    "mish": lambda z: torch.nn.functional.mish(z) - 0.6 * z,
    "GELU": lambda z: torch.nn.functional.gelu(z) - z / 2,
}


@pytest.mark.every_case
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4, 0.0])
@pytest.mark.parametrize("function", CANCELLING)
def test_terms_that_cancel_are_no_mixed_entries(function: str, scale: float) -> None:
    """In float32 little but rounding is left of such a gate where logits are small; entries are not mixed for that."""
    logits, right = scale * randn(3, 7, OUTPUT, seed=5).float(), CANCELLING[function]
    wrong = (lambda z: right(z) + 1e-3 * z.mean(), lambda z: right(z).roll(1, 0), lambda z: right(z) * z.softmax(-1))
    for number, own in enumerate((right, *(wrong if scale else wrong[:1]))):
        gate = ValueGate(torch.eye(OUTPUT), own)
        with pytest.raises(InputError, match="entry by entry") if number else nullcontext():
            gate.check_entry_by_entry(logits, gate.of_logits(logits))


def test_a_gate_whose_terms_cancel_in_float32() -> None:
    """Its curvature is that of the same function in float64, up to what rounding leaves."""
    X = tokens(2) / 20
    layer, targets = self_attention(3, **gate(function=_cancelling)), randn(*X.shape[:-1], OUTPUT, seed=6)
    W = layer.parameters
    single = hl.SelfAttention(
        *(W[name].float() for name in "QKV"), value_gate=ValueGate(W["value_gate"].float(), _cancelling)
    )
    found = hl.attention_hessian(single, X.float(), hl.SquareLoss(targets.float())).full[:].to_dense().double()
    expected = hl.attention_hessian(layer, X, hl.SquareLoss(targets)).full[:].to_dense()
    assert float((found - expected).norm()) < 1e-4 * float(expected.norm())
