"""GPT-2-like networks at initialisation on the addition task: the sizes of their blocks, measured once a process.

Everything is float64. A network's weights, embeddings included, come from its seed; its data are always the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from hessianlab.claims.definition import seeds
from hessianlab.claims.quantities import slope
from hessianlab.experiments.statistics import geometric_mean
from hessianlens.models import LinearAttentionStack, Transformer
from hessianlens.models.adapters import problem
from hessianlens.network import block_norms, hessian
from hessianlens.operators import StructuredOperator
from hessianlens.parts import PARTS
from hessianlens.problems import Problem
from hessianlens.tasks import Addition

TASK = Addition(digits=5)
DATA_SEED = 1234

Key = tuple[int, str, str]
"""Layer, block ("q" or "v") and part ("full", "ggn" or "functional")."""


@dataclass(frozen=True)
class Network:
    """A decoder as in the paper's Appendix F, with the parts that claims vary.

    Attributes:
        layers: Number of blocks.
        d_model: Width; one head of the same width, an MLP four times as wide.
        attention: Activation of the attention.
        norm: None, "pre", "post", or "scale": as "pre", but tokens are only divided by their root mean square.
        mlp_activation: Activation of the MLP.
        sequences: Sequences of the addition task.
        stack: Chain of linear attention instead: no MLP, no skip connection, square loss.
    """

    layers: int = 1
    d_model: int = 32
    attention: str = "softmax"
    norm: str | None = None
    mlp_activation: str = "relu"
    sequences: int = 16
    stack: bool = False

    def problem(self, seed: int, sigma: float | None = None) -> Problem:
        """Model, data and loss; `sigma` is the standard deviation of the embeddings, None that of all weights."""
        data = TASK.batch(self.sequences, seed=DATA_SEED, carries="none")
        shared = {"seed": seed, "embedding_std": sigma, "dtype": torch.float64}
        if self.stack:
            return problem(LinearAttentionStack(self.layers, self.d_model, **shared), data, TASK.square)
        model = Transformer(
            layers=self.layers,
            d_model=self.d_model,
            attention=self.attention,
            norm="pre" if self.norm == "scale" else self.norm,
            mlp_activation=self.mlp_activation,
            seed=seed,
            embedding_std=sigma,
            dtype=torch.float64,
        )
        if self.norm == "scale":
            _only_scale(model)
        return problem(model, data, TASK.cross_entropy)

    def __str__(self) -> str:
        kind = "linear attention stack" if self.stack else f"{self.attention} attention, norm {self.norm or 'none'}"
        return f"{self.layers} layer(s), d = {self.d_model}, {kind}, {self.sequences} sequences"


def _only_scale(module: nn.Module) -> None:
    """Replace every LayerNorm by a division by the root mean square."""
    for name, child in module.named_children():
        if isinstance(child, nn.LayerNorm):
            setattr(module, name, nn.RMSNorm(child.normalized_shape, eps=child.eps, dtype=child.weight.dtype))
        else:
            _only_scale(child)


BLOCK = Network()
"""One block, small enough to be measured many times."""

PUBLISHED = Network(d_model=128, sequences=64)
"""One block of the published size (Figure 3)."""

HISTOGRAM = Network(d_model=16, sequences=64)
"""The network of Figures 1 and 4: d = 16, 64 sequences, every weight N(0, 0.64/16)."""

HISTOGRAM_SIGMA = 0.8 / math.sqrt(HISTOGRAM.d_model)
"""Standard deviation of its weights and embeddings."""


@cache
def norms(network: Network, seed: int, sigma: float | None, probes: int = 8) -> dict[Key, float]:
    """Frobenius norms of the query and value blocks of every layer: exact in the last, estimated in those below."""
    # A stack is homogeneous in sigma, so that the same probes give its exponents exactly.
    method = "hvp" if network.stack else "auto"
    blocks = ["layer*.attn.q", "layer*.attn.v"]
    found = block_norms(network.problem(seed, sigma), blocks, probes=probes, seed=seed, method=method)
    return {
        (layer, block, part): found[f"layer{layer}.attn.{block}", part].value
        for layer in range(network.layers)
        for block in "qv"
        for part in PARTS
    }


def mean_norms(network: Network, sigmas: Sequence[float], key: Key, repeats: int) -> list[float]:
    """Mean over `repeats` seeds of one block's norm at every sigma, as the paper averages."""
    return [float(np.mean([norms(network, seed, sigma)[key] for seed in seeds(repeats)])) for sigma in sigmas]


def growth(network: Network, sigmas: Sequence[float], key: Key, repeats: int) -> float:
    """The exponent of sigma in the mean norm, by least squares in log-log."""
    return slope(sigmas, mean_norms(network, sigmas, key, repeats))


def norm_ratio(network: Network, sigma: float | None, repeats: int) -> float:
    """Geometric mean over seeds of the value block's norm over the query block's, in the last layer."""
    last = network.layers - 1
    found = [norms(network, seed, sigma) for seed in seeds(repeats)]
    return geometric_mean([n[last, "v", "full"] / n[last, "q", "full"] for n in found])


@cache
def entries(network: Network, seed: int, sigma: float | None) -> dict[str, Tensor]:
    """The Hessian's query and value blocks of the last layer, dense."""
    at = network.problem(seed, sigma)
    return {block: last_block(network, at, block) for block in "qv"}


def last_block(network: Network, at: Problem, block: str) -> Tensor:
    """One of the two, not kept."""
    operator = hessian(at, f"layer{network.layers - 1}.attn.{block}", method="exact")
    assert isinstance(operator, StructuredOperator)
    return operator.to_dense()


def typical(network: Network, block: str, repeats: int, sigma: float | None = None) -> float:
    """Geometric mean over seeds of the median absolute entry of a block."""
    return geometric_mean([median_entry(network, seed, block, sigma) for seed in seeds(repeats)])


def median_entry(network: Network, seed: int, block: str, sigma: float | None = None) -> float:
    """The median absolute entry of a block."""
    return float(entries(network, seed, sigma)[block].abs().median())


def entry_ratio(network: Network, seed: int, sigma: float | None = None) -> float:
    """Median absolute entry of the value block over that of the query block."""
    return median_entry(network, seed, "v", sigma) / median_entry(network, seed, "q", sigma)


def histogram_overlap(network: Network, seed: int) -> float:
    """Shared area of the two blocks' histograms of log10 absolute entries, as drawn in Figures 1 and 4: 1 if equal."""
    found = entries(network, seed, None)
    logs = [found[b].abs().flatten().clamp_min(1e-300).log10().numpy() for b in "qv"]
    bins = np.arange(-14.0, 3.01, 0.25)
    shares = [np.histogram(log, bins)[0] / len(log) for log in logs]
    return float(np.minimum(*shares).sum())


def over_seeds(measure: Callable[[int], float], repeats: int) -> list[float]:
    """A figure at every seed."""
    return [measure(seed) for seed in seeds(repeats)]


def with_attention(network: Network, attention: str) -> Network:
    """The same network with another attention activation, and the same weights."""
    return replace(network, attention=attention)
