"""A closer look at a model whose norms are known, within a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.errors import InputError
from hessianlens.inspect.closer.attention import LayerLook, look_at_attention
from hessianlens.inspect.closer.bending import Bending
from hessianlens.inspect.closer.matters import Matter, blocks_that_matter
from hessianlens.inspect.table import CurvatureTable
from hessianlens.network.base.attention_calls import AttentionUnseen
from hessianlens.network.base.progress import Deadline, Watch
from hessianlens.network.pairs import PairNorms, block_pair_norms
from hessianlens.problems import Problem
from hessianlens.spectra import Heterogeneity, heterogeneity

SECONDS = 60.0
"""How long a closer look takes at most where nothing else is said."""
_PAIRED, _PROBES = 8, 4


@dataclass(frozen=True, eq=False)
class Closer:
    """What a closer look has found.

    Attributes:
        table: The norms that it started from.
        matters: The blocks that matter, and why.
        weights: Norms of the blocks themselves.
        gradients: Norms of the gradient in each block.
        bending: Eigenvalues and densities.
        pairs: Norms between blocks; None if there was no time.
        attention: What the heads look at; empty if attention was not met.
        spectral: Divergences between the densities; None if there are fewer than two.
        left_out: What was not looked at, and why.
    """

    table: CurvatureTable
    matters: Sequence[Matter]
    weights: Mapping[str, float]
    gradients: Mapping[str, float]
    bending: Bending
    pairs: PairNorms | None
    attention: Sequence[LayerLook]
    spectral: Heterogeneity | None
    left_out: Sequence[str]


def look_closer(
    problem: Problem,
    table: CurvatureTable,
    deadline: Deadline,
    *,
    seed: int = 0,
    spectra: Sequence[str] = (),
    pairs: PairNorms | None = None,
    watch: Watch | None = None,
) -> Closer:
    """Gradients and attention first, then the blocks that matter, then the rest by its scale until time is up.

    Args:
        problem: What was measured.
        table: Its norms.
        deadline: When to stop.
        seed: Of start vectors and probes.
        spectra: Further blocks whose densities are asked for.
        pairs: Norms of pairs, if they are there already.
        watch: Is told what comes next.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, dtype=torch.float64)
    >>> task = hl.tasks.Addition(digits=1)
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> table = hl.measure(problem, "layer0.attn.?", probes=2, budget=None, progress=False).table
    >>> closer = look_closer(problem, table, Deadline(30))
    >>> [m.name in closer.bending.ends for m in closer.matters], len(closer.attention)
    ([True, True, True], 1)
    """
    watch = watch or Watch()
    left_out: list[str] = []
    watch.step("gradients and attention")
    weights, gradients = _sizes(problem, [row.name for row in table.rows])
    attention = _attention(problem, left_out)
    matters = blocks_that_matter(table)
    bending = Bending(problem, deadline, seed, watch)
    chosen = list(dict.fromkeys([*(m.name for m in matters), *spectra]))
    bending.find_ends(chosen)
    bending.find_densities(chosen)
    by_scale = sorted(table.rows, key=lambda row: -row.rms)
    if pairs is None:
        pairs = _pairs(problem, chosen, [row.name for row in by_scale], bending, left_out)
    bending.find_ends([row.name for row in by_scale])
    unknown = [row.name for row in by_scale if row.name not in bending.ends and row.name not in bending.refused]
    if unknown:
        left_out.append(f"Eigenvalues, for lack of time: {_some(unknown)}.")
    left_out += [f"{name}: {why}." for name, why in bending.refused.items()]
    spectral = heterogeneity(bending.densities, normalise=True) if _comparable(bending) else None
    return Closer(table, matters, weights, gradients, bending, pairs, attention, spectral, left_out)


def _comparable(bending: Bending) -> bool:
    return len(bending.densities) > 1


def _sizes(problem: Problem, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Norms of blocks and of the gradient in them."""
    blocks = {name: problem.blocks[name] for name in names}
    wanted = list(dict.fromkeys(block.parameter for block in blocks.values()))
    leaves = {name: problem.params[name].detach().requires_grad_() for name in wanted}
    total = dict(zip(wanted, problem.ranks.summed("gradients", lambda: _gradients(problem, leaves)), strict=True))
    weights = {name: float(b.take(problem.params[b.parameter].detach()).double().norm()) for name, b in blocks.items()}
    return weights, {name: float(b.take(total[b.parameter]).double().norm()) for name, b in blocks.items()}


def _gradients(problem: Problem, leaves: Mapping[str, Tensor]) -> list[Tensor]:
    """Summed over the batches of this process."""
    total = [torch.zeros_like(leaf) for leaf in leaves.values()]
    with problem.scope(), torch.enable_grad():
        for batch in problem.data:
            loss = problem.batch_loss({**problem.params, **leaves}, batch)
            found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            # What the loss does not depend on has no gradient, and that is not a gradient of zero.
            total = [t + (math.nan if g is None else g.detach()) for t, g in zip(total, found, strict=True)]
    return total


def _attention(problem: Problem, left_out: list[str]) -> list[LayerLook]:
    try:
        found = look_at_attention(problem)
    except AttentionUnseen as unseen:
        left_out.append(f"Attention: the model cannot be run while it is looked at ({unseen}).")
        return []
    if not found:
        left_out.append("Attention: none was met in this model.")
    return found


def _pairs(
    problem: Problem, chosen: Sequence[str], by_scale: Sequence[str], bending: Bending, left_out: list[str]
) -> PairNorms | None:
    """Of the blocks that matter and those of the largest scale, if a third of the time left is enough for it."""
    wanted = list(dict.fromkeys([*chosen, *by_scale]))[:_PAIRED]
    names = [name for name in by_scale if name in wanted]
    pace = max(bending.pace.values(), default=math.inf)
    if len(names) < 2 or 3 * 2 * pace * _PROBES * len(names) > bending.deadline.left:
        left_out.append("Norms between blocks, for lack of time: ask for them with --pairs, or give more of it.")
        return None
    bending.watch.step(f"pairs of {len(names)} blocks")
    try:
        return block_pair_norms(problem, names, "full", probes=_PROBES, seed=bending.seed)
    except InputError as error:  # such as memory that does not suffice
        left_out.append(f"Norms between blocks: {error}")
        return None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
