"""The last attention of models with norms of queries and keys, sinks and latent keys: against plain double backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.attention.side_by_side import TokenwiseHead
from hessianlens.errors import Refusal
from hessianlens.network.routes.last_attention import ExactAttention, exact_attention
from hessianlens.network.routes.last_attention.output_map import OutputMap
from hessianlens.network.routes.last_attention.smooth_attention import SmoothAttention
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.curvature.networks import LENGTH, VOCAB, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import randn

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 4,
    "intermediate_size": 3,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 4,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
}


def _llm(kind: str, **more) -> Problem:
    config = getattr(transformers, f"{kind}{'Text' if kind == 'Gemma3' else ''}Config")(**{**SIZES, **more})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{kind}ForCausalLM")(config).double()
    return hl.problem(scrambled(model), {"input_ids": tokens()})


LATENT = {
    "q_lora_rank": 3,
    "kv_lora_rank": 3,
    "qk_nope_head_dim": 2,
    "qk_rope_head_dim": 2,
    "v_head_dim": 2,
    "first_k_dense_replace": 2,
    "num_key_value_heads": 2,
    "head_dim": 2,
}
MODELS: dict[str, tuple[Callable[[], Problem], bool]] = {
    "Qwen3: norm of every head": (lambda: _llm("Qwen3"), True),
    "Qwen3 with biases": (lambda: _llm("Qwen3", attention_bias=True), True),
    "Gemma3: 1 + gain, sliding window": (lambda: _llm("Gemma3", sliding_window=3, query_pre_attn_scalar=4), True),
    "OLMo2: norm of all heads together": (lambda: _llm("Olmo2", hidden_size=8), True),
    "GPT-OSS: sinks": (lambda: _llm("GptOss", num_local_experts=2, num_experts_per_tok=1), False),
    "DeepSeek-V3: latent queries, keys and values": (lambda: _llm("DeepseekV3", **LATENT), True),
}


class NormedWithSink(networks.NanoAttention):
    """QK-norm and a sink in one attention."""

    normed = True

    def __init__(self, bias: bool) -> None:
        super().__init__(bias)
        self.sinks = nn.Parameter(torch.tensor([0.3, -0.4]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        if self.normed:
            q, k = (z * (z.square().mean(-1, keepdim=True) + 1e-3).rsqrt() for z in (q, k))
        future = torch.ones(LENGTH, LENGTH).triu(1) > 0
        scores = (q @ k.transpose(-1, -2)).masked_fill(future, -torch.inf)
        sinks = self.sinks[None, :, None, None].expand(len(x), -1, LENGTH, 1)
        weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


class WithSink(NormedWithSink):
    """A sink alone."""

    normed = False


def _nano(attention: type[nn.Module]) -> Problem:
    model = networks.NanoGPT(layers=1)
    model.transformer["h"][0].attn = attention(True)
    return hl.problem(scrambled(model.double()), networks.pairs(2), "cross_entropy")


def _seq2seq(kind: str, **more) -> Problem:
    """An encoder-decoder that reads more tokens than it writes; one of them is padding."""
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB, pad_token_id=0, decoder_start_token_id=1, dropout_rate=0.0, dropout=0.0, **more
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).double()
    ids = torch.cat([tokens(), tokens().flip(1)[:, :2]], 1)
    mask = torch.ones_like(ids)
    mask[0, -1] = 0
    return hl.problem(scrambled(model), {"input_ids": ids, "attention_mask": mask, "labels": tokens()})


MODELS["T5: keys of an encoder"] = (
    lambda: _seq2seq("T5", d_model=6, d_kv=3, d_ff=4, num_layers=1, num_heads=2, num_decoder_layers=2),
    True,
)
_BART = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2))}
MODELS["BART: keys of an encoder, with biases"] = (
    lambda: _seq2seq("Bart", d_model=6, encoder_ffn_dim=4, decoder_ffn_dim=4, max_position_embeddings=16, **_BART),
    True,
)


class Gated(networks.NanoAttention):
    """A gate with a bias behind the heads, and a norm behind the gate."""

    act = staticmethod(torch.sigmoid)

    def __init__(self, bias: bool) -> None:
        super().__init__(bias)
        self.c_gate = nn.Linear(networks.WIDTH, networks.WIDTH, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        y = y * self.act(self.c_gate(x))
        return self.c_proj(y * (y.square().mean(-1, keepdim=True) + 1e-2).rsqrt())


class GatedByValues(Gated):
    """Heads that lose what they have in common with the values."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj((y * torch.tanh(v)).transpose(1, 2).flatten(2))


