"""What curvature will cost, and batches that fit: measured on one sequence, right for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.network.base.dry_run import DryRun
from hessianlens.network.forecasting import ensure_forecast_fits
from hessianlens.network.routes.last_attention import route as last_attention
from hessianlens.network.routes.last_attention.exact import closed_form_cost
from hessianlens.network.routes.linear_map import curvatures
from hessianlens.network.routes.linear_map import route as linear_map
from hessianlens.parts import PARTS
from hessianlens.problems import Block, Problem
from tests.curvature import networks
from tests.curvature.agreement import same_operator
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, tokens
from tests.curvature.registry import CASES, problem_of
from tests.oracles.comparison import assert_same
from tests.variants import randn


def problem(sequences: int = 6) -> Problem:
    return networks.toy_problem(sequences, layers=2)


def test_the_graph_grows_with_the_sequences_and_nothing_with_the_probes() -> None:
    few, many = (hl.network.forecast(p, p.select("layer0.attn.q"), probes=5) for p in (problem(2), problem(6)))
    assert few.bytes_per_sequence == many.bytes_per_sequence > 0
    assert (few.graph_bytes * 3, few.sequences * 3) == (many.graph_bytes, many.sequences)
    assert few.vector_bytes == many.vector_bytes > 0
    assert few.products == many.products == 5
    more = hl.network.forecast(problem(2), problem(2).select("layer0.attn.q"), probes=10)
    assert (more.products, more.total_bytes) == (10, few.total_bytes)
    assert str(more).startswith("10 HVPs") and "2 sequences at once" in str(more)


def test_one_is_singular() -> None:
    alone = problem(1)
    made = hl.network.forecast(alone, alone.select("layer0.attn.q"), probes=1)
    assert str(made).startswith("1 HVP,") and "for 1 sequence at once" in str(made)


def test_the_process_itself_is_counted() -> None:
    made = hl.network.forecast(problem(2), problem(2).select("layer0.attn.q"))
    assert made.peak_bytes == made.process_bytes + made.total_bytes
    assert made.process_bytes > 2**26  # torch alone takes more
    assert replace(made, closed_form_bytes=2**40).total_bytes == made.total_bytes + 2**40
    exactly_too = hl.network.forecast(problem(2), problem(2).select("layer0.attn.q"), closed_forms=True)
    assert exactly_too.total_bytes > made.total_bytes and "of closed forms" in str(exactly_too)


@pytest.mark.parametrize(
    "name", ["GPT-2", "Llama, grouped queries", "BERT, masked", "ViT", "nn.TransformerEncoder, square", "toy"]
)
def test_a_dry_run_needs_no_contents_and_counts_what_a_run_holds(name: str) -> None:
    made = problem_of(name)
    without_contents, real = DryRun(made), DryRun(made)
    real._on_meta = None
    blocks = made.select(list(CASES[name].blocks))[:1]
    expected, found = (one.peak(blocks, PARTS, one.sequences) for one in (real, without_contents))
    assert without_contents.on_meta_device
    assert found == pytest.approx(expected, rel=0.25)
    assert without_contents.forward().outputs == real.forward().outputs


def test_a_model_that_asks_for_contents_is_run_with_them() -> None:
    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return outputs.square().sum() * (2.0 if float(outputs.detach().sum()) > 0 else 1.0)

    dry_run = DryRun(networks.toy_problem(data={"tokens": tokens(6)}, loss=loss))
    assert dry_run.peak(dry_run.problem.select("layer0.attn.q"), PARTS, 2) > 0
    assert not dry_run.on_meta_device


def test_a_closed_form_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem()
    cost = closed_form_cost(whole, whole.select("layer1.attn.q"))
    assert cost.held_bytes > 6 * LENGTH * WIDTH**2 * 8 and cost.products == WIDTH
    for route in (last_attention, linear_map):
        monkeypatch.setattr(route, "available_bytes", lambda device: 100)
    monkeypatch.setattr(last_attention, "exact_attention", lambda *_: pytest.fail("made all the same"))
    monkeypatch.setattr(curvatures, "site_curvatures", lambda *_: pytest.fail("made all the same"))
    refused = r"method: got 'exact', but .*its closed form needs .*, and 100 B are free; .*"
    for block in ("layer1.attn.q", "layer1.mlp.in"):
        with pytest.raises(hl.InputError, match=f"{refused}'probes'"):
            hl.block_norms(whole, block, method="exact")
        with pytest.raises(hl.InputError, match=f"{refused}'hvp'"):
            hl.hessian(whole, block, method="exact")
        assert hl.block_norms(whole, block, probes=3)[block, "full"].method == "hutchinson"


def test_a_problem_that_fits_is_left_alone_and_one_that_does_not_is_cut() -> None:
    whole = problem()
    assert hl.network.fit_memory(whole) is whole
    made = hl.network.forecast(whole, list(whole.blocks.values()), probes=1, parts=1)
    cut = hl.network.fit_memory(whole, made.vector_bytes + 2 * made.bytes_per_sequence)
    assert [len(batch[0]) for batch in cut.data] == [2, 2, 2]
    assert_same(cut.total_loss(), whole.total_loss())
    same_operator(cut, whole, ["layer0.attn.q", "layer1.mlp.in"], 1e-9)


@pytest.mark.parametrize("size", ["0.001 MB", 100])
def test_a_limit_below_a_single_sequence(size: Any) -> None:
    with pytest.raises(hl.InputError, match=r"max_memory: a single sequence needs .* got "):
        hl.network.fit_memory(problem(), size)


@pytest.mark.parametrize("size", ["much", "2 parsecs", -1, 0])
def test_a_limit_that_is_no_size(size: Any) -> None:
    with pytest.raises(hl.InputError, match=r"max_memory: got .*, expected"):
        hl.network.fit_memory(problem(), size)


def test_work_that_does_not_fit_is_refused_with_a_remedy() -> None:
    made = hl.network.forecast(problem(), problem().select("embed"))
    short = replace(made, available=int((made.vector_bytes + 2 * made.bytes_per_sequence) / 0.8) + 8)
    with pytest.raises(hl.InputError, match=r"memory: .* micro_batch=2 in hessianlens.problem, would fit"):
        ensure_forecast_fits(short)
    with pytest.raises(hl.InputError, match="not even one sequence at a time would fit"):
        ensure_forecast_fits(replace(made, available=0))


# --- losses and data that are not a sum over sequences ---------------------------------------------------------------


def _sum(outputs: Tensor, batch: Any) -> Tensor:
    return outputs.pow(2).sum()


def _mean(outputs: Tensor, batch: Any) -> Tensor:
    return outputs.pow(2).mean()


@pytest.mark.long
def test_a_loss_that_changes_when_the_data_is_cut_is_not_cut() -> None:
    """A function that sums, told to be averaged over batches by size, is another loss for smaller batches."""
    options = {"sum": (_sum, "sum"), "mean": (_mean, "mean"), "wrong": (_sum, "mean")}
    for name, (loss, reduction) in options.items():
        whole = networks.toy_problem(data={"tokens": tokens(6)}, loss=loss, given={"reduction": reduction})
        made = hl.network.forecast(whole, list(whole.blocks.values()), probes=1, parts=1)
        limit = made.vector_bytes + 2 * made.bytes_per_sequence
        if name == "wrong":
            with pytest.raises(hl.InputError, match=r"max_memory: batch 0, .* its loss is .* its pieces"):
                hl.network.fit_memory(whole, limit)
        else:
            assert_same(hl.network.fit_memory(whole, limit).total_loss(), whole.total_loss(), name)


def test_a_loss_that_needs_its_whole_batch_can_be_forecast() -> None:
    """Targets that a user's function brings along fit the whole batch only."""
    targets = randn(6, LENGTH, VOCAB)

    def loss(outputs: Tensor, batch: Any) -> Tensor:
        return (outputs.flatten() - targets.flatten()).pow(2).mean()

    whole = networks.toy_problem(data={"tokens": tokens(6)}, loss=loss)
    blocks = whole.select("layer0.mlp.*")
    assert hl.network.forecast(whole, blocks).bytes_per_sequence > 0
    assert hl.block_norms(whole, "layer0.mlp.in", probes=3)["layer0.mlp.in", "full"].value > 0


def test_batches_that_are_no_tensors_can_be_forecast() -> None:
    weight = randn(3)
    blocks = {"w": Block.of("w", "w", weight)}
    made = Problem(lambda w, batch: w["w"] ** batch, lambda out, batch: out.sum(), {"w": weight}, blocks, [3, 2])
    norm = hl.block_norms(made, "w", ("full",), probes=3)["w", "full"]
    assert norm.value == pytest.approx(float(torch.linalg.vector_norm(6 * weight + 2)))
