"""Norms block by block: the same numbers, in groups, within a limit of memory that the message can be trusted on."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

import hessianlens as hl
from hessianlens.inspect.inspection import Inspection
from hessianlens.inspect.preparation import open_model
from hessianlens.inspect.resources import choose_blocks, cost, within_memory
from hessianlens.inspect.settings import Settings
from hessianlens.network import forecasting
from hessianlens.sizes import parse_size
from tests.inspect.saved_models import BERT, GPT2
from tests.network.watches import Counting, Interrupting

TOY = "toy:layers=2,d_model=8,heads=2,d_mlp=12,digits=1"
LAST = ("layer1.attn.q", "layer1.attn.v")
ATTENTION = ("layer*.attn.[qv]", "layer0.mlp.in", "unembed.bias")


@pytest.fixture(scope="module")
def opened():
    return open_model(Settings(TOY, sequences=6, probes=4, blocks=ATTENTION))


def test_heads_stand_for_what_they_are_cut_from() -> None:
    problem = open_model(Settings(TOY, per_head=True, sequences=2)).problem
    names = {block.name for block in choose_blocks(problem, (), per_head=True)}
    assert "layer0.attn.q.head1" in names and "layer0.attn.q" not in names and "layer0.mlp.in" in names
    some = [block.name for block in choose_blocks(problem, ("layer0.attn.[qk]*",), per_head=True)]
    assert "layer0.attn.k.head0.bias" in some and "layer0.attn.k.bias" not in some and "layer0.attn.k" not in some
    named = [block.name for block in choose_blocks(problem, ("layer0.attn.q", "layer0.attn.k*"), per_head=True)]
    assert "layer0.attn.q" in named and "layer0.attn.k" not in named
    whole = [block.name for block in choose_blocks(problem, ("layer1.attn.?",), per_head=True)]
    assert whole == [f"layer1.attn.{role}.head{head}" for role in "qkvo" for head in range(2)]
    everything = sum(block.numel for block in choose_blocks(problem, (), per_head=True))
    assert everything == sum(block.numel for block in open_model(Settings(TOY, sequences=2)).blocks)


def test_heads_of_interleaved_projections_stand_for_them_too() -> None:
    sizes = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 6, "num_attention_heads": 2}
    options = {**sizes, "num_hidden_layers": 1, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 0}
    model = "config:gpt_neox?" + "&".join(f"{name}={value}" for name, value in options.items())
    chosen = ("layer0.attn.q", "layer0.attn.k.*")
    opened = open_model(Settings(model, per_head=True, sequences=2, length=4, blocks=chosen, probes=40))
    heads = [f"layer0.attn.k.head{h}" for h in range(2)]
    assert [b.name for b in opened.blocks] == ["layer0.attn.q", *heads, *(f"{head}.bias" for head in heads)]
    found = hl.block_norms(opened.problem, [block.name for block in opened.blocks], probes=100)
    H = hl.hessian(opened.problem, "layer0.attn.k", method="hvp")
    whole = H @ torch.eye(H.shape[0], dtype=H.dtype)
    for head, rows_of in zip(heads, whole.chunk(2), strict=True):
        part = rows_of.chunk(2, 1)[heads.index(head)]
        assert found[head, "full"].value == pytest.approx(float(part.norm()), rel=1e-5)


def test_cost(opened) -> None:
    found = cost(opened.problem, opened.blocks, ("full",), 4)
    assert found.memory.products == 4 * len(opened.blocks) and 0 < found.seconds < 600


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that the process holds, fixed: the real number moves while a test runs."""
    monkeypatch.setattr(forecasting, "process_bytes", lambda: 10**8)
    return 10**8


def needed(opened) -> tuple[int, int]:
    """Bytes of vectors, and of the graph of one sequence."""
    made = hl.network.forecast(opened.problem, opened.blocks, 4, 3)
    return made.vector_bytes, made.bytes_per_sequence


def limited(opened, limit: float | None):
    return within_memory(opened.problem, opened.blocks, 4, 3, None if limit is None else f"{limit:.0f} B")[0]


def test_batches_are_cut_to_a_limit(opened, held: int) -> None:
    vectors, each = needed(opened)
    cut = limited(opened, held + vectors + 2.5 * each)
    assert [len(batch["tokens"]) for batch in cut.data] == [2, 2, 2]
    assert cut.blocks == opened.problem.blocks
    assert float(cut.total_loss()) == pytest.approx(opened.loss, rel=1e-12)
    assert limited(opened, None) is opened.problem is limited(opened, 2**30)


