"""`hessianlens.problem`: what it checks, what it notes, and the error for everything that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, WIDTH, pairs, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

X, Y = randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])


class Noisy(nn.Module):
    """Draws random numbers in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = networks.mlp()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs + 0.01 * torch.rand_like(inputs))


class Undefined(Noisy):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.inner(inputs) / 0


# --- checks ----------------------------------------------------------------------------------------------------------


FIRST_NUMBERS: dict[str, Callable[[hl.Problem], object]] = {
    "loss": lambda problem: problem.total_loss(),
    "HVP": lambda problem: (
        hl.hessian(problem, "*", method="hvp") @ randn(sum(b.numel for b in problem.blocks.values()))
    ),
    "GGN-vector product": lambda problem: hl.ggn(problem, "inner.0.weight", method="hvp") @ randn(12),
    "closed form": lambda problem: hl.hessian(problem, "inner.0.weight", method="exact").to_dense(),
    "trace": lambda problem: hl.trace(hl.hessian(problem, "inner.0.weight"), probes=4),
    "norms": lambda problem: hl.block_norms(problem, "inner.0.weight", probes=2, method="probes"),
    "exact norms": lambda problem: hl.block_norms(problem, "inner.0.weight", method="exact"),
}
"""The first number that somebody asks for, in whatever way."""


@pytest.mark.every_case
@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("asked", FIRST_NUMBERS)
def test_a_model_that_draws_random_numbers_is_refused_with_the_first_number(asked: str, verify: bool) -> None:
    problem = hl.problem(Noisy(), (X, Y), "cross_entropy", verify=verify)
    for _ in range(2):
        with pytest.raises(hl.InputError, match=r"model: two runs on the same batch differ by up to .* random numbers"):
            FIRST_NUMBERS[asked](problem)
    assert hl.problem(Noisy(), (X, Y), "cross_entropy", check=False).data


def test_heads_of_a_model_that_draws_random_numbers_are_not_measured() -> None:
    model = networks.toy()
    model.register_forward_hook(lambda _, args, outputs: outputs + 0.01 * torch.rand_like(outputs))
    with pytest.raises(hl.InputError, match="two runs on the same batch differ"):
        hl.attention_health(hl.problem(model, pairs(2), "cross_entropy"))


