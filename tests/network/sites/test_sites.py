"""The last attention layer taken out of its network: the same heads, inputs and outputs as in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.network.sites import AttentionSite, Storage, find_site, frozen_copy
from hessianlens.network.sites.site import heads_of, with_ones
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, tokens
from tests.curvature.registry import pairs
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

Setting = tuple[Callable[[], Problem], Callable[[nn.Module], nn.Module]]
SETTINGS: dict[str, Setting] = {
    "toy": (
        lambda: hl.problem(networks.toy(layers=2, heads=2, norm="pre"), pairs(2), "cross_entropy"),
        lambda m: m.blocks[-1].attention,
    ),
    "toy without biases, no causal mask": (
        lambda: hl.problem(networks.toy(heads=2, attention_bias=False, causal=False), pairs(2), "cross_entropy"),
        lambda m: m.blocks[-1].attention,
    ),
    "toy, dictionary": (
        lambda: hl.problem(networks.toy(norm="post"), {"tokens": tokens()}, lambda out, batch: out.pow(2).mean()),
        lambda m: m.blocks[-1].attention,
    ),
    "GPT-2": (lambda: hl.problem(hugging_face.gpt2(), hugging_face.padded(3)), lambda m: m.transformer.h[-1].attn),
    "nanoGPT": (
        lambda: hl.problem(networks.nano_gpt(), pairs(2), "cross_entropy"),
        lambda m: m.transformer["h"][-1].attn,
    ),
}


def site_of(problem: Problem) -> tuple[AttentionSite | None, nn.Module]:
    model = frozen_copy(problem)
    return find_site(problem, model, problem.data[0]), model


def run(problem: Problem, attention: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """The problem's outputs, and what the attention put out on the way (nothing if only its parts were called)."""
    found: list[Tensor] = []

    def note(_: nn.Module, __: object, result: object) -> None:
        found.append((result[0] if isinstance(result, tuple) else result).detach())

    handle = attention.register_forward_hook(note)
    try:
        with problem.scope(), torch.no_grad():
            return problem.forward(problem.params, problem.data[0]), found
    finally:
        handle.remove()


@pytest.mark.parametrize("name", SETTINGS)
def test_the_site_is_the_layer_of_the_network(name: str) -> None:
    make, attention_of = SETTINGS[name]
    problem = make()
    site, _ = site_of(problem)
    attention = attention_of(problem.source)
    outputs, seen = run(problem, attention)
    F = site.layer(site.tokens)
    assert_same(site.behind(F), outputs, "outputs")
    assert bool(seen) == (name in ("GPT-2", "nanoGPT"))
    for found in seen:
        assert_same(F + attention.c_proj.bias.detach(), found, "attention output")
    last = max(int(block.split(".")[0][5:]) for block in problem.blocks if block.startswith("layer"))
    assert site.prefix == f"layer{last}.attn"


@pytest.mark.parametrize("name", SETTINGS)
def test_biases_are_a_row_on_a_column_of_ones(name: str) -> None:
    site, _ = site_of(SETTINGS[name][0]())
    biased = "without biases" not in name
    assert site.biased == (frozenset("qkv") if biased else frozenset())
    assert site.tokens.shape[-1] == WIDTH + biased
    if biased:
        assert torch.equal(site.tokens[..., -1], torch.ones(site.tokens.shape[:2], dtype=DOUBLE))


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("name", ["q", "k", "v", "o"])
def test_storage_cuts_every_entry_exactly_once(name: str, transposed: bool) -> None:
    storage = Storage(heads=2, transposed=transposed)
    numbers = torch.arange(24).reshape(4, 6)
    matrix = numbers.T if transposed else numbers
    pieces = storage.by_head(name, numbers)
    assert torch.equal(torch.cat(pieces, dim=0 if name == "o" else 1), matrix)
    assert sorted(torch.cat([p.reshape(-1) for p in pieces]).tolist()) == list(range(24))


def test_a_bias_is_cut_into_one_row_a_head() -> None:
    first, second = Storage(heads=2, transposed=False).bias_by_head("q", torch.arange(6))
    assert first.tolist() == [[0, 1, 2]] and second.tolist() == [[3, 4, 5]]


def test_heads_with_some_biases_only() -> None:
    """One bias is enough for a row of zeros in the others; the layer's output is that of the formula."""
    weights = {name: randn(4, 4, seed=k) for k, name in enumerate("qkvo")}
    bias = randn(4, seed=9)
    layer, biased = heads_of(Storage(2, transposed=False), weights, {"q": bias, "k": None, "v": None})
    assert biased == {"q"}
    X = randn(2, LENGTH, 4, seed=7)
    q, k, v = X @ weights["q"] + bias, X @ weights["k"], X @ weights["v"]
    heads = [
        (q[..., h] @ k[..., h].transpose(-1, -2) / 2**0.5).softmax(-1) @ v[..., h] @ weights["o"][h]
        for h in (slice(0, 2), slice(2, 4))
    ]
    assert_same(layer(with_ones(X)), sum(heads), "heads")


# --- the copy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_copy_has_the_weights_of_the_problem_and_shares_nothing_with_the_model(dtype: torch.dtype) -> None:
    model = hugging_face.gpt2()
    problem = hl.problem(model, {"input_ids": tokens()}, dtype=dtype)
    copied = frozen_copy(problem)
    assert not copied.training and model.training
    assert not any(p.requires_grad for p in copied.parameters()) and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(p, problem.params[name]) and p.dtype == dtype for name, p in copied.named_parameters())
    assert copied.lm_head.weight is copied.transformer.wte.weight
    assert copied.config is not model.config and model.dtype == DOUBLE


def test_a_problem_without_a_model_has_no_copy() -> None:
    weight = randn(1)
    assert frozen_copy(Problem(lambda w, b: b, lambda o, b: o, {"w": weight}, {}, [weight])) is None


# --- where there is no site ------------------------------------------------------------------------------------------


def _pooled(out: Tensor, batch: object) -> Tensor:
    return out.mean(1).pow(2).sum()


def _padded_alone(out: Tensor, batch: object) -> Tensor:
    return out[:, :1].pow(3).sum()


ABSENT: dict[str, Callable[[], Problem]] = {
    "MLP": lambda: hl.problem(networks.mlp(), pairs(4, classes=3, length=None), "cross_entropy"),
    "BERT": lambda: hl.problem(hugging_face.masked_bert(), hugging_face.padded(2)),
    "one query-key matrix": lambda: hl.problem(networks.toy(query_key="single"), pairs(2), "cross_entropy"),
    "loss of the mean over positions": lambda: hl.problem(networks.toy(), {"tokens": tokens()}, _pooled),
}


@pytest.mark.parametrize("name", ABSENT)
def test_no_site(name: str) -> None:
    assert site_of(ABSENT[name]())[0] is None


def test_a_loss_of_one_position_is_a_loss_of_each_position_alone() -> None:
    problem = hl.problem(networks.toy(), {"tokens": tokens()}, _padded_alone)
    site, _ = site_of(problem)
    assert site is not None and site.behind(site.layer(site.tokens)).shape == (2, LENGTH, VOCAB)


@pytest.mark.parametrize("reach", [1, 2, 3])
def test_every_pair_of_positions_is_looked_at(reach: int) -> None:
    """A loss that couples position 0 with a single other one, of one sequence only, is found out."""

    def loss(out: Tensor, batch: object) -> Tensor:
        return out.pow(2).mean() + (out[1, 0] * out[1, reach]).sum()

    assert site_of(hl.problem(networks.toy(), {"tokens": tokens()}, loss))[0] is None
