"""Live bytes: what is alive at once, not what was ever made; the same with and without contents."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hessianlens.memory import LiveBytes


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_dropped_is_not_counted(device: str) -> None:
    with LiveBytes() as live:
        for _ in range(5):
            made = torch.zeros(1000, device=device)
            del made
    assert (live.peak, live.made) == (4000, 5 * 4000)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_views_and_work_in_place_are_no_new_memory(device: str) -> None:
    with LiveBytes() as live:
        made = torch.zeros(10, 10, device=device)
        made[2:].add_(1).reshape(-1)
    assert live.peak == 400


def test_what_is_owned_is_not_counted() -> None:
    weight = torch.zeros(100, 100, device="meta")
    with LiveBytes([weight]) as live:
        weight[0].add_(1)
    assert live.peak == 0


def test_graphs_count_as_long_as_they_live_and_on_both_devices_alike() -> None:
    def peak(device: str) -> int:
        layers = nn.Sequential(*(nn.Sequential(nn.Linear(30, 30), nn.Tanh()) for _ in range(4))).to(device)
        with LiveBytes(layers.parameters()) as live:
            out = layers(torch.zeros(50, 30, device=device)).square().sum()
            first = torch.autograd.grad(out, list(layers.parameters()), create_graph=True)
            torch.autograd.grad([g.sum() for g in first], list(layers.parameters()))
        return live.peak

    assert peak("cpu") == pytest.approx(peak("meta"), rel=0.05)
    assert peak("meta") > 4 * 50 * 30 * 4


def test_a_question_about_contents_that_are_not_there_is_answered_with_yes() -> None:
    mask = torch.ones(3, device="meta")
    with LiveBytes():
        assert bool((mask == 1).all())
    with LiveBytes(), pytest.raises(RuntimeError, match="meta"):
        mask.sum().item()
