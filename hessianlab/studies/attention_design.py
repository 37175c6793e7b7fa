"""What attention's design does to the Hessian at initialisation: every combination of some choices."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hessianlab.experiments.experiment import Experiment, check_config
from hessianlab.results import Measurement, Parameters
from hessianlens.errors import InputError, expect
from hessianlens.models.arguments import QUERY_KEY, head_width
from hessianlens.notation import ACTIVATION_NAMES

if TYPE_CHECKING:
    from hessianlens.problems import Block, Problem


_EXPECTED = (
    "expected package.module:Class, a torch.nn.Module made as Class(d_model, heads) that maps (B, L, d) to (B, L, d)"
)


def load_attention(where: str) -> Any:
    """The class behind ``package.module:Class``; modules beside the working directory are found, too."""
    module, colon, name = where.partition(":")
    expect(bool(module and colon and name), f"attention: got {where!r}, {_EXPECTED}.")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"attention: got {where!r}, which cannot be imported ({error}); {_EXPECTED}.") from error
    finally:
        if added:
            sys.path.remove(here)
    return found


def attention_digest(where: str) -> str:
    """Of the file that defines the class; empty where none is asked for."""
    if not where:
        return ""
    found = load_attention(where)
    file = inspect.getsourcefile(found) if isinstance(found, type) else None
    expect(file is not None, f"attention: got {where!r}, which has no source file; {_EXPECTED}.")
    return hashlib.sha256(Path(cast(str, file)).read_bytes()).hexdigest()[:16]


def put_in(model: Any, where: str, heads: int, seed: int) -> Any:
    """The Transformer with the user's attention in all its blocks, in double precision and drawn from a seed."""
    import torch
    from torch import Tensor, nn

    class Own(nn.Module):
        """What a block asks of attention: the heads' outputs, and their projection, which is the module's own."""

        def __init__(self, module: nn.Module, d_model: int) -> None:
            super().__init__()
            self.module, self.d_model = module, d_model

        def head_outputs(self, X: Tensor) -> Tensor:
            out = self.module(X)
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            expect(got == tuple(X.shape), f"attention: {where} returned {got} for {tuple(X.shape)}; {_EXPECTED}.")
            return cast(Tensor, out)

        def project(self, z: Tensor) -> Tensor:
            return z

    kind = load_attention(where)
    width = model.W_U.shape[0]
    for block in model.blocks:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = kind(width, heads)
            except TypeError as error:
                raise InputError(f"attention: {where}({width}, {heads}) failed ({error}); {_EXPECTED}.") from error
        expect(isinstance(module, nn.Module), f"attention: {where} is no torch.nn.Module; {_EXPECTED}.")
        block.attention = Own(module.to(torch.float64), width)
    return model


FACTORS = ("activation", "norm", "qk", "temperature", "heads")
"""What can be varied."""

NORMS = ("none", "pre", "post")

OWN = "own"
"""The activation of a user's attention, in tables."""


@dataclass(frozen=True)
class DesignConfig:
    """What is varied, and the sizes that are not.

    Attributes:
        activation: Attention activations.
        norm: "none", "pre", "post".
        qk: "dual" for W_Q and W_K, "single" for one matrix.
        temperature: Divides the scores.
        heads: Attention heads.
        attention: A user's own attention, ``package.module:Class``, beside the others; it is imported, and so run.
        embedding_std: Standard deviation of the embeddings; that of the weights if None.
    """

    activation: tuple[str, ...] = ("softmax", "sigmoid", "linear")
    norm: tuple[str, ...] = ("none", "pre")
    qk: tuple[str, ...] = ("dual", "single")
    temperature: tuple[float, ...] = (1.0,)
    heads: tuple[int, ...] = (1, 2)
    attention: str = ""
    d_model: int = 8
    sequences: int = 16
    digits: int = 2
    embedding_std: float | None = None
    repeats: int = 5
    seed: int = 0
    data_seed: int = 1234

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"repeats": 2}, {"activation": ACTIVATION_NAMES, "norm": NORMS, "qk": QUERY_KEY})
        for heads in self.heads:
            head_width(self.d_model, heads)


def design_cells(config: DesignConfig) -> list[dict[str, Any]]:
    """One cell per combination and draw of the weights."""
    names = ("d_model", "sequences", "digits", "embedding_std", "data_seed")
    shared = {name: getattr(config, name) for name in names}
    chosen = [
        dict(zip(FACTORS, combination, strict=True))
        for combination in product(config.activation, config.norm, config.qk, config.temperature, config.heads)
    ]
    own = {"attention": "", "attention_digest": ""}
    found = [{**design, **own} for design in chosen]
    if config.attention:
        digest = attention_digest(config.attention)
        for norm, heads in product(config.norm, config.heads):
            design = {"activation": OWN, "norm": norm, "qk": "own", "temperature": 1.0, "heads": heads}
            found.append({**design, "attention": config.attention, "attention_digest": digest})
    seeds = range(config.seed, config.seed + config.repeats)
    return [{**design, **shared, "seed": seed} for design in found for seed in seeds]


