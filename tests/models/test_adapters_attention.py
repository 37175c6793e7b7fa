"""Fused attention in chunks while a model is differentiated: the numbers of the plain kernel, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.curvature import Linearisation
from hessianlens.curvature.tape import TapedLinearisation
from hessianlens.curvature.tape.recording import record_function
from hessianlens.models.adapters import twice_differentiable
from hessianlens.models.adapters.twice_differentiable import LongAttention
from hessianlens.network.base.dry_run import DryRun
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import VOCAB, WIDTH, pairs, tokens
from tests.curvature.registry import CASES
from tests.network.registry import NETWORKS
from tests.network.sites.families import FAMILIES, token_ids
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

CHUNKED = "hessianlens.scaled_dot_product_attention takes its place"


def _family(name: str) -> Callable[..., Problem]:
    def made(**how: Any) -> Problem:
        return hl.problem(FAMILIES[name](), {"tokens" if "Lens" in name else "input_ids": token_ids()}, _cubic, **how)

    return made


def _cubic(outputs: Tensor, _: object) -> Tensor:
    return outputs.pow(3).mean()


MODELS: dict[str, Callable[..., Problem]] = {
    **{name: case.problem for name, case in CASES.items()},
    **{f"closed form, {name}": network.problem for name, network in NETWORKS.items() if "GPT" in name},
    **{f"family, {name}": _family(name) for name in FAMILIES if "Lens" not in name and name != "nanoGPT"},
}


def _in_chunks(problem: Problem) -> bool:
    return any(CHUNKED in note for note in problem.notes)


def _product(problem: Problem, seed: int = 0) -> Tensor:
    """All parameters at once, by exact products."""
    names = list(dict.fromkeys(block.parameter for block in problem.blocks.values()))
    v = {name: randn(*problem.params[name].shape, seed=seed + k).to(problem.dtype) for k, name in enumerate(names)}
    parts = Linearisation(problem, problem.data[0], names).split(v, names)
    return torch.cat([part[name].flatten() for part in parts for name in names])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_numbers_in_chunks_and_by_the_plain_kernel(name: str) -> None:
    plain, chunked = (MODELS[name](attention=kernel) for kernel in ("math", "chunked"))
    assert not _in_chunks(plain) and _in_chunks(chunked) is _calls_fused_attention(plain)
    if _in_chunks(chunked):
        assert_same(_product(chunked), _product(plain), name, 1e-9)


def _calls_fused_attention(problem: Problem) -> bool:
    fused = nnf.scaled_dot_product_attention
    with (
        patch.object(nnf, "scaled_dot_product_attention", side_effect=fused) as calls,
        problem.scope(),
        torch.no_grad(),
    ):
        problem.forward(problem.params, problem.data[0])
    return calls.called


def test_some_models_call_fused_attention() -> None:
    for name in ("GPT-2", "nn.TransformerEncoder, square", "closed form, nanoGPT"):
        assert _calls_fused_attention(MODELS[name]())


# --- when, and what is said ------------------------------------------------------------------------------------------


def test_attention_goes_in_chunks_where_its_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    q = randn(1, 2, 6, 3)
    monkeypatch.setattr(twice_differentiable, "LONG", 6)
    for limit, chunks in ((2 * 6 * 6 * 8, True), (2 * 6 * 6 * 8 + 1, False)):
        monkeypatch.setattr(twice_differentiable, "_LARGE_BYTES", limit)
        with LongAttention("auto") as met:
            nnf.scaled_dot_product_attention(q, q, q)
        assert met.in_chunks is chunks
        with LongAttention("auto") as met:
            nnf.scaled_dot_product_attention(q, q[:, :, :5], q[:, :, :5])  # few keys
        assert not met.in_chunks


def test_a_problem_with_long_sequences_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice_differentiable, "_LARGE_BYTES", 1)
    long = hugging_face.gpt2(n_positions=512)
    assert _in_chunks(hl.problem(long, {"input_ids": tokens(1, 512)}, verify=False))
    assert not _in_chunks(hl.problem(long, {"input_ids": tokens(1, 512)}, attention="math", verify=False))
    assert not _in_chunks(hl.problem(long, {"input_ids": tokens(1, 8)}, verify=False))


class Weighing(nn.Module):
    """Asks PyTorch's module for its weights, by default or not."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(WIDTH, 2, batch_first=True), need_weights

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.attention(x, x, x, need_weights=self.need_weights)[0]
        return found


@pytest.mark.parametrize("need_weights", [True, False])
def test_weights_that_are_asked_for_are_computed_in_the_plain_way(need_weights: bool) -> None:
    model = networks.scrambled(Weighing(need_weights).to(DOUBLE))
    data = (randn(2, 5, WIDTH), randn(2, 5, WIDTH, seed=1))
    plain, chunked = (hl.problem(model, data, "square", attention=kernel) for kernel in ("math", "chunked"))
    assert _in_chunks(chunked) is not need_weights
    assert any("is asked for its weights" in note for note in chunked.notes) is need_weights
    assert_same(_product(chunked), _product(plain), "product", 1e-10)


