"""Where there is no closed form: a clear error if it was asked for, exact products otherwise, never a wrong answer."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import transformers
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import BlockPairOperator
from hessianlens.network.base.question import Limits
from hessianlens.network.routes.last_attention import ExactAttention, exact_attention
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, pairs, scrambled, tokens
from tests.curvature.registry import contrast
from tests.network.registry import problem_of as exact_problem_of
from tests.oracles.comparison import assert_same
from tests.variants import randn


class Remembering(nn.Module):
    """Keeps its last outputs, graph and all, so that it cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = networks.toy()

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = self.transformer(inputs)
        return self.seen


class Averaging(networks.NanoGPT):
    """A decoder that mixes positions behind its last attention."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, None]:
        logits, _ = super().forward(inputs)
        return logits - logits.mean(1, keepdim=True), None


class Soft(networks.NanoGPT):
    """A decoder whose scores are capped."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.transformer["h"][0].attn = SharperAttention(True)


class Bent(networks.NanoGPT):
    """A decoder that does something to the scores that the closed form knows nothing of."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.transformer["h"][0].attn = BentAttention(True)


class SharedKeys(networks.NanoGPT):
    """A decoder whose c_attn has fewer heads of keys and values than of queries."""

    def __init__(self) -> None:
        super().__init__(layers=1)
        self.transformer["h"][0].attn = SharedKeysAttention(True)


class SharedKeysAttention(networks.NanoAttention):
    def __init__(self, bias: bool) -> None:
        super().__init__(bias)
        self.c_attn, self.n_kv_head = nn.Linear(WIDTH, 2 * WIDTH, bias=bias), 1

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).split([WIDTH, WIDTH // 2, WIDTH // 2], -1)
        q, k, v = (z.unflatten(-1, (-1, WIDTH // 2)).transpose(1, 2) for z in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.c_proj(mixed.transpose(1, 2).flatten(2))


class SharperAttention(networks.NanoAttention):
    hvp = staticmethod(torch.tanh)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (z.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for z in self.c_attn(x).chunk(3, -1))
        scores = self.hvp(q @ k.transpose(-1, -2)).masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -torch.inf)
        return self.c_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class BentAttention(SharperAttention):
    hvp = staticmethod(torch.sin)


def _coupled(loss) -> Problem:
    return networks.toy_problem(data={"tokens": tokens()}, loss=loss)


def _perplexity(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), batch[1].flatten()).exp()


def _untrained() -> nn.Module:
    model = hugging_face.gpt2_with_lora()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.lora_b.zero_()
    return model


def _multiple_choice() -> Problem:
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=3,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    ids = tokens(6).reshape(2, 3, LENGTH)
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.tensor([0, 2])}
    return hl.problem(scrambled(transformers.BertForMultipleChoice(config).double()), data)


def _squeezebert() -> Problem:
    config = transformers.SqueezeBertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        embedding_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        **{f"{name}_groups": 2 for name in ("q", "k", "v", "intermediate", "output")},
    )
    ids = tokens(2)
    data = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return hl.problem(scrambled(transformers.SqueezeBertForMaskedLM(config).double()), data)


COUPLED: dict[str, Callable[[], Problem]] = {
    "one sequence, no batch axis": lambda: networks.toy_problem(data=(tokens()[0], tokens(1, seed=5)[0])),
    "loss between sequences": lambda: _coupled(lambda out, batch: contrast(out.mean(1), batch)),
    "function of the mean loss": lambda: networks.toy_problem(loss=_perplexity),
}
"""Losses that leave no part of a batch alone."""


REFUSED: dict[str, tuple[Callable[[], Problem], str]] = {
    "one query-key matrix": (
        lambda: networks.toy_problem(2, query_key="single"),
        "its queries and keys are one matrix",
    ),
    "loss between positions": (
        lambda: _coupled(lambda out, batch: out.mean(1).pow(2).sum()),
        "the layers after it mix positions",
    ),
    "positions mixed behind the attention": (
        lambda: hl.problem(scrambled(Averaging(layers=1).double()), pairs(2), "cross_entropy"),
        "the layers after it mix positions",
    ),
    "other scores": (
        lambda: hl.problem(scrambled(Bent().double()), pairs(2), "cross_entropy"),
        "its scores pass through a nonlinearity that is not a soft cap",
    ),
    "choices": (_multiple_choice, "the layers after it couple the 3 sequences of an example, such as choices"),
    "no attention": (
        lambda: hl.problem(networks.mlp(), pairs(4, classes=3, length=None), "cross_entropy"),
        "no products of queries with keys were seen in front of a softmax, with values behind it",
    ),
}


@pytest.mark.expensive
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_closed_form_of_attention_does_not_know_is_met_at_its_linear_maps(name: str) -> None:
    problem, reason = REFUSED[name][0](), REFUSED[name][1]
    assert exact_attention(problem).reason == reason
    for role in "vk":
        last = [block for block in problem.blocks if block.endswith(f".attn.{role}")]
        for block in last[-1:]:
            for make in (hl.hessian, hl.ggn, hl.functional):
                op, products = make(problem, block, method="exact"), make(problem, block, method="hvp")
                assert isinstance(op, StructuredOperator) and isinstance(products, BlockPairOperator)
                V = randn(op.shape[1], 3)
                assert_same(op @ V, products @ V, name, 1e-9)


@pytest.mark.parametrize("make", [hugging_face.gpt2_with_lora, _untrained], ids=["trained", "adds nothing yet"])
def test_lora_around_a_packed_projection_is_a_sum_of_two_maps(make: Callable[[], nn.Module]) -> None:
    problem = hl.problem(make(), {"input_ids": tokens()})
    for name in ("q", "k", "v", "q.lora_b", "v.lora_b"):
        op, hvps = (hl.hessian(problem, f"layer1.attn.{name}", method=method) for method in ("exact", "hvp"))
        assert "last attention layer" in op.why
        V = randn(op.shape[1], 3)
        assert_same(op @ V, hvps @ V, name, 1e-9)


def test_a_convolution_is_not_taken_for_a_norm() -> None:
    problem = _squeezebert()
    reason = (
        "its queries come through conv1d with transformer.encoder.layers.0.attention.query.weight, which is not known "
        "to be a linear map"
    )
    assert exact_attention(problem).reason == reason
    assert hl.hessian(problem, "layer0.attn.k").why.endswith(f"the closed form of attention does not fit: {reason}")


def test_choices_of_an_example_are_taken_together() -> None:
    found = hl.hessian(_multiple_choice(), "layer0.attn.v", method="exact")
    assert "positions of an example, in several sequences, are taken together" in found.why


def test_the_reason_is_told_where_a_block_of_that_layer_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.operators.Limits", lambda *given: Limits(*given or (3,)))
    problem = hl.problem(scrambled(Bent().double()), pairs(2), "cross_entropy")
    assert hl.hessian(problem, "layer0.attn.k").why.endswith(
        "the closed form of attention does not fit: its scores pass through a nonlinearity that is not a soft cap"
    )
    assert "closed form of attention" not in hl.hessian(problem, "layer0.mlp.in").why


@pytest.mark.parametrize(
    "make",
    [Soft, SharedKeys, lambda: hugging_face.gpt2(scale_attn_by_inverse_layer_idx=True)],
    ids=["tanh of the scores", "fewer keys than queries", "scores divided by the number of the layer"],
)
def test_variants_of_the_scores_and_heads_are_known(make: Callable[[], nn.Module]) -> None:
    problem = hl.problem(scrambled(make().double()), pairs(2), "cross_entropy")
    found = exact_attention(problem)
    assert isinstance(found, ExactAttention)
    blocks = [block for block in problem.blocks.values() if found.covers([block])]
    assert blocks
    for block in blocks:
        if block.name.endswith("k.bias"):  # zero under softmax
            continue
        products = hl.hessian(problem, block.name, method="hvp")
        V = randn(products.shape[1], 3)
        assert_same(found.operator("full", block, block) @ V, products @ V, block.name, 1e-9)


@pytest.mark.parametrize("name", sorted(COUPLED))
def test_a_loss_that_couples_a_whole_batch_leaves_only_products(name: str) -> None:
    problem = COUPLED[name]()
    last = [block for block in problem.blocks if ".attn.v" in block][-1]
    with pytest.raises(hl.InputError, match=r"method: got 'exact', but the loss couples .*'hvp'"):
        hl.hessian(problem, last, method="exact")
    with pytest.raises(hl.InputError, match=r"method: got 'exact', but .*attn.*: the loss couples .*'probes'"):
        hl.block_norms(problem, last, method="exact")
    for make in (hl.hessian, hl.ggn, hl.functional):
        assert not make(problem, last).exact
    norms = hl.block_norms(problem, last, probes=3)
    assert list(norms.values()) == list(hl.block_norms(problem, last, probes=3, method="probes").values())
    assert not any(norm.method == "exact" for norm in norms.values())


def test_a_model_that_cannot_be_copied() -> None:
    model = scrambled(Remembering().double())
    model(tokens())
    problem = hl.problem(model, pairs(2), "cross_entropy", check=False)
    model(tokens())
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)
    op = hl.hessian(problem, "layer0.attn.q", method="exact")
    v = randn(op.shape[1])
    assert_same(op @ v, hl.hessian(problem, "layer0.attn.q", method="hvp") @ v, "q", 1e-9)


@pytest.mark.parametrize("make", [hl.hessian, hl.ggn, hl.functional])
def test_bad_input(make) -> None:
    problem = exact_problem_of("softmax")
    with pytest.raises(hl.InputError, match=r"method: got 'fast', expected one of 'auto', 'exact', 'hvp'"):
        make(problem, "layer0.attn.q", method="fast")
    with pytest.raises(hl.InputError, match=r"blocks: nothing matches 'layer7.*'; this problem has embed, pos"):
        make(problem, "layer7.*")
    with pytest.raises(hl.InputError, match=r"blocks: nothing matches 'Q'"):
        make(problem, "layer0.attn.q", "Q")
    with pytest.raises(hl.InputError, match=r"blocks: got \[\], expected a name"):
        make(problem, [])


def test_a_product_with_a_vector_of_another_length() -> None:
    op = hl.hessian(exact_problem_of("softmax"), "layer0.attn.q", method="hvp")
    with pytest.raises(ValueError, match=str(WIDTH * WIDTH)):
        op @ randn(3)