def test_dropout_and_batch_norm_are_no_randomness() -> None:
    """Both are off in evaluation mode, and the running statistics are not moved by looking."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3)).to(DOUBLE).train()
    before = {name: b.clone() for name, b in model.named_buffers()}
    problem = hl.problem(model, (X, Y), "cross_entropy")
    op = hl.hessian(problem, "0.weight")
    assert_same(op @ randn(12), op @ randn(12), "twice", 0)
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    assert model.training and model[2].training


def test_random_numbers_outside_are_not_used_up() -> None:
    model = networks.mlp()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    problem = hl.problem(model, (X, Y), "cross_entropy")
    hl.block_norms(problem, "0.weight", probes=3)
    assert torch.equal(torch.rand(3), expected)


def test_outputs_and_losses_must_be_finite() -> None:
    with pytest.raises(hl.InputError, match="model: its outputs on the first batch are not finite"):
        hl.problem(Undefined(), (X, Y), "cross_entropy")
    with pytest.raises(hl.InputError, match=r"model: its outputs .* not finite; look for NaN or infinity in the data"):
        hl.problem(networks.mlp(), (X * torch.nan, Y), "cross_entropy")
    with pytest.raises(hl.InputError, match="loss: got inf on the first batch, expected a finite number"):
        hl.problem(networks.mlp(), (X, Y), lambda out, batch: out.sum() * torch.inf / out.sum())


# --- notes -----------------------------------------------------------------------------------------------------------

FUSED = "fused attention has no second derivative: the plain kernel is used while differentiating"
FLOAT32 = "the model casts some steps to float32: they run in float64 while differentiating"
NOTES: dict[str, tuple[Callable[[], nn.Module], Any, list[str]]] = {
    "GPT-2": (
        hugging_face.gpt2,
        {"input_ids": tokens()},
        ["embed and unembed are one tensor (transformer.wte.weight): its block is embed.", FUSED],
    ),
    "Llama": (hugging_face.llama, {"input_ids": tokens()}, [FUSED, FLOAT32]),
    "nn.TransformerEncoder": (networks.torch_encoder, (randn(2, LENGTH, WIDTH), randn(2, LENGTH, WIDTH)), [FUSED]),
    "toy": (networks.toy, pairs(2)[0], []),
    "MLP": (networks.mlp, (X, Y), ["Sequential is not an architecture known here"]),
}


@pytest.mark.parametrize("name", NOTES)
def test_decisions_are_noted(name: str) -> None:
    make, data, expected = NOTES[name]
    losses = {"nn.TransformerEncoder": "square", "toy": "cross_entropy", "MLP": "cross_entropy"}
    problem = hl.problem(make(), data, losses.get(name))
    assert len(problem.notes) == len(expected)
    for note, words in zip(problem.notes, expected, strict=True):
        assert words in note


def test_eager_attention_needs_no_note() -> None:
    model = hugging_face.gpt2()
    model.set_attn_implementation("eager")
    assert FUSED not in hl.problem(model, {"input_ids": tokens()}).notes


def test_a_tied_weight_is_one_block_with_the_curvature_of_both_uses() -> None:
    problem = hl.problem(hugging_face.gpt2(), {"input_ids": tokens()})
    assert "unembed" not in problem.blocks and "unembed" in problem.blocks["embed"].note
    untied = hugging_face.gpt2(tie_word_embeddings=False)
    untied.lm_head.weight.data.copy_(untied.transformer.wte.weight.data)
    source = dict(problem.source.named_parameters())
    for name, parameter in untied.named_parameters():
        parameter.data.copy_(source.get(name, source["transformer.wte.weight"]).data)
    apart = hl.problem(untied, {"input_ids": tokens()})
    v = randn(20)
    blocks = [hl.hessian(apart, r, c, method="hvp") @ v for r in ("embed", "unembed") for c in ("embed", "unembed")]
    assert_same(hl.hessian(problem, "embed", method="hvp") @ v, sum(blocks), "tied", 1e-9)


def test_heads_are_named_on_request() -> None:
    model = networks.toy(heads=2)
    plain, by_head = (hl.problem(model, pairs(2), "cross_entropy", heads=heads) for heads in (False, True))
    assert "layer0.attn.q.head1" in by_head.blocks and "layer0.attn.q.head1" not in plain.blocks
    assert by_head.blocks["layer0.attn.q.head1"].shape == (WIDTH, WIDTH // 2)
    assert set(plain.blocks) < set(by_head.blocks)


# --- errors ----------------------------------------------------------------------------------------------------------


class Empty(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


_IDS = {"input_ids": tokens()}
BAD: dict[str, Callable[[], object]] = {
    r"model: got str, expected a torch nn\.Module": lambda: hl.problem("gpt2", (X, Y), "cross_entropy"),
    "model: Empty has no parameters": lambda: hl.problem(Empty(), (X, Y), "cross_entropy"),
    r"loss: got 'hinge', expected one of 'cross_entropy', 'square', 'bce', 'model'": lambda: hl.problem(
        networks.mlp(), (X, Y), "hinge"
    ),
    "loss: got 3, expected one of": lambda: hl.problem(networks.mlp(), (X, Y), 3),
    "loss: Sequential is a plain module, which has no loss of its own; give": lambda: hl.problem(
        networks.mlp(), (X, Y)
    ),
    "loss: Sequential is a plain module, which": lambda: hl.problem(networks.mlp(), (X, Y), "model"),
    "loss: Sequential is a plain module.* and the data has no targets": lambda: hl.problem(networks.mlp(), X),
    "loss: BertForMaskedLM's own loss compares its outputs with labels, and the data has none": lambda: hl.problem(
        hugging_face.masked_bert(), _IDS
    ),
    r"loss: the function must return a scalar tensor, got shape \(6, 3\)": lambda: hl.problem(
        networks.mlp(), (X, Y), lambda out, batch: out
    ),
    "loss: the function must return a scalar tensor, got float": lambda: hl.problem(
        networks.mlp(), (X, Y), lambda out, batch: 1.0
    ),
    "reduction: got 'median', expected one of 'mean', 'sequence', 'sum'": lambda: hl.problem(
        networks.mlp(), (X, Y), "cross_entropy", reduction="median"
    ),
    "reduction: got 'sequence', expected one of 'mean', 'sum'": lambda: hl.problem(
        networks.mlp(), (X, Y), lambda out, batch: out.sum(), reduction="sequence"
    ),
    "data: no targets; give ": lambda: hl.problem(networks.mlp(), X, "cross_entropy"),
    r"data: no targets; give \(inputs, targets\) pairs or": lambda: hl.problem(networks.mlp(), X, "square"),
    r"targets: got shape \(5,\), expected \(6,\) for outputs \(6, 3\)": lambda: hl.problem(
        networks.mlp(), (X, Y[:5]), "cross_entropy"
    ),
    r"targets: got shape \(6,\), expected that of the outputs, \(6, 3\)": lambda: hl.problem(
        networks.mlp(), (X, Y), "square"
    ),
    r"targets: got shape \(3,\), expected that of the outputs, \(6, 3\)": lambda: hl.problem(
        networks.mlp(), (X, randn(3)), "bce"
    ),
    "targets: every target is -100, expected at least one": lambda: hl.problem(
        networks.mlp(), (X, torch.full((6,), -100)), "cross_entropy"
    ),
    r"dtype: got torch\.int64, expected torch\.float32 or torch\.float64": lambda: hl.problem(
        networks.mlp(), (X, Y), "cross_entropy", dtype=torch.int64
    ),
    "dtype: got 'float64', expected torch.float32 or torch.float64": lambda: hl.problem(
        networks.mlp(), (X, Y), "cross_entropy", dtype="float64"
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_used(message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        BAD[message]()


def test_a_model_in_training_mode_is_still_in_training_mode() -> None:
    for mode in (True, False):
        model = scrambled(nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to(DOUBLE)).train(mode)
        problem = hl.problem(model, (X, Y), "cross_entropy")
        assert [m.training for m in model.modules()] == [mode] * 3
        plain = nn.functional.cross_entropy(model.eval()(X), Y).detach()
        assert_same(problem.total_loss(), plain, "without dropout")