def measure_design(parameters: Parameters) -> Measurement:
    """A row ``stage="design"`` with what is known of the whole, and a row per block: size, signs, rank and powers."""
    from hessianlab.studies.curvature import FACTS, attention_facts, growth_exponents

    asked: Any = parameters
    model, known = _problem(asked)
    blocks = [block for block in known.blocks.values() if "attention" in block.parameter and len(block.shape) == 2]
    rows = [_block(known, block) for block in blocks]
    sizes = [row["rms"] for row in rows if row["rms"] > 0]
    whole: dict[str, Any] = {"stage": "design", "spread": max(sizes) / min(sizes) if sizes else None}
    whole["negative_share"] = sum(row["negative_share"] for row in rows) / len(rows)
    whole["rank_share"] = sum(row["rank_share"] for row in rows) / len(rows)
    if not asked["attention"]:
        facts = attention_facts(model, known.data[0]["tokens"]).mean(0).tolist()
        whole |= dict(zip(FACTS, facts, strict=True))
    growth = growth_exponents(known, [block.name for block in blocks])
    return Measurement((whole, *rows, *({"stage": "growth", **row} for row in growth)))


def _problem(asked: Any) -> tuple[Any, Problem]:
    import torch

    from hessianlens.models import Transformer
    from hessianlens.models.adapters import problem
    from hessianlens.tasks import Addition

    task = Addition(asked["digits"])
    own = bool(asked["attention"])
    model = Transformer(
        1,
        asked["d_model"],
        asked["heads"],
        vocab=task.vocab,
        context=task.context,
        attention="softmax" if own else asked["activation"],
        norm=None if asked["norm"] == "none" else asked["norm"],
        seed=asked["seed"],
        query_key="dual" if own else asked["qk"],
        temperature=asked["temperature"],
        attention_bias=False,
        embedding_std=asked["embedding_std"],
        dtype=torch.float64,
    )
    if own:
        put_in(model, asked["attention"], asked["heads"], asked["seed"])
    data = task.batch(asked["sequences"], seed=asked["data_seed"])
    return model, problem(model, data, task.cross_entropy, check=own, verify=own)


def _block(known: Problem, block: Block) -> dict[str, Any]:
    """Of the block's own part of the Hessian, from all its eigenvalues."""
    import torch

    from hessianlab.experiments.statistics import spectrum_facts
    from hessianlens.network import hessian

    dense = hessian(known, block.name) @ torch.eye(block.numel, dtype=torch.float64)
    facts: dict[str, Any] = spectrum_facts(torch.linalg.eigvalsh((dense + dense.T) / 2))
    return {
        "stage": "block",
        "block": block.name,
        "frobenius": facts["norm"],
        "rms": facts["norm"] / block.numel**0.5,
        "negative_share": facts["negative_share"],
        "rank_share": facts["rank"] / facts["size"],
    }


@dataclass(frozen=True)
class DesignStudy(Experiment[DesignConfig]):
    """An experiment on every combination of some choices, before training."""

    def statement(self, config: DesignConfig) -> list[str]:
        """What is said before the first cell: the combinations, the model, and what is measured of it."""
        varied = {factor: getattr(config, factor) for factor in FACTORS}
        chosen = [f"{factor} {', '.join(map(str, levels))}" for factor, levels in varied.items()]
        combinations = len(self.cells(config)) // config.repeats
        embeddings = "the weights'" if config.embedding_std is None else f"{config.embedding_std:g}"
        return [
            f"Combinations: all {combinations} of {'; '.join(chosen)}"
            f"{f'; and {config.attention} in place of attention' if config.attention else ''}.",
            f"Model: 1 block of width {config.d_model} before training, standard deviation of the embeddings "
            f"{embeddings}; {config.sequences} sequences of addition of numbers of {config.digits} digits, and the "
            "cross-entropy of its answers.",
            "Measured, of the own block of every matrix of attention: all eigenvalues, and the powers of its norm when "
            "the embeddings are scaled. The spread is the largest over the smallest root mean square eigenvalue.",
            f"Draws: {config.repeats} of the weights, the same for all combinations; differences are paired over them.",
        ]


STUDY_DESIGN = DesignStudy(
    name="study_design",
    title="What attention's design does to the Hessian at initialisation",
    source="All four documents",
    question="How do activation, norm, query-key matrices, temperature and heads change the growth, the heterogeneity, "
    "the signs and the rank of attention's blocks before training?",
    presets={
        "quick": DesignConfig(),
        "full": DesignConfig(
            activation=("softmax", "sigmoid", "relu_normalised", "linear"),
            norm=NORMS,
            heads=(1, 4),
            d_model=16,
            digits=5,
            repeats=10,
        ),
    },
    cells=design_cells,
    measure=measure_design,
)
