"""Long sequences: what does not fit is refused before it runs, and a draft is made without running anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.memory import LiveBytes
from hessianlens.models.adapters import draft_problem
from hessianlens.models.adapters.trial_run import run_dry
from hessianlens.models.adapters.unembedding import FusedLossCall
from tests.curvature.networks import tokens

LONG = 32768


def gpt2(attention: str, positions: int = LONG, vocabulary: int = 5) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": positions, "vocab_size": vocabulary}
    return GPT2LMHeadModel(GPT2Config(**sizes, attn_implementation=attention, bos_token_id=0, eos_token_id=0))


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing with contents goes through a linear map of GPT-2."""
    from transformers.pytorch_utils import Conv1D

    right = Conv1D.forward

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        assert x.is_meta, "the model was run"
        return right(self, x)

    monkeypatch.setattr(Conv1D, "forward", forward)
    yield


def test_a_batch_that_does_not_fit_is_refused_before_it_runs(untouched: None) -> None:
    with pytest.raises(hl.InputError) as refused:
        hl.problem(gpt2("eager"), {"input_ids": tokens(64, LONG)}, dtype=torch.float64)
    said = str(refused.value)
    assert said.startswith(f"data: got a batch of shapes (64, {LONG}), whose forward pass alone holds ")
    assert "expected at most" in said and "take shorter sequences or fewer of them per batch" in said
    assert "attn_implementation='sdpa'" in said


def test_a_draft_runs_nothing(untouched: None) -> None:
    data = {"input_ids": tokens(8, LONG)}
    draft = draft_problem(gpt2("sdpa", vocabulary=50257), data, dtype=torch.float64)
    assert isinstance(draft.forward, FusedLossCall)
    told = "\n".join(draft.notes)
    assert f"logits (8 x {LONG} x 50257" in told and "in chunks that keep no matrix of L x L" in told
    assert hl.network.forecast(draft, draft.select("layer0.attn.q")).sequences == 8


@pytest.mark.long
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_draft_says_what_the_problem_says(attention: str) -> None:
    model, data = gpt2(attention, 512, 40000), {"input_ids": tokens(1, 512)}
    draft, made = draft_problem(model, data), hl.problem(model, data, verify=False)
    assert draft.notes == made.notes and type(draft.forward) is type(made.forward)
    assert list(draft.blocks) == list(made.blocks) and draft.reduction == made.reduction


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_dry_run_holds_what_a_run_holds(attention: str) -> None:
    model = gpt2(attention, 600)
    made = hl.problem(model, {"input_ids": tokens(2, 600)}, dtype=torch.float64, attention="auto", check=False)
    found = run_dry(model, made, made.data[0], with_targets=False)
    with made.scope(), torch.no_grad(), LiveBytes([*made.params.values(), made.data[0]["input_ids"]]) as live:
        outputs = made.forward(made.params, made.data[0])
    assert found is not None and found.seen.outputs.shape == outputs.shape
    assert found.peak_bytes == pytest.approx(live.peak, rel=0.25)


def test_a_model_that_asks_for_contents_has_no_dry_run() -> None:
    class Asking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(x.sum())

    made = hl.problem(Asking(3, 2), (torch.ones(4, 3), torch.ones(4, 2)), "square")
    assert run_dry(made.source, made, made.data[0], with_targets=False) is None  # type: ignore[arg-type]
