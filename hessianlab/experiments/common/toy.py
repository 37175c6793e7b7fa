"""The literature's one-block Transformer on 5-digit addition, from a cell's parameters."""

from __future__ import annotations

import torch

from hessianlens.models import Transformer
from hessianlens.models.adapters import problem
from hessianlens.problems import Problem
from hessianlens.tasks import Addition

ATTENTION_BLOCKS = {"query": "layer0.attn.q", "key": "layer0.attn.k", "value": "layer0.attn.v"}
"""Blocks of the attention weights, by the name readers know."""


def toy_problem(
    d_model: int, attention: str, seed: int, sequences: int, data_seed: int, carries: str, batches: int = 1
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
    """
    model = Transformer(1, d_model, attention=attention, attention_bias=False, seed=seed, dtype=torch.float64)
    task = Addition()
    return problem(model, task.batches(batches, sequences, data_seed, carries), task.cross_entropy)
