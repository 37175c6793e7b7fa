"""What a network of many layers is asked in `scaling`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn.functional import cross_entropy

import hessianlens as hl
from benchmarks.harness import Run
from hessianlens.problems import Problem

PROBES = 4
"""Of a trace, and of the norm of every block."""


@dataclass(frozen=True)
class Stack:
    """Sizes of a network like GPT-2; large enough for products to leave autograd's graph, unless it is for tests."""

    layers: int
    width: int = 128
    sequences: int = 8
    length: int = 64
    vocabulary: int = 64


def runs_of_stack(size: Stack) -> dict[str, Run]:
    """One gradient of the first query block; a product with it, built; its sampled trace; a norm in every layer.

    The trace and the norms are from scratch, but for the verification of the model, which is no part of the growth.
    """
    problem = _problem(size)
    names = [f"layer{n}.attn.q" for n in range(size.layers)]
    first = problem.blocks[names[0]].parameter
    built = hl.hessian(problem, names[0], method="hvp")
    v = torch.ones(built.shape[1], dtype=problem.dtype)
    for _ in range(3):  # whichever way products go, it is settled then
        built @ v

    def norms() -> object:
        return hl.block_norms(replace(problem), names, ["full"], probes=PROBES, method="probes")

    def trace() -> object:
        return hl.trace(hl.hessian(replace(problem), names[0], method="hvp"), probes=PROBES)

    return {"gradient": lambda: _gradient(problem, first), "norms": norms, "product": lambda: built @ v, "trace": trace}


def _problem(size: Stack) -> Problem:
    model = hl.models.Transformer(
        layers=size.layers,
        d_model=size.width,
        heads=4,
        d_mlp=4 * size.width,
        vocab=size.vocabulary,
        context=size.length,
        norm="pre",
        mlp_activation="gelu",
        dtype=torch.float64,
    )
    shape, generator = (size.sequences, size.length), torch.Generator().manual_seed(0)
    tokens = torch.randint(size.vocabulary, shape, generator=generator)

    def loss(logits: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())

    return hl.problem(model, {"tokens": tokens}, loss, check=False, verify=False)


def _gradient(problem: Problem, name: str) -> torch.Tensor:
    leaf = problem.params[name].detach().requires_grad_()
    with problem.scope():
        outputs = problem.forward({**problem.params, name: leaf}, problem.data[0])
        return torch.autograd.grad(problem.loss(outputs, problem.data[0]), leaf)[0]
