"""Everything that can be looked at, small; built when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

import hessianlens as hl
from hessianlens.monitor import History, Reading, Record
from hessianlens.operators import HybridOperator
from hessianlens.operators.hybrid import ClosedFormPlan
from hessianlens.spectra import SpectralDensity, VectorEstimate

EVIL = "<b>&\"'layer0"
"""A name that a page must not take for markup."""


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@cache
def layer() -> hl.SelfAttention:
    return hl.SelfAttention.random(3, 2, seed=0, dtype=torch.float64)


@cache
def hessian() -> Any:
    X, Y = _numbers(2, 2, 4, 3)
    return hl.attention_hessian(layer(), X, hl.SquareLoss(Y))


@cache
def problem() -> Any:
    model = hl.models.Transformer(layers=2, d_model=4, d_mlp=8, heads=2, dtype=torch.float64)
    task = hl.tasks.Addition(digits=1)
    return hl.problem(model, task.batch(3, seed=0), task.cross_entropy)


@cache
def measured() -> Any:
    return hl.measure(problem(), "layer*.attn.?", probes=3, budget=None, progress=False)


@cache
def norms() -> Any:
    sizes = {"q": 1.0, EVIL: 20.0}
    sampled = {name: hl.spectra.Estimate(size, 0.1 * size, 4, 0, skewed=True) for name, size in sizes.items()}
    found = {**sampled, "k": hl.spectra.Estimate.exactly(0.0)}
    return hl.network.BlockNorms({(name, part): norm for name, norm in found.items() for part in ("full", "ggn")})


def spectrum() -> SpectralDensity:
    nodes = torch.tensor([[-1.0, 0.5, 2.0], [-0.9, 0.4, 2.1]], dtype=torch.float64)
    weights, residuals = torch.full_like(nodes, 1 / 3), torch.full_like(nodes, 0.1)
    return SpectralDensity(nodes, weights, 9, 2, 0, "lanczos", residuals=residuals)


def pair_norms() -> Any:
    names = ("q", EVIL, "v")
    sizes = {(r, c): 1.0 + i * j for i, r in enumerate(names) for j, c in enumerate(names)}
    return hl.network.PairNorms(
        names, "full", {pair: hl.spectra.Estimate.exactly(size) for pair, size in sizes.items()}
    )


def diagonal() -> VectorEstimate:
    return VectorEstimate(torch.tensor([2.0, -1.0, 0.5]), torch.tensor([0.1, 0.2, 0.1]), 4, 0, "hutchinson")


def hybrid() -> HybridOperator:
    block = hessian().full["Q", "Q"]
    return HybridOperator(block, lambda: ClosedFormPlan("it is known in two ways", lambda: block))


def watched() -> History:
    """A run with everything that a page may show: blocks, attention, an edge, gaps, notes, numbers far apart."""
    records = []
    for step in range(1, 400, 20):
        edge = {} if step < 40 else {"sharpness": Reading.of(1e3 * step), "edge": Reading.of(9e5)}
        numbers = {
            "model": {
                "probe_loss": Reading.of(3 - step / 200),
                "top": Reading(step + 1.0, 0.9 * step, 1.2 * step),
                "negative_mass": Reading(0.2, 0.1, 0.3),
                **edge,
            },
            **{f"layer{k}.attn.q": {"top": Reading.of(10.0**-k * step)} for k in range(8)},
            "layer0.attn": {"entropy_share": Reading.of(1 / step), "saturated": Reading.of(0.0)},
        }
        notes = ("no stability threshold: Adam has not seen a gradient of it yet",) if step < 40 else ()
        records.append(Record(step, numbers, {"lr": 1e-3}, 10.0 * step, 1.0, 30, notes))
    return History(records)


SHOWN: dict[str, Callable[[], Any]] = {
    "layer": layer,
    "single": lambda: hl.SingleMatrixAttention(_numbers(3, 3), _numbers(3, 2), causal=True),
    "cross-attention": lambda: hl.attention.CrossAttention(_numbers(3, 2), _numbers(4, 2), _numbers(4, 2)),
    "factored": lambda: hl.attention.FactoredValueAttention(
        _numbers(4, 2), _numbers(4, 2), _numbers(4, 2), _numbers(2, 3)
    ),
    "heads": lambda: hl.MultiHeadAttention([layer(), layer()]),
    "head state": lambda: hessian().heads[0],
    "attention hessian": hessian,
    "block grid": lambda: hessian().functional,
    "part of a grid": lambda: hessian().full[["Q", "K"], ["V"]],
    "token sum": lambda: hessian().full["Q", "K"],
    "difference": lambda: hessian().full["Q", "Q"] - hessian().outer["Q", "Q"],
    "matrix-free": lambda: hl.hessian(problem(), "embed", method="hvp"),
    "combination": lambda: 2 * hl.ggn(problem(), "layer0.attn.q", method="hvp"),
    "closed form in a network": lambda: hl.hessian(problem(), "layer1.attn.q"),
    "hybrid": hybrid,
    "block norms": norms,
    "parts of a block": lambda: norms()[EVIL],
    "pair norms": pair_norms,
    "attention health": lambda: hl.attention_health(problem()),
    "estimate": lambda: hl.spectra.Estimate(3.2, 0.04, 20, 0, skewed=True),
    "one probe": lambda: hl.spectra.Estimate(3.2, float("inf"), 1, 0, skewed=True),
    "exact": lambda: hl.spectra.Estimate.exactly(-0.5),
    "diagonal": diagonal,
    "eigenvalues": lambda: hl.eigenvalues(torch.diag(torch.arange(-2.0, 4.0)).double(), 2, "both"),
    "density": spectrum,
    "curve": lambda: spectrum().on_grid(40),
    "distribution": lambda: spectrum().cdf(torch.linspace(-2, 3, 20).double()),
    "inertia": lambda: hl.inertia(spectrum()),
    "divergences": lambda: hl.heterogeneity({"q": spectrum(), EVIL: spectrum(), "v": spectrum()}),
    "ratios": lambda: hl.heterogeneity(
        {"q": hl.spectra.Estimate.exactly(1.0), EVIL: hl.spectra.Estimate.exactly(50.0)}, "norm"
    ),
    "pairs": lambda: hl.layer.eigenvalue_pairs(hessian()),
    "forecast": lambda: hl.network.Forecast(100, 2**20, 2**18, 4, 2**32, 2**28, 2**16),
    "problem": problem,
    "measured": measured,
    "comparison": lambda: measured().compare(measured()),
    "run": watched,
}
"""By name, a function that makes one."""
