"""Networks whose last attention layer has a closed form, with losses and data of every kind it must take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.problems import Problem
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, pairs, tokens
from tests.variants import randn, sharpened

WEIGHTS = ("q", "k", "v", "o")
BIASES = ("q.bias", "k.bias", "v.bias")


@dataclass(frozen=True)
class Network:
    """A model with data and a loss; `roles` are the blocks of its last attention layer that the closed form knows."""

    model: Callable[[], nn.Module]
    data: Callable[[], Any]
    loss: Any = None
    layer: int = 0
    roles: tuple[str, ...] = (*WEIGHTS, *BIASES)

    def problem(self, **options: Any) -> Problem:
        return hl.problem(self.model(), self.data(), self.loss, **options)

    @property
    def blocks(self) -> list[str]:
        return [f"layer{self.layer}.attn.{role}" for role in self.roles]


@cache
def problem_of(name: str) -> Problem:
    return NETWORKS[name].problem()


@cache
def products_of(name: str, part: str) -> dict[tuple[str, str], Tensor]:
    """Every block by exact products, the other witness."""
    problem = problem_of(name)
    blocks = [block.name for block in problem.select(NETWORKS[name].blocks)]
    op = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}[part](problem, blocks, method="hvp")
    sizes = op._out_shape_flat
    rows = (op @ torch.eye(op.shape[1], dtype=op.dtype)).split(sizes)
    return {
        (r, c): piece
        for r, row in zip(blocks, rows, strict=True)
        for c, piece in zip(blocks, row.split(sizes, 1), strict=True)
    }


def _cubic(outputs: Tensor, batch: Any) -> Tensor:
    """A user's loss of every position alone."""
    return (outputs.pow(3) + 0.3 * outputs.exp()).mean()


def _left_padded() -> dict[str, Tensor]:
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, :2] = 0
    return {"input_ids": tokens(), "attention_mask": mask}


def _toy(data: Callable[[], Any] = lambda: pairs(2), loss: Any = "cross_entropy", **options: Any) -> Network:
    roles = WEIGHTS if options.get("attention_bias") is False else (*WEIGHTS, *BIASES)
    return Network(lambda: networks.toy(**options), data, loss, options.get("layers", 1) - 1, roles)


NETWORKS = {
    "softmax": _toy(),
    "two layers, two heads, pre-norm": _toy(layers=2, heads=2, norm="pre"),
    "post-norm, sigmoid": _toy(norm="post", attention="sigmoid"),
    "two layers, two heads, linear, several batches": _toy(lambda: pairs(2, 1), layers=2, heads=2, attention="linear"),
    "two heads, post-norm, square": _toy(
        lambda: [(tokens(2), randn(2, LENGTH, VOCAB)), (tokens(1, 3), randn(1, 3, VOCAB))],
        "square",
        heads=2,
        norm="post",
    ),
    "no biases, no causal mask, wide heads": _toy(
        lambda: {"tokens": tokens()}, _cubic, heads=2, d_head=3, attention_bias=False, causal=False, temperature=0.7
    ),
    "no MLP, user activation, scaled residual": _toy(attention=sharpened, mlp=False, residual_scale=0.5),
    "ReLU, no norm": _toy(mlp_activation="relu"),
    "GPT-2": Network(hugging_face.gpt2, lambda: {"input_ids": tokens()}, layer=1),
    "GPT-2, padded, several batches": Network(
        hugging_face.gpt2, lambda: [hugging_face.padded(3), hugging_face.padded(1, 3, seed=8)], layer=1
    ),
    "GPT-2, padded on the left": Network(lambda: hugging_face.gpt2(n_layer=1), _left_padded),
    "nanoGPT": Network(networks.nano_gpt, lambda: pairs(2), "cross_entropy", layer=1),
    "nanoGPT without biases": Network(
        lambda: networks.nano_gpt(layers=1, bias=False), lambda: pairs(1, 2), "cross_entropy", roles=WEIGHTS
    ),
}
