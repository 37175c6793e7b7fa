"""Models that compare their outputs with labels in ways of their own; those whose way is not known are told so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.models.adapters.task_heads import head_kind, no_own_loss
from tests.curvature import hugging_face, networks
from tests.curvature.agreement import same_operator
from tests.curvature.networks import LENGTH, VOCAB, scrambled, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

MADE = "the decoder's inputs are made from the labels, as the model itself makes them"


def bert(head: str, **options: Any) -> nn.Module:
    return scrambled(getattr(transformers, f"BertFor{head}")(hugging_face.bert_config(**options)).to(DOUBLE))


def whisper() -> nn.Module:
    """Has no function of its own for what goes into the decoder."""
    options = {"num_mel_bins": 2, "max_source_positions": 3, "max_target_positions": 8}
    return hugging_face.bart("Whisper", vocab_size=8, **options)


# --- encoder-decoders ------------------------------------------------------------------------------------------------

_SOUND = {"input_features": randn(2, 2, 6), "labels": tokens(2, 3)}
DECODERS: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor]]] = {
    "T5": (hugging_face.t5, hugging_face.sentences()),
    "mT5-like, gated": (lambda: hugging_face.t5(feed_forward_proj="gated-gelu"), hugging_face.sentences()),
    "BART": (hugging_face.bart, hugging_face.sentences()),
    "mBART": (lambda: hugging_face.bart("MBart", decoder_start_token_id=None), hugging_face.sentences()),
    "Marian": (
        lambda: hugging_face.bart("Marian", "MTModel", decoder_vocab_size=VOCAB),
        hugging_face.sentences(),
    ),
    "Whisper": (whisper, _SOUND),
}


@pytest.mark.parametrize("loss", [None, "model", "cross_entropy", nn.CrossEntropyLoss()])
@pytest.mark.parametrize("name", DECODERS)
def test_the_own_loss_of_an_encoder_decoder(name: str, loss: Any) -> None:
    make, batch = DECODERS[name]
    model = make()
    problem = hl.problem(model, batch, loss)
    own = float(model.eval()(**batch).loss.detach())
    counted = int((batch["labels"] != -100).sum())
    assert float(problem.total_loss()) == pytest.approx(own, rel=1e-6)
    assert f"mean over {counted} targets" in problem.reduction and "next-token" not in problem.reduction
    assert problem.notes.count(MADE) == 1


def test_several_batches_are_one_mean_over_all_labels() -> None:
    model, batches = hugging_face.t5(), [hugging_face.sentences(2), hugging_face.sentences(1, seed=3)]
    counts = [int((b["labels"] != -100).sum()) for b in batches]
    own = [float(model.eval()(**b).loss.detach()) for b in batches]
    expected = sum(c * value for c, value in zip(counts, own, strict=True)) / sum(counts)
    for data in (batches, [{k: v[i : i + 1] for k, v in b.items()} for b in batches for i in range(len(b["labels"]))]):
        assert float(hl.problem(model, data).total_loss()) == pytest.approx(expected, rel=1e-6)
    assert float(hl.problem(model, batches, micro_batch=1).total_loss()) == pytest.approx(expected, rel=1e-6)


def test_pairs_and_dictionaries_are_the_same_data() -> None:
    model, batch = hugging_face.t5(), {**hugging_face.sentences()}
    del batch["attention_mask"]
    named = hl.problem(model, batch)
    for pair in ((batch["input_ids"], batch["labels"]), ({"input_ids": batch["input_ids"]}, batch["labels"])):
        same_operator(hl.problem(model, pair), named, ["encoder.layer0.attn.q", "decoder.layer0.cross.v"], 1e-10)


def test_decoder_inputs_that_are_given_are_kept() -> None:
    model, batch = hugging_face.t5(), {**hugging_face.sentences(), "decoder_input_ids": tokens(2, 3, seed=9)}
    problem = hl.problem(model, batch)
    assert MADE not in problem.notes
    own = float(model.eval()(**batch).loss.detach())
    assert float(problem.total_loss()) == pytest.approx(own, rel=1e-6)
    assert own != pytest.approx(float(model(**hugging_face.sentences()).loss.detach()), rel=1e-3)


def test_the_data_of_the_user_is_left_alone() -> None:
    batch = hugging_face.sentences()
    hl.problem(hugging_face.t5(), batch)
    assert list(batch) == ["input_ids", "attention_mask", "labels"]


def test_a_classifier_with_a_decoder_is_a_classifier() -> None:
    model = hugging_face.bart("Bart", "ForSequenceClassification", num_labels=3)
    ids = torch.tensor([[0, 3, 4, 2], [3, 3, 4, 2]])  # each ends in the token that it reads the answer from
    batch = {"input_ids": ids, "labels": torch.tensor([2, 0])}
    problem = hl.problem(model, batch)
    assert float(problem.total_loss()) == pytest.approx(float(model.eval()(**batch).loss.detach()), rel=1e-6)
    assert MADE not in problem.notes


# --- other heads -----------------------------------------------------------------------------------------------------

_ENDS = {"start_positions": torch.tensor([0, 2, 1]), "end_positions": torch.tensor([1, 3, 1])}
HEADS: dict[str, tuple[Callable[[], nn.Module], dict[str, Tensor], str]] = {
    "question answering": (
        lambda: bert("QuestionAnswering"),
        {"input_ids": tokens(3), **_ENDS},
        "cross_entropy, mean over 6 targets",
    ),
    "multiple choice": (
        lambda: bert("MultipleChoice"),
        {"input_ids": tokens(6).reshape(2, 3, LENGTH), "labels": torch.tensor([2, 0])},
        "cross_entropy, mean over 2 targets",
    ),
    "next sentence": (
        lambda: bert("NextSentencePrediction"),
        {"input_ids": tokens(3), "labels": torch.tensor([1, 0, 1])},
        "cross_entropy, mean over 3 targets",
    ),
}


@pytest.mark.parametrize("name", HEADS)
def test_their_own_losses(name: str) -> None:
    make, batch, words = HEADS[name]
    model = make()
    problem = hl.problem(model, batch)
    own = model.eval()(**batch).loss.detach()
    assert_same(problem.total_loss(), own, name, 1e-9)
    assert problem.reduction == words


def test_outputs_of_question_answering_are_starts_and_ends() -> None:
    model, batch = bert("QuestionAnswering"), {"input_ids": tokens(3), **_ENDS}
    problem = hl.problem(model, batch, lambda out, batch: nnf.cross_entropy(out[:, 0], batch["start_positions"]))
    expected = nnf.cross_entropy(model.eval()(tokens(3)).start_logits, _ENDS["start_positions"]).detach()
    assert_same(problem.total_loss(), expected, "starts alone")


def test_a_class_made_from_a_known_one_is_known() -> None:
    class Mine(transformers.GPT2LMHeadModel):
        pass

    config = hugging_face.gpt2().config
    assert hl.problem(scrambled(Mine(config).to(DOUBLE)), {"input_ids": tokens()}).reduction.startswith("next-token")


def test_a_head_whose_own_loss_is_another_is_not_taken_for_a_known_one() -> None:
    class Weighted(transformers.BertForTokenClassification):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            found = super().forward(*args, **kwargs)
            if found.loss is not None:
                found.loss = 2 * found.loss
            return found

    model = scrambled(Weighted(hugging_face.bert_config(num_labels=VOCAB)).to(DOUBLE))
    batch = {"input_ids": tokens(3), "labels": tokens(3, seed=4)}
    with pytest.raises(hl.InputError, match=r"loss: Weighted's own is .* expected .* give its loss as a function"):
        hl.problem(model, batch)
    hl.problem(model, batch, "cross_entropy")


class Known(nn.Module):
    """A model with a configuration, as Hugging Face has them, under another class name."""

    config = transformers.PretrainedConfig()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def called(name: str) -> nn.Module:
    return type(name, (Known,), {})()


_X, _IDS = randn(2, 3), {"input_ids": tokens()}
_NO_LABELS = {key: value for key, value in hugging_face.sentences().items() if key != "labels"}
REASONS: dict[str, Callable[[], object]] = {
    "T5ForConditionalGeneration's own loss compares its outputs with labels, and the data has none; give a dict with "
    "'labels'": lambda: hl.problem(hugging_face.t5(), _NO_LABELS),
    "BertForQuestionAnswering's own loss compares .* 'start_positions' and 'end_positions'": lambda: hl.problem(
        bert("QuestionAnswering"), _IDS
    ),
    "BertModel has no head and so no loss of its own, and the data has no targets; load it with a head": lambda: (
        hl.problem(scrambled(transformers.BertModel(hugging_face.bert_config()).to(DOUBLE)), _IDS)
    ),
    r"Wav2Vec2ForCTC has a loss over alignments \(CTC\)": lambda: hl.problem(called("Wav2Vec2ForCTC"), _X),
    "CLIPModel compares the images and texts of a batch with each other": lambda: hl.problem(called("CLIPModel"), _X),
    "Unheard is not among the classes whose own loss is known here; give": lambda: hl.problem(
        called("Unheard"), (_X, _X)
    ),
}


@pytest.mark.parametrize("message", REASONS)
def test_the_true_reason_is_given(message: str) -> None:
    with pytest.raises(hl.InputError, match=f"^loss: {message}"):
        REASONS[message]()


KINDS = {
    "BertGenerationDecoder": "causal",
    "ReformerModelWithLMHead": "causal",
    "XLNetForQuestionAnsweringSimple": "span",
    "FlaubertWithLMHeadModel": "classes",  # its labels are not moved on
}


@pytest.mark.parametrize("name", KINDS)
def test_heads_with_names_of_their_own(name: str) -> None:
    assert head_kind(called(name), torch.zeros(2, dtype=torch.long)) == KINDS[name]


def test_a_head_under_an_unknown_name_is_not_said_to_be_missing() -> None:
    class BertReward(transformers.BertPreTrainedModel):
        pass

    reason = no_own_loss(BertReward(hugging_face.bert_config()), None, targets=None)
    assert "has no head" not in reason and "BertReward is not among the classes whose own loss is known" in reason


def test_without_a_start_token_nothing_can_be_made_from_labels() -> None:
    model, batch = hugging_face.t5(decoder_start_token_id=None), hugging_face.sentences()
    with pytest.raises(
        hl.InputError, match=r"model: T5For.* cannot make decoder_input_ids .* set decoder_start_token_id"
    ):
        hl.problem(model, batch)
    hl.problem(model, {**batch, "decoder_input_ids": tokens(2, LENGTH - 1)})


def test_a_plain_module_that_is_not_told_its_loss() -> None:
    with pytest.raises(hl.InputError, match="Sequential is a plain module, which has no loss of its own; give loss="):
        hl.problem(networks.mlp(), (randn(2, 3), torch.tensor([0, 1])))
