"""What heads look at: every quantity against its definition, row by row, and alarms at their thresholds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.network.head_health import ALARM_RULES, AttentionHealth, HeadHealth, attention_health

DOUBLE = torch.float64


def library_model(scale: float = 1.0, **options: Any) -> tuple[Any, hl.Problem]:
    torch.manual_seed(0)
    model = hl.models.Transformer(heads=2, d_model=8, d_mlp=16, dtype=DOUBLE, **options)
    for name, parameter in model.named_parameters():
        if name.endswith(("W_Q", "W_K")):
            parameter.data *= scale
    task = hl.tasks.Addition(digits=1)
    return model, hl.problem(model, [task.batch(3, seed=seed) for seed in (0, 1)], task.cross_entropy)


def by_definition(weights: Tensor, scores: Tensor, values: Tensor) -> dict[str, float]:
    """One head, ``[s, i, j]``, causal, one row after the other."""
    found: dict[str, list[float]] = {name: [] for name in ("effective", "sink", "jacobian", "mean", "spread", "skew")}
    entropies, equal, logits = [], [], []
    for A, T, V in zip(weights, scores, values, strict=True):
        for i in range(len(A)):
            p, v = A[i, : i + 1], V[: i + 1]
            logits.append(float(T[i, : i + 1].abs().max()))
            entropies.append(-float((p * p.log()).sum()))
            equal.append(math.log(i + 1))
            if i == 0:
                continue
            m = p @ v
            c = v - m
            J = torch.diag(p) - torch.outer(p, p)
            third = torch.einsum("j,ja,jb,jc->abc", p, c, c, c)
            for name, value in {
                "effective": math.exp(entropies[-1]),
                "sink": p[0],
                "jacobian": J.norm(),
                "mean": m.norm(),
                "spread": torch.einsum("j,ja,jb->ab", p, c, c).trace(),
                "skew": torch.einsum("aac->c", third).norm(),
            }.items():
                found[name].append(float(value))
    means = {name: sum(values) / len(values) for name, values in found.items()}
    entropy = sum(entropies) / len(entropies)
    return {**means, "entropy": entropy, "share": sum(entropies) / sum(equal), "largest_logit": max(logits)}


@pytest.mark.every_case
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_every_quantity_is_what_it_says(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, problem = library_model(scale)
    found = attention_health(problem)
    assert [head.name for head in found.heads] == ["layer0.attn.head0", "layer0.attn.head1"] and not found.left_out
    X: list[Tensor] = []
    attention = next(module for module in model.modules() if type(module).__name__ == "Attention")
    plain = type(attention).weights
    monkeypatch.setattr(type(attention), "weights", lambda self, x: X.append(x.detach()) or plain(self, x))
    for batch in problem.data:
        problem.forward(problem.params, batch)
    monkeypatch.undo()
    tokens = torch.cat(X)
    weights, scores, values = attention.weights(tokens), attention.scores(tokens), attention._mapped("V", tokens)
    for h, head in enumerate(found.heads):
        expected = by_definition(*(t[:, h].detach() for t in (weights, scores, values)))
        for name, value in expected.items():
            assert getattr(head, name) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_hugging_face_models_are_seen() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=4, n_embd=16, vocab_size=20, n_positions=12)
    model = transformers.GPT2LMHeadModel(config).double()
    found = hl.attention_health(hl.problem(model, {"input_ids": torch.randint(20, (2, 12))}))
    assert [len([h for h in found.heads if h.layer == f"layer{k}"]) for k in (0, 1)] == [4, 4]
    assert all(0 < h.share <= 1 and 1 <= h.effective <= 12 for h in found.heads)
    assert found.layers["layer1"].entropy == pytest.approx(sum(h.entropy for h in found.heads[4:]) / 4)


def test_weights_that_are_no_distribution_have_no_entropy() -> None:
    _, problem = library_model(attention="sigmoid")
    found = attention_health(problem)
    assert all(math.isnan(head.entropy) and math.isnan(head.jacobian) for head in found.heads)
    assert found.layers == {} and "no distribution" in found.left_out[0] and found.alarms() == []


def test_a_model_without_attention_says_so() -> None:
    problem = hl.problem(nn.Linear(2, 1), (torch.ones(3, 2), torch.ones(3, 1)), "square")
    found = attention_health(problem)
    assert found.heads == () and "none was seen" in found.left_out[0]


HEALTHY = HeadHealth("layer2", 3, 2.0, 0.7, 6.0, 4.0, 0.2, 0.0, 0.3, 0.3, 1.0, 1.0, 0.5)


@pytest.mark.every_case
@pytest.mark.parametrize("rule", ALARM_RULES, ids=lambda rule: rule.kind)
def test_alarms_at_their_thresholds(rule: Any) -> None:
    assert AttentionHealth([HEALTHY]).alarms() == []
    factor = 1.01 if rule.above else 0.99
    inside, beyond = (replace(HEALTHY, **{rule.quantity: rule.threshold * f}) for f in (1 / factor, factor))
    assert AttentionHealth([inside]).alarms() == []
    (alarm,) = AttentionHealth([HEALTHY, beyond]).alarms()
    assert alarm.rule is rule and "layer2.attn.head3" in str(alarm) and rule.remedy in str(alarm)


def test_sharp_attention_raises_alarms() -> None:
    assert attention_health(library_model()[1]).alarms() == []
    kinds = {alarm.rule.kind for alarm in attention_health(library_model(1e3)[1]).alarms()}
    assert {"large logits", "entropy collapse"} <= kinds


def test_it_can_be_looked_at() -> None:
    found = hl.attention_health(library_model()[1])
    assert len(found.rows()) == 2 and "layer0.attn.head1" in found._repr_html_()
    assert found.grid("sink", "weight on the first token").svg().count("<rect") >= 2
