"""The losses of `hessianlens.problem`: what they are, what they are divided by, and that they say so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as nnf

import hessianlens as hl
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, pairs, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

SIZES = (3, 1, 2)


def outputs_and_targets(model, batches) -> tuple[Tensor, Tensor]:
    model.eval()
    return torch.cat([model(x).detach() for x, _ in batches]), torch.cat([y for _, y in batches])


# --- by name, over batches of different sizes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reduction, divisor, words",
    [
        ("mean", 6 * LENGTH - 3, "cross_entropy, mean over 21 targets"),
        ("sequence", 6, "cross_entropy, summed within a sequence, mean over 6 sequences"),
        ("sum", 1, "cross_entropy, summed over everything"),
    ],
)
def test_cross_entropy(reduction: str, divisor: int, words: str) -> None:
    model, batches = networks.toy(), pairs(*SIZES)
    problem = hl.problem(model, batches, "cross_entropy", reduction=reduction)
    outputs, targets = outputs_and_targets(model, batches)
    expected = nnf.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum") / divisor
    assert_same(problem.total_loss(), expected, reduction)
    assert problem.reduction == words


@pytest.mark.parametrize(
    "reduction, divisor, words",
    [("mean", 18, "mean over all 18 entries"), ("sequence", 6, "mean over 6 sequences"), ("sum", 1, "summed over")],
)
@pytest.mark.parametrize("loss", ["square", "bce"])
def test_square_and_binary_cross_entropy(loss: str, reduction: str, divisor: int, words: str) -> None:
    model = networks.mlp()
    batches = [(randn(n, 3, seed=n), (randn(n, 3, seed=9 + n) > 0).double()) for n in SIZES]
    problem = hl.problem(model, batches, loss, reduction=reduction)
    outputs, targets = outputs_and_targets(model, batches)
    by_hand = {"square": nnf.mse_loss, "bce": nnf.binary_cross_entropy_with_logits}[loss]
    assert_same(problem.total_loss(), by_hand(outputs, targets, reduction="sum") / divisor, reduction)
    assert problem.reduction.startswith(loss) and words in problem.reduction


def test_a_target_for_each_sequence_of_one_output() -> None:
    """Outputs (B, 1) and targets (B,) belong together; they are not broadcast to (B, B)."""
    model = scrambled(torch.nn.Linear(3, 1).to(DOUBLE))
    x, y = randn(4, 3), randn(4, seed=1)
    assert_same(hl.problem(model, (x, y), "square").total_loss(), (model(x)[:, 0] - y).square().mean().detach())


def test_integer_targets_of_the_square_loss_are_numbers() -> None:
    model, x, y = networks.mlp().eval(), randn(2, 3), torch.tensor([[0, 1, 0], [1, 0, 2]])
    assert_same(hl.problem(model, (x, y), "square").total_loss(), (model(x) - y).square().mean().detach())


def test_a_batch_without_a_single_target_counts_for_nothing() -> None:
    model, (one, other) = networks.toy(), pairs(2, 1)
    silent = (other[0], torch.full_like(other[1], -100))
    both, alone = (hl.problem(model, data, "cross_entropy") for data in ([one, silent], [one]))
    assert both.reduction == alone.reduction
    assert_same(both.total_loss(), alone.total_loss())
    q = hl.hessian(both, "layer0.attn.q", method="hvp")
    assert_same(q @ randn(16), hl.hessian(alone, "layer0.attn.q", method="hvp") @ randn(16))


# --- a user's function -----------------------------------------------------------------------------------------------


def test_a_function_of_outputs_and_batch() -> None:
    model, batches = networks.mlp(), [(randn(n, 3, seed=n), None) for n in SIZES]

    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return outputs.pow(4).sum().reshape(1)

    values = torch.stack([loss(model.eval()(x).detach(), None)[0] for x, _ in batches])
    mean = hl.problem(model, batches, loss)
    assert_same(mean.total_loss(), (values * torch.tensor(SIZES)).sum() / 6)
    assert mean.reduction == "the given function, mean over batches by size"
    total = hl.problem(model, batches, loss, reduction="sum")
    assert_same(total.total_loss(), values.sum())
    assert total.reduction == "the given function, summed over batches"


def test_the_function_sees_the_batch_it_was_given() -> None:
    task = hl.tasks.Addition(digits=1)
    model, batch = networks.toy(vocab=task.vocab, context=task.context), task.batch(3, seed=0)
    problem = hl.problem(model, batch, task.cross_entropy)
    assert_same(problem.total_loss(), task.cross_entropy(model.eval()(batch["tokens"]), batch).detach())


# --- the model's own -------------------------------------------------------------------------------------------------


def _bert(kind: str, **options) -> torch.nn.Module:
    config = hugging_face.bert_config(**options)
    return scrambled(getattr(transformers, kind)(config).to(DOUBLE))


_IDS, _LABELS = tokens(3), tokens(3, seed=4)
OWN = {
    "GPT-2": (hugging_face.gpt2, hugging_face.padded(3), "next-token cross_entropy, mean over 8 targets"),
    "Llama": (hugging_face.llama, hugging_face.padded(3), "next-token cross_entropy"),
    "BertLMHeadModel": (lambda: _bert("BertLMHeadModel", is_decoder=True), hugging_face.padded(3), "next-token"),
    "BertForMaskedLM": (hugging_face.masked_bert, hugging_face.padded(3), "cross_entropy, mean over 11 targets"),
    "BertForTokenClassification": (
        lambda: _bert("BertForTokenClassification", num_labels=VOCAB),
        {"input_ids": _IDS, "labels": _LABELS},
        "cross_entropy, mean over 12 targets",
    ),
    "classes": (
        hugging_face.classifying_bert,
        {"input_ids": _IDS, "labels": torch.tensor([2, 0, 1])},
        "cross_entropy, mean over 3 targets",
    ),
    "one number": (
        lambda: hugging_face.classifying_bert(num_labels=1),
        {"input_ids": _IDS, "labels": randn(3)},
        "square, mean over all 3 entries",
    ),
    "several numbers": (
        lambda: hugging_face.classifying_bert(problem_type="regression"),
        {"input_ids": _IDS, "labels": randn(3, 3)},
        "square, mean over all 9 entries",
    ),
    "several labels": (
        hugging_face.classifying_bert,
        {"input_ids": _IDS, "labels": (randn(3, 3) > 0).double()},
        "bce, mean over all 9 entries",
    ),
    "several labels, stated": (
        lambda: hugging_face.classifying_bert(problem_type="multi_label_classification"),
        {"input_ids": _IDS, "labels": (randn(3, 3) > 0).double()},
        "bce, mean over all 9 entries",
    ),
    "ViT": (
        hugging_face.vit,
        {"pixel_values": hugging_face.images(3), "labels": torch.tensor([2, 0, 1])},
        "cross_entropy, mean over 3 targets",
    ),
}


@pytest.mark.parametrize("loss", [None, "model"])
@pytest.mark.parametrize("name", OWN)
def test_the_models_own_loss(name: str, loss: str | None) -> None:
    make, batch, words = OWN[name]
    model = make()
    problem = hl.problem(model, batch, loss)
    own = float(model.eval()(**batch).loss.detach())  # language models round their logits to float32 for it
    assert float(problem.total_loss()) == pytest.approx(own, rel=1e-6)
    assert problem.reduction.startswith(words)


def test_the_own_loss_of_several_batches_is_one_mean_over_all_targets() -> None:
    """Not the mean of the batches' means, which weighs targets of short sequences more."""
    model, batches = hugging_face.gpt2(), [hugging_face.padded(3), hugging_face.padded(1, 3, seed=8)]
    problem = hl.problem(model, batches)
    counts = [int((b["labels"][:, 1:] != -100).sum()) for b in batches]
    own = [float(model.eval()(**b).loss.detach()) for b in batches]
    expected = sum(c * value for c, value in zip(counts, own, strict=True)) / sum(counts)
    assert counts[0] != counts[1]
    assert float(problem.total_loss()) == pytest.approx(expected, rel=1e-6)


