"""Models behind names: the class and sizes they have, the head that is chosen, the error for what cannot be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers

import hessianlens as hl
from hessianlens.inspect.loading import load_model
from tests.inspect.saved_models import BERT, GPT2, LLAMA, T5, VIT, saved

HEADS = {
    GPT2: ("causal-lm", "GPT2LMHeadModel"),
    BERT: ("masked-lm", "BertForMaskedLM"),
    LLAMA: ("causal-lm", "LlamaForCausalLM"),
    T5: ("seq2seq-lm", "T5ForConditionalGeneration"),
    VIT: ("image-classification", "ViTForImageClassification"),
}


@pytest.mark.parametrize("name", HEADS, ids=lambda name: name[7:12])
def test_configurations(name: str) -> None:
    loaded = load_model(name)
    assert (loaded.head, type(loaded.model).__name__) == HEADS[name]
    assert loaded.parameters == sum(p.numel() for p in loaded.model.parameters()) < 5000
    assert loaded.described == f"{HEADS[name][1]}, random weights"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("causal-lm", "BertLMHeadModel"),
        ("sequence-classification", "BertForSequenceClassification"),
        ("encoder", "BertModel"),
    ],
)
def test_a_head_that_is_asked_for(head: str, kind: str) -> None:
    assert type(load_model(BERT, head=head).model).__name__ == kind


def test_sizes_that_follow_from_others_are_computed_anew() -> None:
    config = load_model(LLAMA).config
    assert (config.head_dim, config.num_key_value_heads) == (4, 2)


def test_random_weights_follow_the_seed_and_use_up_no_random_numbers() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    one, same, other = (load_model(GPT2, seed=seed).model.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    name = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(one[name], same[name]) and not torch.equal(one[name], other[name])


def test_a_saved_model_keeps_its_head_and_weights(tmp_path: Path) -> None:
    made = load_model(BERT, head="sequence-classification", seed=3).model
    loaded = load_model(saved(tmp_path, made))
    assert loaded.head == "sequence-classification"
    assert all(torch.equal(value, made.state_dict()[key]) for key, value in loaded.model.state_dict().items())
    assert loaded.tokenizer().mask_token_id == 2 and loaded.has_tokenizer
    verbosity = transformers.logging.get_verbosity()
    load_model(str(tmp_path))
    assert transformers.logging.get_verbosity() == verbosity


def test_the_architecture_of_a_configuration_file_decides(tmp_path: Path) -> None:
    stated = {**load_model(BERT).config.to_dict(), "architectures": ["BertModel"]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert load_model(str(tmp_path / "config.json")).head == "encoder"
    changed = load_model(f"config:{tmp_path / 'config.json'}?hidden_size=4")
    assert changed.config.hidden_size == 4 and changed.head == "encoder"
    (tmp_path / "config.json").write_text(json.dumps({**stated, "architectures": ["BertForQuestionAnswering"]}))
    with pytest.raises(hl.InputError, match=r"BertForQuestionAnswering predicts something .* --head causal-lm"):
        load_model(str(tmp_path / "config.json"))


def test_a_toy_and_its_task() -> None:
    loaded = load_model("toy:layers=2,d_model=8,heads=2,digits=2,norm=pre", seed=4, dtype=torch.float64)
    assert isinstance(loaded.model, hl.models.Transformer) and loaded.task == hl.tasks.Addition(2)
    same = hl.models.Transformer(2, 8, 2, context=9, norm="pre", seed=4, dtype=torch.float64)
    assert all(torch.equal(p, q) for p, q in zip(loaded.model.parameters(), same.parameters(), strict=True))


BAD = {
    "toy:layer=2": "toy has no option 'layer'; did you mean layers",
    "toy:layers=0": "layers: got 0",
    "toy:context=5": "model: got context=5, expected at least 18",
    "config:gpt2?n_layers=2": "GPT2Config has no option 'n_layers'; did you mean n_layer",
    "config:gpt": "transformers knows no type of model 'gpt'; did you mean",
    "config:gpt2?n_embd=15&n_head=2": "config 'gpt2' could not be loaded: .*divisible",
    "/nosuch/folder": "got '/nosuch/folder', but there is no such folder",
    "nosuch.json": "got 'nosuch.json', but there is no such file",
}


@pytest.mark.parametrize("head", ["encoder", "causal-lm", "masked-lm"])
def test_an_encoder_with_a_decoder_predicts_labels(head: str) -> None:
    with pytest.raises(hl.InputError, match=f"head: got '{head}', but t5 has an encoder and a decoder, which predicts"):
        load_model(T5, head=head)
    assert type(load_model(T5, head="sequence-classification").model).__name__ == "T5ForSequenceClassification"


def test_an_encoder_with_a_decoder_and_no_head(tmp_path: Path) -> None:
    stated = {**load_model(T5).config.to_dict(), "architectures": ["T5Model"]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(hl.InputError, match=r"T5Model has an encoder and a decoder and no head.* --head seq2seq-lm"):
        load_model(str(tmp_path / "config.json"))


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_loaded(name: str) -> None:
    with pytest.raises(hl.InputError, match=BAD[name]):
        load_model(name)


def test_a_folder_that_holds_no_model(tmp_path: Path) -> None:
    with pytest.raises(hl.InputError, match="could not be loaded"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(hl.InputError, match="is not JSON"):
        load_model(str(tmp_path / "config.json"))


def test_without_transformers_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(hl.InputError, match=r"need the package transformers.*pip install 'hessianlens\[hf\]'"):
        load_model("config:gpt2")
    assert load_model("toy:d_model=4").head == "toy"


def test_random_weights_have_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(hl.InputError, match="GPT2LMHeadModel has random weights and none"):
        load_model(GPT2).tokenizer()
    bare = load_model(saved(tmp_path, load_model(GPT2).model, with_tokenizer=False))
    assert not bare.has_tokenizer
    with pytest.raises(hl.InputError, match="text needs a tokenizer, and there is none in"):
        bare.tokenizer()
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(hl.InputError, match="text needs a tokenizer, and that of"):
        bare.tokenizer()
