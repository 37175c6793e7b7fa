"""Time of a forward pass over long sequences, from excerpts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hessianlens.inspect import resources
from hessianlens.inspect.data import prepare_data
from hessianlens.inspect.loading import load_model
from hessianlens.inspect.preparation import prepare_model
from hessianlens.inspect.resources import excerpt_of, longest_sequence, pass_seconds
from hessianlens.inspect.settings import Settings
from tests.inspect.saved_models import GPT2

BERT = "config:bert?hidden_size=8&num_hidden_layers=1&num_attention_heads=2&intermediate_size=4&vocab_size=9"


def of_length(*shapes: tuple[int, int]) -> Any:
    return SimpleNamespace(data=[{"input_ids": torch.zeros(shape, dtype=torch.long)} for shape in shapes])


def test_a_line_and_a_parabola_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(problem: Any, batch: Any) -> float:
        tokens = batch["input_ids"].shape[1]
        asked.append(tokens)
        return 1e-3 * tokens + 1e-6 * tokens**2

    asked: list[int] = []
    monkeypatch.setattr(resources, "_seconds", seconds)
    found = pass_seconds(of_length((3, 32768), (2, 16384)))
    assert found == pytest.approx(3 * (32.768 + 1073.741824) + 2 * (16.384 + 268.435456))
    assert sorted(set(asked)) == [64, 128, 256, 512]  # of which the last takes more than half a second


def test_no_time_is_known_of_a_model_that_takes_no_excerpts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problem: Any, batch: Any) -> float:
        raise RuntimeError("expected sequences of 4096 tokens")

    monkeypatch.setattr(resources, "_seconds", refuse)
    assert pass_seconds(of_length((1, 4096))) is None


def test_excerpts() -> None:
    batch = {"input_ids": torch.ones(2, 5), "labels": torch.ones(2, 5, 3), "label": torch.ones(2), "text": "a"}
    found = excerpt_of(batch, 3)
    assert [tuple(found[key].shape) for key in ("input_ids", "labels", "label")] == [(1, 3), (1, 3, 3), (1,)]
    assert longest_sequence([batch, {"pixel_values": torch.ones(1, 3, 8, 8)}]) == 5 and found["text"] == "a"


def test_short_sequences_are_not_forecast() -> None:
    prepared = prepare_model(Settings(GPT2, sequences=2, length=4))
    assert prepared.draft is None and prepared.pass_seconds is None and prepared.loading_seconds == 0


def test_a_forecast_of_long_sequences_is_that_of_the_problem() -> None:
    model = "config:gpt2?n_layer=1&n_embd=8&n_head=2&vocab_size=5&n_positions=600"
    prepared = prepare_model(Settings(model, sequences=2, length=600, blocks=("layer0.attn.q",), probes=2))
    assert prepared.draft is not None and prepared.pass_seconds is not None
    assert prepared.passes == "6 forward passes over 2 sequences of 600 tokens"
    opened = prepared.open()
    assert opened.needed.total_bytes == pytest.approx(prepared.draft.needed.total_bytes, rel=0.05)
    assert opened.needed.products == prepared.draft.needed.products == 2
    assert prepared.draft.to_dict()["loss_value"] is None and opened.to_dict()["loss_value"] > 0
    assert opened.notes == prepared.draft.notes


def test_random_targets_of_an_encoder_take_no_run_of_it() -> None:
    loaded = load_model(f"{BERT}&max_position_embeddings=32768", head="encoder")

    def refuse(module: Any, args: Any) -> None:
        assert args[0].is_meta, "the encoder was run"

    loaded.model.get_submodule("encoder.layer.0").register_forward_pre_hook(refuse)
    (batch,) = prepare_data(loaded, sequences=2, length=32768).batches
    assert batch["labels"].shape == (2, 32768, 8)