def test_eager_attention_stays_and_is_told() -> None:
    model = hugging_face.gpt2()
    model.set_attn_implementation("eager")
    notes = hl.problem(model, {"input_ids": tokens()}, attention="chunked").notes
    assert any("attn_implementation='sdpa'" in note for note in notes) and not any(CHUNKED in n for n in notes)
    assert not any("L x L" in note for note in hl.problem(model, {"input_ids": tokens()}).notes)


def test_an_implementation_of_its_own_gives_way_to_chunks() -> None:
    model, batch = hugging_face.masked_bert(), hugging_face.padded(2)
    plain = _product(hl.problem(model, batch, attention="math"))
    model.set_attn_implementation("flex_attention")
    problem = hl.problem(model, batch, attention="chunked")
    assert any("flex_attention has no second derivative: sdpa attention is used" in note for note in problem.notes)
    assert _in_chunks(problem)
    assert_same(_product(problem), plain, "product", 1e-9)
    assert model.config._attn_implementation == "flex_attention"


def test_an_unknown_kernel_is_refused() -> None:
    with pytest.raises(hl.InputError, match="attention: got 'flash', expected"):
        hl.problem(networks.mlp(), pairs(2, length=None), "cross_entropy", attention="flash")


def test_what_chunks_cannot_take_goes_to_pytorch() -> None:
    q = randn(1, 2, 3, 4)
    asked = {"query": q, "key": q, "value": q, "attn_mask": torch.ones(3, 3).to_sparse()}
    assert "sparse" in twice_differentiable._refusal(asked)
    assert twice_differentiable._refusal({"query": q, "key": q, "value": q, "soft": 1.0}) == "it is called with soft"


# --- with the rest of the library ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [hugging_face.gpt2, hugging_face.llama, networks.nano_gpt])
def test_a_tape_sees_one_operation_and_gives_what_the_graph_gives(model: Callable[[], nn.Module]) -> None:
    data: Any = {"input_ids": tokens()} if model is not networks.nano_gpt else pairs(2)
    problem = hl.problem(model(), data, None if isinstance(data, dict) else "cross_entropy", attention="chunked")
    names = list(dict.fromkeys(block.parameter for block in problem.blocks.values()))
    batch = problem.data[0]
    with problem.scope():
        recording = record_function(
            lambda at: problem.forward({**problem.params, **at}, batch), {n: problem.params[n] for n in names}
        )
    layers = sum("attn.q" in name and "bias" not in name for name in problem.blocks)
    assert [call.name for call in recording.calls].count("attention") == layers
    v = {name: randn(*problem.params[name].shape, seed=k) for k, name in enumerate(names)}
    found = [source(problem, batch, names).split(v, names) for source in (TapedLinearisation, Linearisation)]
    for tape, graph in zip(*found, strict=True):
        assert_same(torch.cat([t.flatten() for t in tape.values()]), torch.cat([t.flatten() for t in graph.values()]))


@pytest.mark.parametrize("name", ["GPT-2", "nanoGPT"])
def test_the_closed_form_of_the_last_layer_is_found_behind_chunks(name: str) -> None:
    blocks = NETWORKS[name].blocks[:3]
    plain, chunked = (NETWORKS[name].problem(attention=kernel) for kernel in ("math", "chunked"))
    expected, found = (hl.block_norms(problem, blocks, method="exact") for problem in (plain, chunked))
    for block in blocks:
        assert found[block, "full"].value == pytest.approx(expected[block, "full"].value, rel=1e-10)


def test_a_rehearsal_without_contents_knows_that_chunks_keep_less() -> None:
    model, peaks = networks.scrambled(networks.PooledEncoder().float()), {}
    for kernel in ("math", "chunked"):
        problem = hl.problem(model, (tokens(1, 1200), torch.tensor([1])), "cross_entropy", attention=kernel)
        dry_run = DryRun(problem)
        peaks[kernel] = dry_run.peak(problem.select("*attn.q"), ("full",), 1)
        assert dry_run.on_meta_device
    assert peaks["math"] > 3 * peaks["chunked"]


def test_a_wrong_scale_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = twice_differentiable.scaled_dot_product_attention
    monkeypatch.setattr(
        twice_differentiable, "scaled_dot_product_attention", lambda **asked: right(**{**asked, "scale": 0.3})
    )
    with pytest.raises(
        hl.InputError, match=r"attention: the loss of batch 0 is .* in chunks and .* give attention='math'"
    ):
        _family("GPT-2")(attention="chunked")
    plain, wrong = (_family("GPT-2")(attention=kernel, check=False) for kernel in ("math", "chunked"))
    with pytest.raises(AssertionError):
        assert_same(_product(wrong), _product(plain))


def test_everything_is_put_back_after_an_error() -> None:
    before = torch._C._len_torch_function_stack(), nnf.has_torch_function
    problem = hl.problem(
        networks.torch_encoder(), (randn(2, 4, WIDTH), randn(2, 4, WIDTH)), "square", attention="chunked"
    )
    with pytest.raises(KeyError), problem.scope():
        raise KeyError(VOCAB)
    assert (torch._C._len_torch_function_stack(), nnf.has_torch_function) == before
