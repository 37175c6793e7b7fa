"""Alarms in real runs: they come early where scores are not scaled and rates are high, and not in a run that learns."""

from __future__ import annotations

import math

import pytest
import torch

import hessianlens as hl

STEPS = 100


def trained(seed: int, lr: float, scaled: bool) -> tuple[float, dict[str, int]]:
    """The mean loss of the last steps, and the step at which each kind of alarm was first raised."""
    temperature = 1.0 if scaled else 1 / math.sqrt(16)
    model = hl.models.Transformer(
        layers=2, heads=2, d_model=32, d_mlp=64, norm="pre", temperature=temperature, seed=seed
    )
    task = hl.tasks.Addition(digits=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    problem = hl.problem(model, task.batch(16, seed=10**6 + seed), task.cross_entropy)
    monitor = hl.Monitor(problem, every=10, overhead=None, quantities=("heads",))
    losses: list[float] = []
    first: dict[str, int] = {}
    for step in range(STEPS):
        batch = task.batch(32, seed=1000 * seed + step)
        loss = task.cross_entropy(model(batch["tokens"]), batch)
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor.step(step) is not None:
            for alarm in monitor.alarms:
                first.setdefault(alarm.rule.kind, step)
    return sum(losses[-20:]) / 20, first


@pytest.mark.long
def test_alarms_come_before_the_loss_shows_it_and_not_in_healthy_runs() -> None:
    healthy = [trained(seed, 3e-3, scaled=True) for seed in range(2)]
    failing = [trained(seed, 3e-2, scaled=False) for seed in range(2)]
    assert [first for _, first in healthy] == [{}] * 2
    for (good, _), (bad, first) in zip(healthy, failing, strict=True):
        assert bad > 1.2 * good
        assert first["large logits"] <= 20 and first["entropy collapse"] <= 40
