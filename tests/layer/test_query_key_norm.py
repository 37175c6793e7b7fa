"""Norms of queries and keys, and sinks: closed form = matrix-free product = dense autograd, for every block."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from hessianlens.attention import QueryKeyNorm
from hessianlens.attention.query_key_norm import KINDS
from hessianlens.errors import InputError
from hessianlens.layer import expansion
from hessianlens.layer.query_key import eigenvalue_pairs
from tests.oracles.comparison import assert_same
from tests.oracles.layers import assert_all_properties, assert_witnesses_agree
from tests.pairwise import pairwise
from tests.variants import (
    ALL_ACTIVATIONS,
    DOUBLE,
    LENGTH,
    MASKS,
    NORMS,
    SINKS,
    factored_values,
    losses,
    query_key_norm,
    randn,
    rotary,
    self_attention,
    square_loss,
    tokens,
)

SINKING = [
    name
    for name, make in ALL_ACTIVATIONS.items()
    if getattr(hl.attention.activations.as_activation(make()), "fixed_sum", False)
]


@pairwise(norm=NORMS, sink=SINKS, mask=MASKS, batch=[None, 2], temperature=[1.0, 0.6])
def test_every_block(norm: str, sink: str, mask: str, batch: int | None, temperature: float) -> None:
    X, options = tokens(batch), {**NORMS[norm](3), **SINKS[sink](), **MASKS[mask](LENGTH)}
    assert_all_properties(self_attention(3, temperature=temperature, **options), X, square_loss(X))


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    sink = SINKS["sink"]() if activation in SINKING else {}
    X, made = tokens(None), ALL_ACTIVATIONS[activation]()
    options = NORMS["queries and keys, gains"](3)
    assert_all_properties(self_attention(3, activation=made, causal=True, **options, **sink), X, square_loss(X))


@pairwise(loss=losses(tokens(None)), norm=[name for name in NORMS if "shifts" not in name], sink=SINKS)
def test_every_loss(loss: str, norm: str, sink: str) -> None:
    X = tokens(2)
    assert_all_properties(self_attention(2, **NORMS[norm](2), **SINKS[sink](), causal=True), X, losses(X)[loss])


@pairwise(norm=NORMS, sink=SINKS, mask=MASKS, behind=[False, True])
def test_with_rotary_positions(norm: str, sink: str, mask: str, behind: bool) -> None:
    X, options = tokens(2), {**NORMS[norm](4), **SINKS[sink](), **MASKS[mask](LENGTH)}
    assert_all_properties(rotary(norm_behind_rotation=behind, **options), X, square_loss(X))


@pytest.mark.parametrize("length", [1, 2, 9])
def test_short_and_long_sequences(length: int) -> None:
    """Both ways of holding the query-key blocks, at their limits."""
    X, options = tokens(2, length), NORMS["queries and keys, gains"](2) | SINKS["sink"]()
    assert_all_properties(self_attention(2, causal=True, **options), X, square_loss(X))


@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_kept_as_diagonal_plus_low_rank(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large problems use: nothing is formed because it is small."""
    monkeypatch.setattr(expansion, "_SMALL", 0)
    X = tokens(2)
    assert_all_properties(self_attention(3, **NORMS[norm](3), **SINKS["sink"]()), X, square_loss(X))


def test_heads_of_different_kinds() -> None:
    X = tokens(2)
    heads = [
        self_attention(2, **NORMS["queries and keys, gains"](2)),
        factored_values(sink=torch.tensor(-0.4, dtype=DOUBLE)),
        rotary(4, key_norm=query_key_norm(4, "layer", 3), sink=0.0),
    ]
    assert_witnesses_agree(hl.MultiHeadAttention(heads), X, square_loss(X))


def test_tokens_without_a_loss_are_dropped() -> None:
    layer, X = self_attention(3, **NORMS["LayerNorm with shifts"](3), **SINKS["sink"]()), tokens(2)
    loss = hl.losses.CustomLoss(lambda F: torch.exp((F[-2] * F[-1]).sum() / 5))
    assert_all_properties(layer, X, loss)
    assert hl.attention_hessian(layer, X, loss).heads[0].scores.shape == (2, 2, LENGTH + 1)


