"""Data for a model: what files hold, what is made up where they hold nothing, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.inspect.data import MASKED_SHARE, Data, prepare_data
from hessianlens.inspect.loading import LoadedModel, load_model
from tests.inspect.saved_models import BERT, GPT2, T5, VIT, saved

IDS = torch.randint(12, (3, 6), generator=torch.Generator().manual_seed(0))
TEXT = "the cat sat on the mat and the dog ran away and the cat sat"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(saved(tmp_path_factory.mktemp("gpt2"), load_model(GPT2).model))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(saved(tmp_path_factory.mktemp("bert"), load_model(BERT).model))


@pytest.fixture(scope="module")
def classifier() -> LoadedModel:
    return load_model(BERT, head="sequence-classification")


def lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    return path


def runs(loaded: LoadedModel, data: Data) -> hl.spectra.Estimate:
    problem = hl.problem(loaded.model, data.batches, data.loss, dtype=torch.float64)
    return hl.block_norms(problem, "layer0.attn.v", probes=2)["layer0.attn.v", "full"]


# --- files -----------------------------------------------------------------------------------------------------------

SAVED: dict[str, tuple[Callable[[], Any], list[dict[str, Tensor]]]] = {
    "a tensor": (lambda: IDS, [{"input_ids": IDS}]),
    "a dict": (lambda: {"input_ids": IDS, "labels": IDS}, [{"input_ids": IDS, "labels": IDS}]),
    "a pair": (lambda: (IDS, IDS), [{"input_ids": IDS, "labels": IDS}]),
    "a list": (lambda: [{"input_ids": IDS}, {"input_ids": IDS[:1]}], [{"input_ids": IDS}, {"input_ids": IDS[:1]}]),
}


def assert_batches(found: list[Any], expected: list[dict[str, Tensor]]) -> None:
    assert [set(batch) for batch in found] == [set(batch) for batch in expected]
    for batch, other in zip(found, expected, strict=True):
        assert all(torch.equal(batch[key], other[key]) for key in other)


@pytest.mark.parametrize("name", SAVED)
def test_saved_batches(name: str, gpt2: LoadedModel, tmp_path: Path) -> None:
    make, expected = SAVED[name]
    torch.save(make(), tmp_path / "batch.pt")
    data = prepare_data(gpt2, tmp_path / "batch.pt")
    assert_batches(data.batches, expected)
    assert not data.random and "batch.pt" in data.described
    assert runs(gpt2, data).value > 0


def test_arrays_of_token_ids(gpt2: LoadedModel, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", IDS.numpy().astype(np.uint16))
    assert_batches(prepare_data(gpt2, tmp_path / "rows.npy").batches, [{"input_ids": IDS}])
    assert_batches(prepare_data(gpt2, tmp_path / "rows.npy", length=4).batches, [{"input_ids": IDS[:, :4]}])
    np.save(tmp_path / "stream.npy", IDS.flatten().numpy())
    found = prepare_data(gpt2, tmp_path / "stream.npy", length=5).batches
    assert_batches(found, [{"input_ids": IDS.flatten()[:15].reshape(3, 5)}])


def test_pixels() -> None:
    vit = load_model(VIT)
    data = prepare_data(vit, sequences=3)
    assert data.batches[0]["pixel_values"].shape == (3, 1, 4, 4) and runs(vit, data).value > 0
    assert data.described == "RANDOM pixels, 3 images of 4x4, random labels"


def test_lines_are_padded_and_the_padding_is_hidden(gpt2: LoadedModel, tmp_path: Path) -> None:
    records = [{"input_ids": [1, 2, 3], "labels": [1, -100, 3]}, {"input_ids": [4, 5], "labels": [4, 5]}]
    (batch,) = prepare_data(gpt2, lines(tmp_path / "a.jsonl", records)).batches
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[1, -100, 3], [4, 5, -100]]


def test_lines_of_text_with_a_label(classifier: LoadedModel, bert: LoadedModel, tmp_path: Path) -> None:
    records = [{"text": "the cat sat", "label": 1}, {"text": "the dog ran away", "label": 0}]
    path = lines(tmp_path / "a.jsonl", records)
    loaded = LoadedModel(classifier.model, classifier.head, "", source=bert.source)
    data = prepare_data(loaded, path)
    assert data.batches[0]["input_ids"].tolist() == [[3, 4, 6, 0], [3, 5, 10, 11]]
    assert data.batches[0]["labels"].tolist() == [1, 0]
    assert runs(loaded, data).value > 0


def test_text_is_cut_into_sequences(gpt2: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    data = prepare_data(gpt2, tmp_path / "a.txt", length=4, sequences=2)
    assert data.batches[0]["input_ids"].tolist() == [[3, 4, 6, 7], [3, 8, 9, 3]]
    assert runs(gpt2, data).value > 0


def test_the_first_sequences_of_several_batches(gpt2: LoadedModel, tmp_path: Path) -> None:
    torch.save([IDS, IDS[:2]], tmp_path / "batch.pt")
    found = prepare_data(gpt2, tmp_path / "batch.pt", sequences=4).batches
    assert [len(batch["input_ids"]) for batch in found] == [3, 1]


# --- what is made up -------------------------------------------------------------------------------------------------


def test_random_token_ids_follow_the_seed(gpt2: LoadedModel) -> None:
    one, same, other = (prepare_data(gpt2, seed=seed, sequences=2, length=5) for seed in (1, 1, 2))
    assert one.random and one.described == "RANDOM token ids, 2 sequences of 5"
    assert torch.equal(one.batches[0]["input_ids"], same.batches[0]["input_ids"])
    assert not torch.equal(one.batches[0]["input_ids"], other.batches[0]["input_ids"])
    assert prepare_data(gpt2).batches[0]["input_ids"].shape == (8, 16)  # as long as the model's positions


def test_masked_tokens_are_hidden_and_predicted(bert: LoadedModel, tmp_path: Path) -> None:
    ids = torch.randint(3, 12, (40, 16), generator=torch.Generator().manual_seed(0))
    torch.save(ids, tmp_path / "batch.pt")
    data = prepare_data(bert, tmp_path / "batch.pt")
    (batch,) = data.batches
    chosen = batch["labels"] != -100
    assert chosen.any(1).all() and abs(float(chosen.double().mean()) - MASKED_SHARE) < 0.05
    assert torch.equal(batch["labels"][chosen], ids[chosen]) and (batch["input_ids"][chosen] == 2).all()
    assert torch.equal(batch["input_ids"][~chosen], ids[~chosen])
    assert "15% of the tokens are masked" in data.notes[0]
    assert torch.equal(prepare_data(bert, tmp_path / "batch.pt").batches[0]["labels"], batch["labels"])


def test_labels_of_a_file_are_kept(bert: LoadedModel, tmp_path: Path) -> None:
    torch.save({"input_ids": IDS, "labels": IDS}, tmp_path / "batch.pt")
    data = prepare_data(bert, tmp_path / "batch.pt")
    assert torch.equal(data.batches[0]["labels"], IDS) and not data.notes


def test_a_plain_encoder_gets_random_targets() -> None:
    encoder = load_model(BERT, head="encoder")
    data = prepare_data(encoder, sequences=2, length=5)
    assert data.loss == "square" and data.batches[0]["labels"].shape == (2, 5, 8)
    assert "a plain encoder has no loss" in data.notes[0] and runs(encoder, data).value > 0


def test_an_encoder_with_a_decoder_gets_random_labels(tmp_path: Path) -> None:
    model = load_model(T5)
    data = prepare_data(model, sequences=2, length=5)
    assert data.described == "RANDOM token ids, 2 sequences of 5, random labels" and data.made_up == "random labels"
    assert data.batches[0]["labels"].shape == (2, 5)
    records = [{"input_ids": [1, 2, 3], "labels": [4, 5]}, {"input_ids": [4, 5], "labels": [1]}]
    given = prepare_data(model, lines(tmp_path / "a.jsonl", records))
    assert given.batches[0]["labels"].tolist() == [[4, 5], [1, -100]] and given.made_up == ""
    problem = hl.problem(model.model, given.batches, given.loss, dtype=torch.float64)
    assert problem.reduction == "cross_entropy, mean over 3 targets"
    with pytest.raises(hl.InputError, match="data: an encoder with a decoder needs labels"):
        prepare_data(model, lines(tmp_path / "b.jsonl", [{"input_ids": [1, 2, 3]}]))


def test_a_toy_adds(tmp_path: Path) -> None:
    toy = load_model("toy:d_model=8,digits=1")
    batch = hl.tasks.Addition(1).batch(5, seed=3)
    data = prepare_data(toy, sequences=5, seed=3)
    assert torch.equal(data.batches[0]["tokens"], batch["tokens"]) and data.random
    torch.save(batch["tokens"], tmp_path / "batch.pt")
    given = prepare_data(toy, tmp_path / "batch.pt")
    assert torch.equal(given.batches[0]["tokens"], batch["tokens"]) and not given.random


# --- what is refused -------------------------------------------------------------------------------------------------


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _bytes(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _array(path: Path, values: Any) -> Path:
    np.save(path, values)
    return path


BAD: dict[str, Callable[[Path], Path]] = {
    "got '.*a.csv', expected a file that ends in .pt, .npy, .jsonl, .txt": lambda folder: folder / "a.csv",
    "there is no file": lambda folder: folder / "a.pt",
    "could not be read as tensors": lambda folder: _written(folder / "a.pt", "text"),
    "could not be read as an array": lambda folder: _written(folder / "a.npy", "text"),
    "expected token ids: whole numbers": lambda folder: _array(folder / "a.npy", np.zeros((2, 2, 2), dtype=np.int64)),
    "got token ids 0 .. 99, expected 0 .. 11": lambda folder: _array(folder / "a.npy", np.array([[0, 99]])),
    "got sequences of 20 tokens, expected at most 16.*--length 16": lambda folder: _array(
        folder / "a.npy", np.zeros((1, 20), dtype=np.int64)
    ),
    "line 2 of .* is not JSON": lambda folder: _written(folder / "a.jsonl", '{"input_ids": [1, 2]}\n{'),
    "line 1 of .* has neither input_ids nor text": lambda folder: _written(folder / "a.jsonl", '{"ids": [1]}'),
    "line 2 of .* has": lambda folder: lines(
        folder / "a.jsonl", [{"input_ids": [1, 2]}, {"input_ids": [1, 2], "labels": [1, 2]}]
    ),
    "input_ids of .* are not numbers": lambda folder: lines(folder / "a.jsonl", [{"input_ids": ["one", "two"]}]),
    "holds no example": lambda folder: _written(folder / "a.jsonl", "\n"),
    "could not be read .*expected text in UTF-8": lambda folder: _bytes(folder / "a.jsonl", b"\xff\xfe"),
    "a.txt' could not be read": lambda folder: _bytes(folder / "a.txt", b"\xff\xfe"),
    "is empty": lambda folder: _written(folder / "a.txt", " \n"),
    "got 1 token, expected at least 2": lambda folder: _written(folder / "a.txt", "cat"),
}


@pytest.mark.parametrize("message", BAD)
def test_files_that_cannot_be_used(message: str, gpt2: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(hl.InputError, match=f"data: .*{message}"):
        prepare_data(gpt2, BAD[message](tmp_path), length=32)


def test_a_classifier_needs_labels(classifier: LoadedModel, tmp_path: Path) -> None:
    torch.save(IDS, tmp_path / "batch.pt")
    with pytest.raises(hl.InputError, match="data: a classifier needs labels"):
        prepare_data(classifier, tmp_path / "batch.pt")


@pytest.mark.parametrize("option", ["sequences", "length"])
def test_sizes_must_be_positive(option: str, gpt2: LoadedModel) -> None:
    with pytest.raises(hl.InputError, match=f"{option}: got 0, expected a positive"):
        prepare_data(gpt2, **{option: 0})
