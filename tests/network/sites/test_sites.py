"""The last attention layer taken out of its network: the same heads, inputs and outputs as in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.network.base.attention_calls import AttentionCalls
from hessianlens.network.base.operands import ScoreRule, pairs_of, plain, rotated_factor, score_rule
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.last_attention.locate import find_site
from hessianlens.network.routes.last_attention.site import (
    AttentionSite,
    HeadProjection,
    frozen_copy,
    heads_of,
    with_ones,
)
from hessianlens.problems import Block, Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, pairs, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

SETTINGS: dict[str, Callable[[], Problem]] = {
    "toy": lambda: hl.problem(networks.toy(layers=2, heads=2, norm="pre"), pairs(2), "cross_entropy"),
    "toy without biases": lambda: hl.problem(
        networks.toy(heads=2, attention_bias=False, causal=False), pairs(2), "cross_entropy"
    ),
    "toy, dictionary": lambda: hl.problem(
        networks.toy(norm="post"), {"tokens": tokens()}, lambda out, batch: out.pow(2).mean()
    ),
    "GPT-2": lambda: hl.problem(hugging_face.gpt2(), hugging_face.padded(3)),
    "nanoGPT": lambda: hl.problem(networks.nano_gpt(), pairs(2), "cross_entropy"),
}


def site_of(problem: Problem) -> AttentionSite | Refusal:
    return find_site(problem, problem.data[0], frozen_copy(problem))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_site_is_the_layer_of_the_network(name: str) -> None:
    problem = SETTINGS[name]()
    site = site_of(problem)
    assert isinstance(site, AttentionSite)
    seen: list[Tensor] = []
    module = {"GPT-2": "transformer.h.1.attn.c_proj", "nanoGPT": "transformer.h.1.attn.c_proj"}.get(name)
    if module is None:
        with problem.scope(), torch.no_grad():
            assert_same(site.network_output, problem.forward(problem.params, problem.data[0]), "outputs")
        return
    own = problem.source.get_submodule(module)
    handle = own.register_forward_hook(lambda _, __, result: seen.append(result.detach()))
    try:
        with problem.scope(), torch.no_grad():
            problem.forward(problem.params, problem.data[0])
    finally:
        handle.remove()
    assert_same(site.output + own.bias.detach(), seen[0].reshape(site.output.shape), "attention output")


@pytest.mark.parametrize("name", SETTINGS)
def test_biases_are_a_row_on_a_column_of_ones(name: str) -> None:
    site = site_of(SETTINGS[name]())
    biased = "without biases" not in name
    assert site.biased == biased and site.tokens.shape[-1] == WIDTH + biased
    if biased:
        assert torch.equal(site.tokens[..., -1], torch.ones(site.tokens.shape[:2], dtype=DOUBLE))


@pytest.mark.parametrize("kind", [Kind.IN_OUT, Kind.OUT_IN])
@pytest.mark.parametrize("of_inputs", [True, False])
def test_a_projection_cuts_every_entry_exactly_once(kind: Kind, of_inputs: bool) -> None:
    numbers = torch.arange(24).reshape(4, 6)
    inputs, outputs = numbers.shape if kind is Kind.IN_OUT else numbers.T.shape
    size = inputs if of_inputs else outputs
    features = torch.arange(size).reshape(-1, 2).T.flip(0).contiguous()  # two heads whose features alternate
    projection = HeadProjection(Use("w", kind, 0, None, ()), None, features, (0, 1), of_inputs=of_inputs)
    block = Block.of("all", "w", numbers)
    pieces = projection.cut(block, {"w": numbers})(numbers)
    assert projection.pieces(block, {"w": numbers}) == (0, 1)
    assert sorted(torch.cat([p.reshape(-1) for p in pieces]).tolist()) == list(range(24))
    for piece, matrix in zip(pieces, projection.matrices(numbers), strict=True):
        assert torch.equal(piece, matrix)


def test_a_block_is_made_of_whole_heads_or_not_known() -> None:
    weight, bias = torch.zeros(3, 8), torch.arange(8)
    projection = HeadProjection(
        Use("w", Kind.IN_OUT, 0, None, ()),
        Use("b", Kind.SHIFT, 0, None, ()),
        torch.arange(8).reshape(2, 4),
        (0, 0, 1, 1),
    )
    params = {"w": weight, "b": bias, "other": weight}

    def pieces(parameter: str, *index: slice) -> tuple[int, ...] | None:
        return projection.pieces(Block.of("x", parameter, params[parameter], index or None), params)

    every = slice(None)
    assert pieces("w", every, slice(4, 8)) == (1,) and pieces("w") == pieces("b") == (0, 1)
    assert pieces("w", every, slice(2, 6)) is None and pieces("other") is None
    assert pieces("w", slice(0, 2), every) is None
    assert list(projection.sharing(1)) == [2, 3]
    cut = projection.cut(Block.of("x", "b", bias, (slice(4, 8),)), params)
    assert cut(torch.tensor([4, 5, 6, 7]))[0].tolist() == [[4, 5, 6, 7]]


def test_heads_with_some_biases_only() -> None:
    """One bias is enough for a row of zeros in the others; the layer's output is that of the formula."""
    weights = {name: randn(4, 4, seed=k) for k, name in enumerate("qkvo")}
    bias = randn(4, seed=9)
    cut = {name: list(weight.chunk(2, int(name != "o"))) for name, weight in weights.items()}
    layer = heads_of(cut, {"q": [b[None] for b in bias.chunk(2)], "k": None, "v": None}, dict.fromkeys("qkvo", (0, 1)))
    X = randn(2, LENGTH, 4, seed=7)
    q, k, v = X @ weights["q"] + bias, X @ weights["k"], X @ weights["v"]
    heads = [
        (q[..., h] @ k[..., h].transpose(-1, -2) / 2**0.5).softmax(-1) @ v[..., h] @ weights["o"][h]
        for h in (slice(0, 2), slice(2, 4))
    ]
    assert_same(layer(with_ones(X)), sum(heads), "heads")


