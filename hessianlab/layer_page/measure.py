"""Compute every number of the page, step by step, without drawing anything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from hessianlab.layer_page import blocks, growth_curves, one_hot, query_key, witnesses
from hessianlab.layer_page.config import LayerConfig
from hessianlab.layer_page.facts import LayerFacts, Step
from hessianlab.layer_page.setting import Setting, build
from hessianlab.results import collect
from hessianlens.errors import expect
from hessianlens.parts import LAYER_PARTS
from hessianlens.state_guard import ThreadCount, restores_state

_PRINTED = (("full", "Q", "Q"), ("full", "Q", "K"), ("full", "V", "Q"), ("full", "V", "V"), ("functional", "Q", "Q"))


_FEW_WEIGHTS = 1024


def _threads_for(config: LayerConfig) -> ThreadCount:
    """One thread for small layers: they gain nothing from more, and lose much when other programs hold the cores."""
    return ThreadCount(1 if config.weights <= _FEW_WEIGHTS else torch.get_num_threads())


def _scalars(setting: Setting) -> dict[str, Any]:
    loss, targets = setting.loss.value(setting.layer(setting.X)), setting.loss.targets
    size = float(setting.hessian.full.frobenius_norm())
    named = f"{setting.config.activation} attention of temperature {setting.config.temperature:g}"
    expect(math.isfinite(float(loss) + size), f"activation: {named} overflows on these tokens; raise the temperature.")
    expect(size > 0, f"activation: {named} is zero on these tokens, and so is its Hessian; change the seed or length.")
    return {"loss": float(loss), "mean_square_target": float(targets.square().mean())}


def _agreements(setting: Setting) -> dict[str, Any]:
    return {"agreements": tuple(witnesses.agreement(setting, part) for part in LAYER_PARTS)}


def _blocks(setting: Setting) -> dict[str, Any]:
    dense = blocks.dense_parts(setting)
    return {
        "blocks": blocks.block_norms(setting),
        "curvatures": blocks.curvatures(setting, dense),
        "matrices": {part: matrix.numpy() for part, matrix in dense.items()},
    }


def _algebra(setting: Setting) -> dict[str, Any]:
    H = setting.hessian
    printed = {
        f'print(H.{part}["{row}", "{column}"])': str(H.part(part)[row, column]) for part, row, column in _PRINTED
    }
    return {"algebra": printed, "provenance": collect()}


STEPS: dict[str, Callable[[Setting], dict[str, Any]]] = {
    "Layer and loss": _scalars,
    "Three witnesses": _agreements,
    "Blocks and spectra": _blocks,
    "Growth with the token scale": lambda s: {"growth": growth_curves.growth(s)},
    "Eigenvalue pairs": lambda s: {"pairs": query_key.pairs(s)},
    "Rank": lambda s: {"ranks": query_key.ranks(s)},
    "Attention sharpness": lambda s: {"sharpness": one_hot.sharpness(s)},
    "Printed algebra": _algebra,
}
"""Title of every step, and the fields of `LayerFacts` it computes."""


@restores_state
def measure_layer(config: LayerConfig, on_step: Callable[[str], None] = lambda title: None) -> LayerFacts:
    """Compute all facts of a layer.

    Args:
        config: What to look at.
        on_step: Called with the title of each step before it starts.

    >>> facts = measure_layer(LayerConfig(length=4, d_model=3, d_k=2))
    >>> facts.witnesses_agree
    True
    """
    setting = build(config)
    found: dict[str, Any] = {}
    steps = []
    with _threads_for(config):
        for title, step in STEPS.items():
            on_step(title)
            start = time.perf_counter()
            found |= step(setting)
            steps.append(Step(title, time.perf_counter() - start))
    return LayerFacts(config=config, steps=tuple(steps), **found)