@pytest.mark.parametrize("norm", ["queries and keys, gains", "LayerNorm with shifts", "queries alone"])
def test_split_at_the_scores_adds_up(norm: str) -> None:
    X, layer = tokens(2), self_attention(3, **NORMS[norm](3))
    H = hl.attention_hessian(layer, X, square_loss(X))
    names = [name for name in layer.parameters if name != "V"]
    assert_same((H.t_outer + H.t_functional).to_dense(), H.full[names, names].to_dense(), "sum")
    v = randn(H.t_functional.shape[1])
    assert_same(H.t_functional[:] @ v, H.t_functional[:].to_dense() @ v, "t_functional v")
    assert float(H.t_functional["Q", "Q"].frobenius_norm()) > 0
    with pytest.raises(InputError, match="a norm of queries or keys"):
        eigenvalue_pairs(H)


def test_a_sink_is_one_more_token_without_a_value() -> None:
    """The formula of the softmax with a sink, and what is left of the weights."""
    X, sink = tokens(None), torch.tensor(0.3, dtype=DOUBLE)
    layer = self_attention(3, sink=sink, causal=True)
    T = (X @ layer.W_Q) @ (X @ layer.W_K).T / 3**0.5
    seen = T.exp().tril()
    A = seen / (sink.exp() + seen.sum(-1, keepdim=True))
    assert_same(layer.attention(X), A, "weights")
    assert_same(layer(X), A @ X @ layer.W_V, "output")
    off_by_one = self_attention(3, sink=0.0)
    assert_same(off_by_one.attention(X), T.exp() / (1 + T.exp().sum(-1, keepdim=True)), "softmax off by one")


@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_and_its_derivatives(kind: str) -> None:
    norm, z, w = QueryKeyNorm(kind), randn(1, 2, 5, seed=3), randn(1, 2, 5, seed=4)
    found = norm.normalised(z)
    jacobian = torch.autograd.functional.jacobian(norm, z)
    for n in range(2):
        assert_same(found.matrices()[0, n], jacobian[0, n, :, 0, n], "jacobian")
        second = torch.autograd.functional.hessian(lambda row, n=n: (norm(row) * w[0, n]).sum(), z[0, n])
        assert_same(found.second_derivative(w)[0, n], second, "second derivative")
    assert_same(found.turn(w), (found.matrices() @ w[..., None])[..., 0], "turn")


def test_scale_of_queries_does_not_matter_behind_a_norm() -> None:
    """Along W_Q itself the Hessian's product is minus the gradient: the loss is constant on that ray."""
    X, layer = tokens(2), self_attention(3, query_norm=QueryKeyNorm(eps=0.0), key_norm=QueryKeyNorm(eps=0.0))
    loss, W = square_loss(X), layer.W_Q
    slope = torch.autograd.functional.jacobian(lambda w: loss.value(layer.with_parameters({"Q": w})(X)), W)
    H = hl.attention_hessian(layer, X, loss).full["Q", "Q"]
    assert_same(H @ W.reshape(-1), -slope.reshape(-1), "H w", 1e-9)
    assert abs(float((slope * W).sum())) < 1e-14


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"query_norm": QueryKeyNorm(gain=torch.ones(2, dtype=DOUBLE))}, "query_norm.gain: got shape"),
        ({"key_norm": "batch"}, "kind"),
        ({"key_norm": 3}, "key_norm"),
        ({"sink": torch.ones(2, dtype=DOUBLE)}, "expected one entry"),
        ({"sink": 0.0, "activation": "sigmoid"}, "sum to one"),
        ({"sink": torch.tensor(torch.nan, dtype=DOUBLE)}, "non-finite"),
        ({"sink": torch.tensor(1.0)}, "different dtype"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        self_attention(3, **options)