# --- what is met -----------------------------------------------------------------------------------------------------


def _by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2)
    scores /= 2.0
    return nnf.dropout(scores.softmax(-1), 0.5, training=False) @ v


def _summed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    flat = [z.flatten(0, 1) for z in (q, k, v)]
    scores = torch.zeros(1).double().baddbmm(flat[0], flat[1].mT, beta=1.0, alpha=0.5)
    return torch.bmm(scores.softmax(-1), flat[2])


ATTENTIONS = {
    "fused": lambda q, k, v: nnf.scaled_dot_product_attention(q, k, v, scale=0.5),
    "in steps, in place": _by_hand,
    "summed, sequences and heads in one axis": _summed,
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_met(name: str) -> None:
    q, k, v = (randn(2, 3, 4, 5, seed=s) for s in range(3))
    expected = ATTENTIONS[name](q, k, v)
    with AttentionCalls() as calls:
        found = ATTENTIONS[name](q, k, v)
    assert torch.equal(found, expected) and calls.last is not None
    assert_same(calls.last.raw.detach().reshape(2, 3, 4, 4), q @ k.mT, "products of queries and keys")
    rule = score_rule(calls.last.raw, calls.last.scores, (2, 3, 4, 4))
    assert isinstance(rule, ScoreRule) and rule.scale == pytest.approx(0.5) and rule.cap is None and rule.bias is None


def test_products_that_are_no_attention_are_not_met() -> None:
    with AttentionCalls() as calls:
        a = randn(2, 3, 3) @ randn(2, 3, 3)
        randn(2, 3, 3).softmax(-1) @ a
    assert calls.last is None


@pytest.mark.parametrize("cap", [None, 3.0, 50.0])
def test_rules_of_scores(cap: float | None) -> None:
    raw = (3 * randn(2, 2, 4, 4)).requires_grad_()
    bias = randn(2, 2, 4, 4, seed=1)
    seen = torch.ones(4, 4, dtype=torch.bool).tril()
    capped = 0.25 * raw + bias if cap is None else cap * torch.tanh(0.25 * raw / cap)
    rule = score_rule(raw, capped.masked_fill(~seen, -torch.inf), raw.shape)
    assert isinstance(rule, ScoreRule) and rule.scale == pytest.approx(0.25, rel=1e-6)
    assert torch.equal(rule.visible, seen.expand(raw.shape))
    assert rule.cap == (None if cap is None else pytest.approx(cap, rel=1e-9))
    if cap is None:
        assert_same(rule.bias, bias.masked_fill(~seen, 0), "bias")


def test_scores_of_no_known_rule() -> None:
    raw = randn(1, 1, 3, 3).requires_grad_()
    assert "one key each" in score_rule(raw, raw + raw.flip(-1), raw.shape).reason
    assert "not a soft cap" in score_rule(raw, raw.sin(), raw.shape).reason
    assert "different factors" in score_rule(raw, raw * (1 + torch.arange(3)), raw.shape).reason


def test_a_row_hidden_by_finite_numbers_sees_everything() -> None:
    raw = randn(1, 1, 2, 2).requires_grad_()
    rule = score_rule(raw, raw + torch.tensor([[torch.finfo(DOUBLE).min] * 2, [0.0, 0.0]], dtype=DOUBLE), raw.shape)
    assert rule.visible.all()


def test_turns_of_neighbours_and_of_halves() -> None:
    """Either pairing is brought into the order of halves; what is not a turn of pairs is told."""
    angle = torch.arange(3.0, dtype=DOUBLE)
    R = torch.zeros(3, 6, 6, dtype=DOUBLE)
    for first, second in ((0, 1), (2, 3)):
        R[:, first, first] = R[:, second, second] = torch.cos(angle)
        R[:, first, second], R[:, second, first] = -torch.sin(angle), torch.sin(angle)
    R[:, 4, 5] = R[:, 5, 4] = 1
    assert pairs_of(R) == [(0, 1), (2, 3), (4, 5)] and plain(R) is None
    rows = [0, 2, 4, 1, 3, 5]
    found = rotated_factor(R, rows)
    x = randn(3, 6)
    first, second = (x[:, found.order] * found.cos).chunk(2, -1)
    halves = x[:, found.order].chunk(2, -1)
    rotated = torch.cat([-halves[1], halves[0]], -1) * found.sin + torch.cat([first, second], -1)
    assert_same(rotated, (R @ x[..., None])[..., 0][:, rows], "turned")
    assert rotated_factor(R + 1e-3 * torch.ones(6, 6), rows) is None
    scaled = plain(3 * torch.eye(4)[[2, 0, 1, 3]].expand(5, 4, 4))
    assert scaled.order.tolist() == [2, 0, 1, 3] and float(scaled.cos[0, 0]) == 3


# --- the copy of the library's own models ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_copy_has_the_weights_of_the_problem_and_shares_nothing_with_the_model(dtype: torch.dtype) -> None:
    model = networks.toy().train()
    problem = hl.problem(model, pairs(2), "cross_entropy", dtype=dtype)
    copied = frozen_copy(problem)
    assert not copied.training and model.training
    assert not any(p.requires_grad for p in copied.parameters()) and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(p, problem.params[name]) and p.dtype == dtype for name, p in copied.named_parameters())


