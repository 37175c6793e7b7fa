"""Layers and models that several experiments measure."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlab.experiments.statistics import EDGES, entry_sizes, log_histogram
from hessianlab.results import Measurement, Row
from hessianlens.attention import SelfAttention
from hessianlens.errors import InputError, Refusal
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss
from hessianlens.models import Transformer
from hessianlens.models.adapters import problem
from hessianlens.network.routes.last_attention.exact import ExactAttention, exact_attention
from hessianlens.parts import LAYER_PARTS, part_name
from hessianlens.problems import Problem
from hessianlens.tasks import Addition


@dataclass(frozen=True, eq=False)
class LoneLayer:
    """One sequence through one layer, under the mean square loss."""

    layer: SelfAttention
    X: Tensor
    Y: Tensor

    @property
    def loss(self) -> SquareLoss:
        """Mean over every entry of F - Y, squared."""
        return SquareLoss(self.Y)

    def hessian(self) -> AttentionHessian:
        """The closed form."""
        return attention_hessian(self.layer, self.X, self.loss)


def lone_layer(
    d_model: int,
    d_k: int,
    length: int,
    seed: int,
    *,
    activation: str = "softmax",
    causal: bool = False,
    weight_scale: float = 1.0,
    token_std: float = 1.0,
) -> LoneLayer:
    """Weights from N(0, weight_scale^2 / d_model), tokens from N(0, token_std^2), targets from N(0, 1).

    Weights depend on `seed` alone; tokens and targets on `seed + 1` alone.
    """
    layer = SelfAttention.random(d_model, d_k, seed=seed, dtype=torch.float64, activation=activation, causal=causal)
    layer = layer.with_parameters({name: weight_scale * w for name, w in layer.parameters.items()})
    generator = torch.Generator().manual_seed(seed + 1)
    X, Y = torch.randn(2, length, d_model, generator=generator, dtype=torch.float64)
    return LoneLayer(layer, token_std * X, Y)


ATTENTION_BLOCKS = {"query": "layer0.attn.q", "key": "layer0.attn.k", "value": "layer0.attn.v"}
"""Blocks of the attention weights, by the name readers know."""


def toy_problem(
    d_model: int,
    attention: str,
    seed: int,
    sequences: int,
    data_seed: int,
    carries: str,
    batches: int = 1,
    embedding_std: float | None = None,
) -> Problem:
    """One block and one head in double precision, without attention biases, and the cross-entropy of the answer.

    Args:
        d_model: Width of the residual stream, of queries and of keys.
        attention: Name of the attention activation.
        seed: Of the weights, all from N(0, 0.64 / d_model), the embeddings too.
        sequences: Sequences of a batch.
        data_seed: Of the data.
        carries: Kind of the batches, as in `hessianlens.tasks.Addition`.
        batches: Number of batches; the loss is the mean over all of them.
        embedding_std: Standard deviation of the same embeddings; None for that of the other weights.
    """
    model = Transformer(
        1,
        d_model,
        attention=attention,
        attention_bias=False,
        seed=seed,
        embedding_std=embedding_std,
        dtype=torch.float64,
    )
    task = Addition()
    return problem(model, task.batches(batches, sequences, data_seed, carries), task.cross_entropy)


def _closed_form(problem: Problem) -> ExactAttention:
    exact = exact_attention(problem)
    if isinstance(exact, Refusal):
        raise InputError(
            f"problem: got a model without closed form ({exact}), expected one such as models.Transformer."
        )
    return exact


def diagonal_norms(problem: Problem) -> dict[str, float]:
    """Frobenius norm of the full block of each attention weight, by the name readers know."""
    exact = _closed_form(problem)
    return {name: exact.norms(problem.blocks[place], ("full",))["full"] for name, place in ATTENTION_BLOCKS.items()}


def diagonal_blocks(problem: Problem) -> Measurement:
    """One row per block and part, and the histogram of each full block under its own name, bins under ``edges``."""
    exact = _closed_form(problem)
    rows: list[Row] = []
    arrays = {"edges": EDGES}
    for name, place in ATTENTION_BLOCKS.items():
        block = problem.blocks[place]
        for part in LAYER_PARTS:
            matrix = exact.operator(part_name(part), block, block).to_dense()
            rows.append({"block": name, "part": part, **entry_sizes(matrix)})
            if part == "full":
                arrays[name] = log_histogram(matrix)
    return Measurement(tuple(rows), arrays)