def refusal(opened, limit: float) -> str:
    with pytest.raises(hl.InputError, match="max_memory: one sequence at a time needs") as raised:
        limited(opened, limit)
    return str(raised.value)


def test_a_refusal_names_blocks_that_would_fit(opened, held: int) -> None:
    vectors, each = needed(opened)
    limit = held + each + 0.5 * vectors
    found = re.search(r"blocks of at most (\d+) entries would fit", refusal(opened, limit))
    assert found is not None
    small = [block for block in opened.blocks if block.numel <= int(found.group(1))]
    assert 0 < len(small) < len(opened.blocks)
    within_memory(opened.problem, small, 4, 3, f"{limit:.0f} B")


def test_a_refusal_names_memory_that_would_fit(opened, held: int) -> None:
    found = re.search(r"--max-memory (\S+) would fit", refusal(opened, 100))
    assert found is not None
    assert len(limited(opened, parse_size(found.group(1))).data) > 0


# --- settings and the whole run --------------------------------------------------------------------------------------

BAD = {
    "dtype: got 'float16', expected one of 'float32', 'float64'": {"dtype": "float16"},
    "probes: got 0, expected at least 1": {"probes": 0},
    "seed: got -1, expected a whole number from 0 to": {"seed": -1},
    "seed: got 9223372036854775808, expected a whole number from 0 to": {"seed": 2**63},
    "parts: got none, expected some of": {"parts": ()},
    "parts: got 'hessian', expected one of 'full', 'ggn', 'functional'": {"parts": ("hessian",)},
}


@pytest.mark.parametrize("message", BAD)
def test_settings_are_checked_before_a_model_is_loaded(message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        Settings("/nosuch/model", **BAD[message])


def test_devices_that_are_not_there() -> None:
    for device in ("cuda:99", "abacus"):
        with pytest.raises(hl.InputError, match=f"device: got '{device}', which cannot be used here"):
            open_model(Settings(TOY, device=device))


def test_a_model_that_cannot_be_run_on_its_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1, 2, 3], "position_ids": [0, 1, 99]}')
    with pytest.raises(hl.InputError, match=r"data: got the ids 0 \.\. 99 in position_ids, expected 0 \.\. 15"):
        open_model(Settings(GPT2, data=tmp_path / "a.jsonl"))


def test_an_interruption_keeps_what_is_done(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.base.thresholds.EXACT_MAX_HVPS_PER_PROBE", 0)
    measurement = Inspection(opened, with_pairs=True, spectra=("unembed.bias",))
    measurement.run(Interrupting(after=4))
    assert measurement.interrupted and not measurement.table.complete
    # Closed forms first, then block by block.
    assert {row.name for row in measurement.table.rows} == {"unembed.bias", "layer0.attn.q", *LAST}
    found = measurement.to_dict()
    assert found["complete"] is False and "pairs" not in found and len(found["blocks"]) == 4
    assert found["left_out"] == ["layer0.attn.v", "layer0.mlp.in"]


def test_everything_at_once_counts_its_products(opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.network.base.thresholds.BACKPROPAGATION_MIN_HVPS", math.inf)
    measurement, watch = Inspection(opened, with_pairs=True, spectra=("unembed.bias", "layer1.attn.q")), Counting()
    measurement.run(watch)
    assert watch.done == watch.planned == measurement.measured.products and not measurement.interrupted
    found = measurement.to_dict()
    dense = hl.hessian(opened.problem, "layer1.attn.q").to_dense()
    ends = found["spectra"]["layer1.attn.q"]["eigenvalues"]
    values = torch.linalg.eigvalsh(dense)
    assert ends == pytest.approx([*values[:3].tolist(), *values[-3:].tolist()], abs=1e-10)
    spectrum, small = found["spectra"]["layer1.attn.q"], 1e-3 * float(values.abs().max())
    assert spectrum["zero_up_to"] == pytest.approx(small) and spectrum["counted"] is True
    for name, count in (("negative", values < -small), ("zero", values.abs() <= small), ("positive", values > small)):
        share = pytest.approx(float(count.double().mean()))
        assert spectrum[f"{name}_share"] == spectrum[f"{name}_share_low"] == spectrum[f"{name}_share_high"] == share
    assert len(found["pairs"]["norms"]) == len(opened.blocks)


def test_a_masked_language_model_end_to_end() -> None:
    measurement = Inspection(open_model(Settings(BERT, blocks=("layer0.mlp.*",), probes=2, sequences=2, length=6)))
    measurement.run()
    assert [row.norm > 0 for row in measurement.table.rows] == [True] * 4
    assert "masked" in measurement.to_dict()["notes"][0]