def test_other_models_are_not_copied() -> None:
    weight = randn(1)
    assert frozen_copy(Problem(lambda w, b: b, lambda o, b: o, {"w": weight}, {}, [weight])) is None
    assert frozen_copy(hl.problem(hugging_face.gpt2(), {"input_ids": tokens()})) is None


# --- where there is no site ------------------------------------------------------------------------------------------


def test_a_loss_of_one_position_is_a_loss_of_each_position_alone() -> None:
    problem = hl.problem(networks.toy(), {"tokens": tokens()}, lambda out, _: out[:, :1].pow(3).sum())
    site = site_of(problem)
    assert isinstance(site, AttentionSite) and site.downstream(site.output).shape == (2, LENGTH, VOCAB)


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_every_pair_of_positions_is_looked_at(reach: int) -> None:
    """A loss that couples position 0 with a single other one, of one sequence only, is found out."""

    def loss(out: Tensor, batch: object) -> Tensor:
        return out.pow(2).mean() + (out[1, 0] * out[1, reach]).sum()

    assert site_of(hl.problem(networks.toy(), {"tokens": tokens()}, loss)).reason == "the layers after it mix positions"


def test_an_encoder_of_torch_is_met_through_its_fused_function() -> None:
    attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True).double()
    x = randn(2, LENGTH, WIDTH)
    for weights in (True, False):
        with AttentionCalls() as calls:
            attention(x, x, x, need_weights=weights)
        assert calls.last is not None