def test_a_causal_model_without_labels_predicts_its_own_tokens() -> None:
    """Padding, by the attention mask, is neither predicted nor counted."""
    model, batch = hugging_face.gpt2(), hugging_face.padded(3)
    masked = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    explicit = hl.problem(model, {**batch, "labels": masked})
    del batch["labels"]
    implied = hl.problem(model, batch)
    assert implied.reduction == explicit.reduction == "next-token cross_entropy, mean over 9 targets"
    assert_same(implied.total_loss(), explicit.total_loss())
    bare = hl.problem(model, tokens())
    own = model.eval()(tokens(), labels=tokens()).loss.detach()
    assert float(bare.total_loss()) == pytest.approx(float(own), rel=1e-6)


def test_a_causal_model_whose_own_loss_is_another_is_not_taken_for_one() -> None:
    """BART's decoder compares a position with the label at that position, not with the next."""
    sizes = {"d_model": WIDTH, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 3}
    config = transformers.BartConfig(vocab_size=VOCAB, max_position_embeddings=8, pad_token_id=0, **sizes)
    model = scrambled(transformers.BartForCausalLM(config).to(DOUBLE))
    batch = {"input_ids": tokens(), "labels": tokens()}
    with pytest.raises(hl.InputError, match=r"loss: BartForCausalLM's own is .* expected .* next-token"):
        hl.problem(model, batch)

    def aligned(outputs: Tensor, batch: Any) -> Tensor:
        return nnf.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten())

    problem = hl.problem(model, batch, aligned)
    assert float(problem.total_loss()) == pytest.approx(float(model.eval()(**batch).loss.detach()), rel=1e-6)
