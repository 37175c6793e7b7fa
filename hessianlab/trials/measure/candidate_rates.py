"""Learning rates that are tried: one for all weights, or one a block of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessianlab.results import Parameters
from hessianlab.training import Ensemble

GROUPS = ("embedding", "query and key", "value and output", "mlp", "unembedding")
"""Blocks of the Hessian that have a learning rate of their own."""

_WIDTH = 1.0
"""Rates of blocks are searched within so many powers of ten around the rate of the candidate, up and down."""

_SEARCH_SEED = 4321


def group_of(name: str) -> int:
    """The block of a parameter, by its name; norms go with what they feed.

    >>> [GROUPS[group_of(n)] for n in ("token_embedding", "blocks.0.attention.W_K", "blocks.1.norm2.weight")]
    ['embedding', 'query and key', 'mlp']
    """
    if "embedding" in name:
        return 0
    if name.rpartition(".")[2] in ("W_V", "W_O", "b_V", "b_O"):
        return 2
    if "attention" in name or "norm1" in name or "log_gain" in name:
        return 1
    return 3 if "blocks" in name else 4


def group_index(ensemble: Ensemble) -> Tensor:
    """The block of every column of the weights."""
    found = torch.empty(ensemble.weights.shape[1], dtype=torch.int64)
    for name, columns in ensemble.columns().items():
        found[columns] = group_of(name)
    return found


def candidates(parameters: Parameters) -> np.ndarray:
    """Rates of the blocks, (candidates, blocks): all blocks alike, or drawn around a rate each (a random search).

    A search has as many candidates as a grid of rates: the same budget. Its first is the middle of the grid with equal
    rates, so that it can also find that blocks do not need their own.
    """
    asked: Any = parameters
    low, high = asked[f"{asked['optimiser']}_low"], asked[f"{asked['optimiser']}_high"]
    grid = np.linspace(low, high, asked["rates"])
    powers = np.repeat(grid[:, None], len(GROUPS), 1)
    if asked["block_rates"] == "searched":
        drawn = np.random.default_rng(_SEARCH_SEED).uniform(-_WIDTH, _WIDTH, powers.shape)
        drawn[len(grid) // 2] = 0.0
        powers = powers + drawn
    found: np.ndarray = 10.0**powers
    return found


def rates_by_curvature(curvature: Mapping[str, float]) -> np.ndarray:
    """Factors of the rates of the blocks, inverse to the curvature of each, with geometric mean 1.

    >>> rates_by_curvature({name: 4.0 if name == "mlp" else 1.0 for name in GROUPS}).round(2)
    array([1.32, 1.32, 1.32, 0.33, 1.32])
    """
    logs = -np.log([max(curvature[name], 1e-12) for name in GROUPS])
    found: np.ndarray = np.exp(logs - logs.mean())
    return found
