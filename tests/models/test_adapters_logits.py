"""Logits that are not formed while a model is differentiated: the same numbers, and what is said where they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.curvature import Linearisation, loss_boundary
from hessianlens.curvature.tape import TapedLinearisation, Unrecordable
from hessianlens.losses.fused_cross_entropy import Part
from hessianlens.models.adapters import unembedding
from hessianlens.network.base.dry_run import DryRun
from hessianlens.problems import LogitsForward, Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import VOCAB, WIDTH, pairs, tokens
from tests.curvature.registry import CASES
from tests.network.sites.families import FAMILIES, token_ids
from tests.oracles.comparison import assert_same
from tests.variants import randn

FUSED = "logits .* are not materialised while differentiating"


def _family(name: str) -> Callable[..., Problem]:
    def made(**how: Any) -> Problem:
        ids = token_ids()
        data = (ids, ids) if "Lens" in name else {"input_ids": ids, "labels": ids}
        return hl.problem(FAMILIES[name](), data, "cross_entropy", **how)

    return made


MODELS: dict[str, Callable[..., Problem]] = {
    **{name: case.problem for name, case in CASES.items() if case.loss not in ("square", "bce")},
    **{f"family, {name}": _family(name) for name in FAMILIES if name != "nanoGPT"},
}
FORMED = {"pooled encoder, loss between sequences"}


def _is_fused(problem: Problem) -> bool:
    return isinstance(problem.forward, LogitsForward)


def _products(problem: Problem, source: Callable[..., Any], names: list[str]) -> list[Tensor]:
    """Of all parts, from all parameters to all parameters."""
    v = {name: randn(*problem.params[name].shape, seed=k).to(problem.dtype) for k, name in enumerate(names)}
    at = source(problem, problem.data[0], names)
    parts = [*at.split(v, names), at.hessian(v, names)]
    return [torch.cat([part[name].flatten() for name in names]) for part in parts]


def _parameters(problem: Problem) -> list[str]:
    return list(dict.fromkeys(block.parameter for block in problem.blocks.values()))


@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_the_same_numbers_with_and_without_logits(name: str) -> None:
    whole, chunked = (MODELS[name](logits=how, verify=False) for how in ("whole", "chunked"))
    assert not _is_fused(whole) and _is_fused(chunked) is (name not in FORMED)
    if name in FORMED:
        return
    names = _parameters(whole)
    found, expected = (_products(problem, Linearisation, names) for problem in (chunked, whole))
    for one, other, part in zip(found, expected, ("outer", "functional", "full"), strict=True):
        assert_same(one, other, f"{name}, {part}", 1e-9)
    assert float(chunked.total_loss()) == pytest.approx(float(whole.total_loss()), rel=1e-6)


def test_a_wrong_part_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = loss_boundary.LogitsBoundary.second_derivative
    monkeypatch.setattr(
        loss_boundary.LogitsBoundary, "second_derivative", lambda self, tangents, _: right(self, tangents, Part.FULL)
    )
    with pytest.raises(AssertionError):
        test_every_model_gives_the_same_numbers_with_and_without_logits("GPT-2")


# --- on a tape -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GPT-2", "family, Gemma2, capped scores, window", "family, TransformerLens"])
def test_a_tape_ends_in_front_of_the_logits_and_gives_the_same(name: str) -> None:
    whole, chunked = (MODELS[name](logits=how, verify=False) for how in ("whole", "chunked"))
    names = [n for n in _parameters(whole) if "norm" in n or "ln_" in n or "mlp" in n][:3]
    taped = TapedLinearisation(chunked, chunked.data[0], names)
    assert "linear_cross_entropy" in taped.kinds and "_log_softmax" not in taped.kinds
    found, expected = _products(chunked, TapedLinearisation, names), _products(whole, Linearisation, names)
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other, name, 1e-9)
    v = {n: randn(*whole.params[n].shape) for n in names}
    for kind in ("gauss_newton", "functional"):
        one, other = (getattr(at, kind)(v, names) for at in (taped, Linearisation(whole, whole.data[0], names)))
        assert_same(*(torch.cat([part[n].flatten() for n in names]) for part in (one, other)), kind, 1e-9)


def test_a_tape_leaves_the_last_map_to_the_graph() -> None:
    problem = MODELS["GPT-2"](logits="chunked", verify=False)
    with pytest.raises(Unrecordable, match="the last linear map"):
        TapedLinearisation(problem, problem.data[0], ["transformer.wte.weight", "transformer.h.0.ln_1.weight"])


# --- when, and what is said ------------------------------------------------------------------------------------------


def test_logits_are_not_formed_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = hugging_face.gpt2(), {"input_ids": tokens()}
    size = tokens().numel() * VOCAB * 8
    for limit, fused in ((size, True), (size + 1, False)):
        monkeypatch.setattr(unembedding, "_LARGE_BYTES", limit)
        for check in (True, False):
            problem = hl.problem(model, data, check=check)
            assert _is_fused(problem) is fused
            assert any(re.search(FUSED, note) for note in problem.notes) is fused
        assert not _is_fused(hl.problem(model, data, logits="whole"))


class Ended(nn.Module):
    """Does something to what its last linear map gives."""

    def __init__(self, end: Callable[[Tensor, nn.Linear], Tensor]) -> None:
        super().__init__()
        self.inner, self.last, self._end = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB), end

    def forward(self, x: Tensor) -> Tensor:
        return self._end(torch.tanh(self.inner(x)), self.last)


ENDS: dict[str, tuple[Callable[[Tensor, nn.Linear], Tensor], str | None]] = {
    "a module": (lambda x, last: last(x), None),
    "a matrix product": (lambda x, last: x @ last.weight.T, None),
    "a matrix product and a bias": (lambda x, last: torch.matmul(x, last.weight.t()) + last.bias, None),
    "a function": (lambda x, last: nnf.linear(x, last.weight, bias=last.bias), None),
    "something behind it": (lambda x, last: last(x).tanh(), "something made of it"),
    "a shift that is no parameter": (lambda x, last: x @ last.weight.T + 1.0, "something made of it"),
    "a weight that is changed": (lambda x, last: nnf.linear(x, 2 * last.weight), "gives"),
    "a weight that is used twice": (lambda x, last: last(x.detach()) * 0 + last(x), "2 linear maps"),
    "a part of its outputs": (lambda x, last: last(x)[..., : VOCAB - 1], "outputs are not what its last linear map"),
    "no linear map": (lambda x, _: torch.cat([x, x[..., :1]], -1)[..., :VOCAB], "gives"),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_a_model_may_end(name: str) -> None:
    end, reason = ENDS[name]
    torch.manual_seed(0)
    model = Ended(end).double()
    data = (randn(3, 4, WIDTH), torch.randint(VOCAB - 1, (3, 4), generator=torch.Generator().manual_seed(0)))
    problem = hl.problem(model, data, nn.CrossEntropyLoss(label_smoothing=0.2), logits="chunked", verify=False)
    assert _is_fused(problem) is (reason is None)
    assert any(re.search(FUSED if reason is None else f"held as a whole: .*{reason}", n) for n in problem.notes)
    plain = hl.problem(model, data, nn.CrossEntropyLoss(label_smoothing=0.2), logits="whole", verify=False)
    names = [name for name in _parameters(plain) if "inner" in name]
    for one, other in zip(
        _products(problem, Linearisation, names), _products(plain, Linearisation, names), strict=True
    ):
        assert_same(one, other, name, 1e-10)


LOSSES: dict[str, Any] = {
    "weighted": nn.CrossEntropyLoss(weight=torch.arange(1.0, VOCAB + 1)),
    "summed": partial(nnf.cross_entropy, reduction="sum"),
    "some ignored": nn.CrossEntropyLoss(ignore_index=1),
    "by sequence": "cross_entropy",
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_pytorch_and_their_reductions(name: str) -> None:
    model, options = hugging_face.gpt2(), {"reduction": "sequence"} if name == "by sequence" else {}
    whole, chunked = (
        hl.problem(model, [{"input_ids": tokens(n, seed=n)} for n in (2, 1)], LOSSES[name], logits=how, **options)
        for how in ("whole", "chunked")
    )
    assert _is_fused(chunked)
    found, expected = (hl.hessian(problem, "layer0.attn.q", method="hvp") for problem in (chunked, whole))
    assert_same(found @ randn(found.shape[1]), expected @ randn(found.shape[1]), name, 1e-9)


def test_probabilities_as_targets_need_logits() -> None:
    data = (randn(3, 4, WIDTH), randn(3, 4, VOCAB).softmax(-1))
    model = Ended(ENDS["a module"][0]).double()
    problem = hl.problem(model, data, nn.CrossEntropyLoss(), logits="chunked")
    assert any("the loss is not known to be a cross-entropy of classes" in note for note in problem.notes)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(hl.InputError, match="logits: got 'none', expected"):
        hl.problem(networks.mlp(), pairs(2, length=None), "cross_entropy", logits="none")


def test_a_model_that_ends_otherwise_on_another_batch_has_its_logits_materialised() -> None:
    model = Ended(lambda x, last: last(x) if len(x) == 2 else x[..., :VOCAB]).double()
    batches = [(randn(n, 4, WIDTH), torch.zeros(n, 4, dtype=torch.long)) for n in (2, 3)]
    problem = hl.problem(model, batches, "cross_entropy", logits="chunked", verify=False)
    assert not _is_fused(problem) and any("held as a whole: on batch 1, " in note for note in problem.notes)
    expected = hl.problem(model, batches, "cross_entropy", logits="whole", verify=False)
    assert_same(problem.total_loss(), expected.total_loss())
    unchecked = hl.problem(model, batches, "cross_entropy", logits="chunked", check=False, verify=False)
    with pytest.raises(hl.InputError, match="give logits='whole'"):
        unchecked.total_loss()


# --- with the rest of the library ------------------------------------------------------------------------------------


def test_nothing_is_left_behind() -> None:
    before = torch._C._len_torch_function_stack()
    model = hugging_face.gpt2()
    problem = hl.problem(model, {"input_ids": tokens()}, logits="chunked")
    weights = {name: p for name, p in model.named_parameters()}
    hl.hessian(problem, "layer1.attn.q").to_dense()
    assert torch._C._len_torch_function_stack() == before
    assert all(weights[name] is p for name, p in model.named_parameters())
    assert model(tokens().long()).logits.shape == (*tokens().shape, VOCAB)


def test_another_loss_or_forward_forms_them_again() -> None:
    problem = MODELS["GPT-2"](logits="chunked", verify=False)
    other = replace(problem, loss=lambda outputs, _: outputs.square().mean())
    name = "transformer.h.1.ln_1.weight"
    assert Linearisation(other, other.data[0], [name]).gradient([name])[name].any()


def test_a_rehearsal_without_contents_knows_that_less_is_held() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 20_000))
    data, peaks = (torch.randn(1, 2_000, WIDTH), torch.zeros(1, 2_000, dtype=torch.long)), {}
    for how in ("whole", "chunked"):
        problem = hl.problem(model, data, "cross_entropy", logits=how, check=False)
        dry_run = DryRun(problem)
        peaks[how] = dry_run.peak([problem.blocks["0.weight"]], ("full",), 1)
        assert dry_run.on_meta_device
    assert peaks["whole"] > 2 * peaks["chunked"]


def test_closed_forms_of_the_last_layer_are_found_all_the_same() -> None:
    whole, chunked = (MODELS["GPT-2"](logits=how, verify=False) for how in ("whole", "chunked"))
    blocks = ["layer1.attn.v", "layer1.mlp.out"]
    found, expected = (hl.block_norms(problem, blocks, method="exact") for problem in (chunked, whole))
    for block in blocks:
        assert found[block, "full"].value == pytest.approx(expected[block, "full"].value, rel=1e-9)
