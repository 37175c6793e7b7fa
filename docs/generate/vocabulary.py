"""Reference pages of names that users type: activations, and the blocks of a model."""

from __future__ import annotations

import math
from pathlib import Path

import torch

import hessianlens as hl


def write(folder: Path) -> None:
    """Write `activations.md` and `blocks.md`."""
    (folder / "activations.md").write_text(_activations(), encoding="utf-8")
    (folder / "blocks.md").write_text(_blocks(), encoding="utf-8")


def _activations() -> str:
    row = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.float64)
    lines = [
        "# Activations",
        "",
        "An activation turns one row of scores into one row of weights. `activation=` takes a name, an instance, or any",
        'function of a row: `hl.SelfAttention(W_Q, W_K, W_V, activation="sigmoid")`.',
        "",
        "",
        "| name | class | weights of the scores 2, 1, 0, −1 | growth of the query block: GGN, functional |",
        "| --- | --- | --- | --- |",
    ]
    for name, make in hl.attention.activations.ACTIVATIONS.items():
        activation = make()
        value = activation.value(row[None, None], torch.ones(1, 1, len(row), dtype=torch.bool))
        weights = ", ".join(f"{weight:.3g}" for weight in value[0, 0].tolist())
        powers = [hl.layer.predicted_growth(name, part, "Q", "Q") for part in ("outer", "functional")]
        shown = ", ".join("0 (vanishes)" if power is None else f"$\\sigma^{{{power}}}$" for power in powers)
        lines.append(f"| `{name}` | `{type(activation).__name__}` | {weights} | {shown} |")
    lines += [
        "",
        "The last column is the power of the token scale $\\sigma$ with which the block grows for small tokens, from the",
        "expansion of the activation at zero ([derivation](../../explanation/hessian)).",
    ]
    return "\n".join([*lines, ""])


def _blocks() -> str:
    model, task = hl.models.Transformer(layers=2, heads=2, d_model=8, d_mlp=16), hl.tasks.Addition()
    problem = hl.problem(model, task.batch(2, seed=0), task.cross_entropy)
    lines = [
        "# Names of blocks",
        "",
        'A block is a named group of weights. Every call that takes blocks takes names and patterns: `"layer0.attn.q"`,',
        '`"layer*.attn.q"`, `"layer*.attn.?"`, `["layer*.mlp.*", "embed"]`. The names are the same for every model',
        "that is recognised, whatever its authors call the parameters; `problem.blocks` lists them.",
        "[Curvature of a model's blocks](../../how-to/models) says how to name blocks yourself.",
        "",
        "| block of `hl.models.Transformer(layers=2, heads=2)` | parameters |",
        "| --- | --- |",
    ]
    lines += [f"| `{block.name}` | {math.prod(block.shape):,} |" for block in problem.blocks.values()]
    return "\n".join([*lines, ""])
