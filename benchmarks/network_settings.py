"""What is asked about whole networks, and the competitors that answer it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import hessianlens as hl
from benchmarks.harness import Run
from benchmarks.last_layer import last_layer_problem, sampling_factor
from benchmarks.network_peers import (
    curvlinops_operator,
    eigenthings_product,
    gradient,
    kept_graph_product,
    pyhessian_product,
    shared_probes,
)
from hessianlens.problems import Problem

PROBES = 20
GRADIENT = "one gradient"
SHARED = f"shared-probe autograd, {PROBES} probes a block"
Q, V = "layer0.attn.q", "layer0.attn.v"


@dataclass(frozen=True)
class Scaled:
    """A competitor of which only a part is run, and how often that part occurs in the whole."""

    run: Run
    times: float = 1


Setting = Callable[[bool], tuple[dict[str, Scaled], dict[str, object]]]
"""Competitors and sizes, for a tiny model or the one to be measured."""


def addition(layers: int, tiny: bool = False) -> tuple[hl.models.Transformer, hl.tasks.Addition, dict[str, Tensor]]:
    """The literature's setting: d = 128, one head, no norm, 64 sequences of the addition task, float32."""
    width, sequences = (16, 4) if tiny else (128, 64)
    model, task = hl.models.Transformer(layers=layers, d_model=width, seed=0), hl.tasks.Addition()
    return model, task, task.batch(sequences, seed=1234, carries="none")


def exact_norms(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
    """Six norms of one layer: ours exact; curvlinops with 20 probes each, H - G by a product of each."""
    model, task, batch = addition(1, tiny)
    problem = hl.problem(model, batch, task.cross_entropy)
    runs = {"ours, exact": Scaled(lambda: hl.block_norms(_afresh(problem), [Q, V]))}
    runs |= _sampled(model, task, batch)
    return runs, {"layers": 1, "d": model.W_U.shape[0], "sequences": len(batch["tokens"]), "norms": 6}


def layer_norms(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
    """The same six norms of every layer of a three-layer model, 20 probes each; ours also without closed forms."""
    model, task, batch = addition(3, tiny)
    names = [f"layer{n}.attn.{x}" for n in range(3) for x in "qv"]
    problem = hl.problem(model, batch, task.cross_entropy)

    def ours(method: str) -> Run:
        return lambda: hl.block_norms(_afresh(problem), names, probes=PROBES, method=method)

    runs = {"ours": Scaled(ours("auto")), "ours, products alone": Scaled(ours("hvp"))}
    runs |= _sampled(model, task, batch)
    return runs, {"layers": 3, "d": model.W_U.shape[0], "sequences": len(batch["tokens"]), "norms": 18}


def _sampled(model: hl.models.Transformer, task: hl.tasks.Addition, batch: dict[str, Tensor]) -> dict[str, Scaled]:
    """The norms of all query and value blocks by probes: with curvlinops, and with three lines of autograd."""
    runs = {}
    for kind in ("hessian", "ggn"):
        ops = [curvlinops_operator(kind, model, batch, b.attention, w) for b in model.blocks for w in ("W_Q", "W_V")]
        runs[f"curvlinops, {kind} products"] = Scaled(_each_once(ops), 2 * PROBES)
    weights = [getattr(b.attention, w) for b in model.blocks for w in ("W_Q", "W_V")]
    generator = torch.Generator().manual_seed(0)
    probes = [torch.randint(0, 2, (PROBES, *w.shape), generator=generator) * 2.0 - 1 for w in weights]
    runs[SHARED] = Scaled(lambda: shared_probes(model, batch, task.cross_entropy, weights, probes))
    return runs


def _afresh(problem: Problem) -> Problem:
    """The same problem, with nothing known about it that the round before has found out."""
    return replace(problem)


def deep(
    tiny: bool,
) -> tuple[hl.models.Transformer, dict[str, Tensor], Callable[[Tensor, dict[str, Tensor]], Tensor]]:
    layers, width, length = (2, 64, 32) if tiny else (12, 256, 128)
    model = hl.models.Transformer(
        layers=layers,
        d_model=width,
        heads=8,
        d_mlp=4 * width,
        vocab=512,
        context=length,
        norm="pre",
        mlp_activation="gelu",
    )
    tokens = torch.randint(512, (4, length), generator=torch.Generator().manual_seed(0))

    def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        seen = batch["tokens"]
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), seen[:, 1:].flatten())

    return model, {"tokens": tokens}, loss


def products(number: int) -> Setting:
    """Hessian-vector products of the query block of the middle layer of a GPT-2-style model, from nothing."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        model, batch, loss = deep(tiny)
        middle = len(model.blocks) // 2
        attention = model.blocks[middle].attention
        vectors = [torch.randn(attention.W_Q.shape, generator=torch.Generator().manual_seed(k)) for k in range(number)]

        def ours(verify: bool = True) -> list[Tensor]:
            # Of a problem that nothing is known about: what a tape costs to make and to check is counted.
            problem = hl.problem(model, batch, loss, check=False, verify=verify)
            op = hl.hessian(problem, f"layer{middle}.attn.q", method="hvp")
            return [op @ v.flatten() for v in vectors]

        library = curvlinops_operator("hessian", model, batch, attention, "W_Q", loss)
        runs = {
            "ours": Scaled(ours),
            "ours, model not verified": Scaled(lambda: ours(verify=False)),
            "curvlinops": Scaled(lambda: [library @ v.flatten() for v in vectors]),
            "kept double-backward graph, the rest frozen": Scaled(
                lambda: kept_graph_product(model, batch, loss, attention, vectors)
            ),
            GRADIENT: Scaled(lambda: gradient(model, batch, loss, attention.W_Q)),
        }
        for name, peer in (("PyHessian", pyhessian_product), ("hessian-eigenthings", eigenthings_product)):
            if (found := peer(model, batch, loss, attention, vectors)) is not None:
                runs[name] = Scaled(found)
        size = {"layers": len(model.blocks), "d": attention.d_model, "L": batch["tokens"].shape[1], "products": number}
        return runs, size

    return setting


def last_layer(trained: bool) -> Setting:
    """Norms of the last attention layer and of everything behind it: exactly, and sampled to 1 % on one kept graph."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        problem, names = last_layer_problem(tiny, trained)

        def sampled() -> object:
            return hl.block_norms(_afresh(problem), names, probes=PROBES, method="probes")

        runs = {
            "ours, exact": Scaled(lambda: hl.block_norms(_afresh(problem), names, method="exact")),
            "20 probes a block on a kept graph, carried on to 1 %": Scaled(sampled, sampling_factor(problem, names)),
        }
        words = "a Zipf law, the model trained on it for a moment" if trained else "a Zipf law, the model untrained"
        return runs, {"blocks": len(names), "parts": 3, "words": words}

    return setting


def _each_once(operators: list[object]) -> Run:
    vectors = [torch.randn(op.shape[1], generator=torch.Generator().manual_seed(k)) for k, op in enumerate(operators)]
    return lambda: [op @ v for op, v in zip(operators, vectors, strict=True)]
