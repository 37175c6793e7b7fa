"""Norms block by block: the same numbers, in groups, within a limit of memory that the message can be trusted on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import hessianlens as hl
from hessianlens.inspect.blockwise import choose_blocks, cost, forecast_rows, groups, rows, within_memory
from hessianlens.inspect.measurement import Measurement
from hessianlens.inspect.opened import open_model
from hessianlens.inspect.settings import Settings
from hessianlens.network.forecast import parse_size
from hessianlens.sizes import readable
from tests.inspect.saved_models import BERT, GPT2

TOY = "toy:layers=2,d_model=8,heads=2,d_mlp=12,digits=1"
ATTENTION = ("layer*.attn.[qv]", "layer0.mlp.in", "unembed.bias")


@pytest.fixture(scope="module")
def opened():
    return open_model(Settings(TOY, sequences=6, probes=4, blocks=ATTENTION))


def test_the_same_numbers_as_all_at_once(opened) -> None:
    names = [block.name for block in opened.blocks]
    expected = hl.block_norms(opened.problem, names, probes=4, seed=0)
    titles: list[str] = []
    found = {row.name: row for row in rows(opened.problem, opened.blocks, probes=4, on_group=titles.append)}
    assert sorted(found) == sorted(names)
    for (name, part), norm in expected.items():
        assert found[name].norms[part].value == pytest.approx(norm.value, rel=1e-9)
        assert found[name].norms[part].exact == norm.exact
    assert found["layer1.attn.q"].norms["full"].exact and not found["layer0.mlp.in"].norms["full"].exact
    assert titles == ["unembed.bias", "layer0.attn.q and 1 more", "layer0.mlp.in", "layer1.attn.q and 1 more"]


def test_heads_stand_for_what_they_are_cut_from() -> None:
    problem = open_model(Settings(TOY, per_head=True, sequences=2)).problem
    names = {block.name for block in choose_blocks(problem, (), per_head=True)}
    assert "layer0.attn.q.head1" in names and "layer0.attn.q" not in names and "layer0.mlp.in" in names
    some = [block.name for block in choose_blocks(problem, ("layer0.attn.[qk]*",), per_head=True)]
    assert "layer0.attn.k.head0.bias" in some and "layer0.attn.k.bias" not in some and "layer0.attn.k" not in some
    named = [block.name for block in choose_blocks(problem, ("layer0.attn.q", "layer0.attn.k*"), per_head=True)]
    assert "layer0.attn.q" in named and "layer0.attn.k" not in named
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
    found = {row.name: row for row in rows(opened.problem, opened.blocks, probes=100)}
    H = hl.hessian(opened.problem, "layer0.attn.k", method="products")
    whole = H @ torch.eye(H.shape[0], dtype=H.dtype)
    for head, rows_of in zip(heads, whole.chunk(2), strict=True):
        part = rows_of.chunk(2, 1)[heads.index(head)]
        assert found[head].norms["full"].value == pytest.approx(float(part.norm()), rel=1e-5)


def test_groups_hold_every_block_once(opened) -> None:
    blocks = list(opened.problem.blocks.values())
    found = groups(blocks)
    assert sorted(b.name for group in found for b in group) == sorted(b.name for b in blocks)
    assert max(map(len, found)) == 8  # weights and biases of one attention layer


def test_cost(opened) -> None:
    found = cost(opened.problem, opened.blocks, ("full",), 4)
    assert found.memory.products == 4 * len(opened.blocks) and 0 < found.seconds < 60


# --- memory ----------------------------------------------------------------------------------------------------------


def needed(opened, probes: int = 4) -> tuple[int, int]:
    """Bytes of vectors, and of the graph of one sequence."""
    made = forecast_rows(opened.problem, opened.blocks, probes, 3)
    return made.vector_bytes, made.bytes_per_sequence


def test_batches_are_cut_to_a_limit(opened) -> None:
    vectors, each = needed(opened)
    cut = within_memory(opened.problem, opened.blocks, 4, 3, f"{vectors + 2.5 * each:.0f} B")
    assert [len(batch["tokens"]) for batch in cut.data] == [2, 2, 2]
    assert cut.blocks == opened.problem.blocks
    assert float(cut.total_loss()) == pytest.approx(opened.loss, rel=1e-12)
    assert within_memory(opened.problem, opened.blocks, 4, 3, None) is opened.problem
    assert len(within_memory(opened.problem, opened.blocks, 4, 3, "1 GiB").data) == 1


def refusal(opened, limit: float) -> str:
    with pytest.raises(hl.InputError, match="max_memory: one sequence at a time needs") as raised:
        within_memory(opened.problem, opened.blocks, 4, 3, f"{limit:.0f} B")
    return str(raised.value)


def test_a_refusal_names_probes_that_would_fit(opened) -> None:
    vectors, each = needed(opened)
    limit = each + 0.8 * vectors
    found = re.search(r"--probes (\d) would fit", refusal(opened, limit))
    assert found is not None
    within_memory(opened.problem, opened.blocks, int(found.group(1)), 3, f"{limit:.0f} B")


def test_a_refusal_names_blocks_that_would_fit(opened) -> None:
    _, each = needed(opened)
    limit = each + 2 * 10 * 4 * 3 * 8
    found = re.search(r"a block of at most (\d+) entries would fit", refusal(opened, limit))
    assert found is not None
    small = [block for block in opened.blocks if block.numel <= int(found.group(1))]
    within_memory(opened.problem, small, 4, 3, f"{limit:.0f} B")


def test_a_refusal_names_memory_that_would_fit(opened) -> None:
    found = re.search(r"--max-memory (\S+) with --probes 2 would fit", refusal(opened, 100))
    assert found is not None
    limit = 1.1 * parse_size(found.group(1))  # the message rounds to a tenth
    assert len(within_memory(opened.problem, opened.blocks, 2, 3, readable(limit)).data) > 1


# --- settings and the whole run --------------------------------------------------------------------------------------

BAD = {
    "dtype: got 'float16', expected one of 'float32', 'float64'": {"dtype": "float16"},
    "probes: got 1, expected at least 2": {"probes": 1},
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
    real, calls = hl.inspect.blockwise.block_norms, []

    def interrupted(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr("hessianlens.inspect.blockwise.block_norms", interrupted)
    measurement = Measurement(opened, with_pairs=True, spectra=("unembed.bias",))
    measurement.run()
    assert measurement.interrupted and not measurement.table.complete
    assert [row.name for row in measurement.table.rows] == ["unembed.bias", "layer0.attn.q", "layer0.attn.v"]
    found = measurement.to_dict()
    assert found["complete"] is False and "pairs" not in found and len(found["blocks"]) == 3


def test_everything_at_once_counts_its_products(opened) -> None:
    measurement = Measurement(opened, with_pairs=True, spectra=("unembed.bias", "layer1.attn.q"))
    counts: list[int] = []
    measurement.run(on_products=counts.append)
    assert sum(counts) == measurement.products and not measurement.interrupted
    found = measurement.to_dict()
    dense = hl.hessian(opened.problem, "layer1.attn.q").to_dense()
    ends = found["spectra"]["layer1.attn.q"]["eigenvalues"]
    values = torch.linalg.eigvalsh(dense)
    assert ends == pytest.approx([*values[:3].tolist(), *values[-3:].tolist()], abs=1e-10)
    assert found["spectra"]["layer1.attn.q"]["negative_share"] == pytest.approx(float((values < 0).double().mean()))
    assert len(found["pairs"]["norms"]) == len(opened.blocks)


def test_a_masked_language_model_end_to_end() -> None:
    measurement = Measurement(open_model(Settings(BERT, blocks=("layer0.mlp.*",), probes=2, sequences=2, length=6)))
    measurement.run()
    assert [row.norm > 0 for row in measurement.table.rows] == [True] * 4
    assert "masked" in measurement.to_dict()["notes"][0]