class GatedBesideAMap(Gated):
    """Heads that go into two maps."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.c_proj(torch.tanh(y)) + self.c_gate(2 * y)


MODELS["gate of its own values"] = (lambda: _nano(GatedByValues), True)
MODELS["gate with bias, and a norm"] = (lambda: _nano(Gated), False)
_LINEAR = {"layer_types": ["full_attention"] * 2, "partial_rotary_factor": 1.0}
MODELS["Qwen3-Next: gates in the map of the queries"] = (
    lambda: _llm("Qwen3Next", num_experts=2, num_experts_per_tok=1, moe_intermediate_size=3, **_LINEAR),
    True,
)
MODELS["AFMoE: gates of their own"] = (
    lambda: _llm("Afmoe", num_dense_layers=2, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=3),
    True,
)
MODELS["norm and sink in one"] = (lambda: _nano(NormedWithSink), True)
MODELS["sink alone"] = (lambda: _nano(WithSink), False)


def _located(name: str) -> tuple[Problem, ExactAttention]:
    problem = MODELS[name][0]()
    found = exact_attention(problem)
    assert isinstance(found, ExactAttention), found
    heads = [head for head in found.sites[0].layer.heads if not isinstance(head, TokenwiseHead)]
    smooth = all(isinstance(head, SmoothAttention) for head in heads)
    assert smooth == MODELS[name][1]
    return problem, found


@pytest.mark.expensive
@pytest.mark.parametrize("name", MODELS)
def test_every_pair_of_blocks(name: str) -> None:
    problem, found = _located(name)
    blocks = [b for b in problem.blocks.values() if found.covers([b]) and "head" not in b.name]
    assert len(blocks) >= 3
    for row in blocks:
        for column in blocks:
            V = randn(column.numel, 2)
            for part, make in {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}.items():
                expected = make(problem, row.name, column.name, method="hvp") @ V
                error = (found.operator(part, row, column) @ V - expected).norm()
                size = (hl.ggn(problem, row.name, column.name, method="hvp") @ V).norm()
                assert error <= 1e-9 * max(float(expected.norm()), float(size)) + 1e-15, (
                    f"{part} {row.name} {column.name}"
                )


@pytest.mark.expensive
@pytest.mark.parametrize("name", MODELS)
def test_norms_and_the_public_calls(name: str) -> None:
    problem, found = _located(name)
    for block in [b for b in problem.blocks.values() if found.covers([b]) and not b.name.endswith("k.bias")]:
        op = hl.hessian(problem, block.name)
        assert op.exact
        dense = op.to_dense()
        products = hl.hessian(problem, block.name, method="hvp") @ torch.eye(block.numel, dtype=dense.dtype)
        assert_same(dense, products, block.name, 1e-9)
        assert abs(found.norms(block, ["full"])["full"] / float(products.norm()) - 1) < 1e-9


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (GatedBesideAMap, "the output of its heads goes into 2 linear maps"),
    ],
)
def test_what_is_no_gate_is_refused_with_its_reason(attention: type[nn.Module], reason: str) -> None:
    found = exact_attention(_nano(attention))
    assert isinstance(found, Refusal)
    assert found.reason == reason


def test_a_gate_without_its_second_derivative_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees the one term that a gate adds."""
    monkeypatch.setattr(OutputMap, "second_derivative", lambda self, w: w.new_zeros(()))
    with pytest.raises(AssertionError, match="full "):
        test_every_pair_of_blocks("gate with bias, and a norm")


def test_a_bias_of_keys_counts_beside_a_sink() -> None:
    problem, found = _located("sink alone")
    (bias,) = [block for name, block in problem.blocks.items() if name.endswith("attn.k.bias")]
    assert found.covers([bias]) and not found.is_flat(bias)
    assert found.norms(bias, ["full"])["full"] > 1e-6


def test_a_window_and_a_sink_are_part_of_the_heads() -> None:
    _, found = _located("GPT-OSS: sinks")
    assert {head.sink for head in found.sites[0].layer.heads} == {0.0}
