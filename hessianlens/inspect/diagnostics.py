"""Diagnostics of a model whose norms are known, within a time: gradients, attention, eigenvalues, spectra, pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hessianlens.errors import InputError, first_names
from hessianlens.inspect.advice import NotableBlock, notable_blocks
from hessianlens.inspect.attention_heads import attention_maps
from hessianlens.inspect.table import CurvatureTable
from hessianlens.network.base.progress import Deadline, Watch
from hessianlens.network.head_health import AttentionHealth, attention_health
from hessianlens.network.operators import hessian
from hessianlens.network.pairs import PairNorms, block_pair_norms
from hessianlens.problems import Problem
from hessianlens.spectra import Heterogeneity, SpectralDensity, density, eigenvalues, heterogeneity

SECONDS = 60.0
"""How long a closer look takes at most where nothing else is said."""
_PAIRED, _PROBES = 8, 4


@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What a closer look has found.

    Attributes:
        table: The norms that it started from.
        notable: The blocks that matter, and why.
        weights: Norms of the blocks themselves.
        gradients: Norms of the gradient in each block.
        block_spectra: Eigenvalues and densities.
        pairs: Norms between blocks; None if there was no time.
        attention: Attention heads; none if attention was not seen.
        maps: Attention weights of the first sequences, by layer.
        spectral: Divergences between the densities; None if there are fewer than two.
        left_out: What was not looked at, and why.
    """

    table: CurvatureTable
    notable: Sequence[NotableBlock]
    weights: Mapping[str, float]
    gradients: Mapping[str, float]
    block_spectra: BlockSpectra
    pairs: PairNorms | None
    attention: AttentionHealth
    maps: Mapping[str, Tensor]
    spectral: Heterogeneity | None
    left_out: Sequence[str]


def diagnose(
    problem: Problem,
    table: CurvatureTable,
    deadline: Deadline,
    *,
    seed: int = 0,
    spectra: Sequence[str] = (),
    pairs: PairNorms | None = None,
    watch: Watch | None = None,
) -> Diagnostics:
    """Gradients and attention first, then the blocks that matter, then the rest by its scale until time is up.

    Args:
        problem: The measured problem.
        table: Its norms.
        deadline: When to stop.
        seed: Of start vectors and probes.
        spectra: Further blocks whose densities are asked for.
        pairs: Norms of pairs, if they are there already.
        watch: Progress callback: the next step.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, dtype=torch.float64)
    >>> task = hl.tasks.Addition(digits=1)
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> table = hl.measure(problem, "layer0.attn.?", probes=2, budget=None, progress=False).table
    >>> diagnostics = diagnose(problem, table, Deadline(30))
    >>> [m.name in diagnostics.block_spectra.ends for m in diagnostics.notable], len(diagnostics.attention.heads)
    ([True, True, True], 1)
    """
    watch = watch or Watch()
    left_out: list[str] = []
    watch.step("gradients and attention")
    weights, gradients = _sizes(problem, [row.name for row in table.rows])
    attention = problem.cached(AttentionHealth, lambda: attention_health(problem))
    left_out += attention.left_out
    maps = attention_maps(problem) if attention.heads else {}
    notable = notable_blocks(table)
    block_spectra = BlockSpectra(problem, deadline, seed, watch)
    chosen = list(dict.fromkeys([*(m.name for m in notable), *spectra]))
    block_spectra.find_ends(chosen)
    block_spectra.find_densities(chosen)
    by_scale = sorted(table.rows, key=lambda row: -row.rms)
    if pairs is None:
        pairs = _pairs(problem, chosen, [row.name for row in by_scale], block_spectra, left_out)
    block_spectra.find_ends([row.name for row in by_scale])
    unknown = [
        row.name for row in by_scale if row.name not in block_spectra.ends and row.name not in block_spectra.refused
    ]
    if unknown:
        left_out.append(f"Eigenvalues, for lack of time: {first_names(unknown)}.")
    left_out += [f"{name}: {why}." for name, why in block_spectra.refused.items()]
    spectral = heterogeneity(block_spectra.densities, normalise=True) if _comparable(block_spectra) else None
    return Diagnostics(table, notable, weights, gradients, block_spectra, pairs, attention, maps, spectral, left_out)


def _comparable(block_spectra: BlockSpectra) -> bool:
    return len(block_spectra.densities) > 1


def _sizes(problem: Problem, names: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Norms of blocks and of the gradient in them."""
    blocks = {name: problem.blocks[name] for name in names}
    wanted = list(dict.fromkeys(block.parameter for block in blocks.values()))
    leaves = {name: problem.params[name].detach().requires_grad_() for name in wanted}
    total = dict(zip(wanted, problem.ranks.all_reduce("gradients", lambda: _gradients(problem, leaves)), strict=True))
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


def _pairs(
    problem: Problem, chosen: Sequence[str], by_scale: Sequence[str], block_spectra: BlockSpectra, left_out: list[str]
) -> PairNorms | None:
    """Of the blocks that matter and those of the largest scale, if a third of the time left is enough for it."""
    wanted = list(dict.fromkeys([*chosen, *by_scale]))[:_PAIRED]
    names = [name for name in by_scale if name in wanted]
    pace = max(block_spectra.pace.values(), default=math.inf)
    if len(names) < 2 or 3 * 2 * pace * _PROBES * len(names) > block_spectra.deadline.left:
        left_out.append("Norms between blocks, for lack of time: ask for them with --also pairs, or give more of it.")
        return None
    block_spectra.watch.step(f"pairs of {len(names)} blocks")
    try:
        return block_pair_norms(problem, names, "full", probes=_PROBES, seed=block_spectra.seed)
    except InputError as error:  # such as memory that does not suffice
        left_out.append(f"Norms between blocks: {error}")
        return None


_TOLERANCE = 1e-3
"""Relative accuracy of the eigenvalues at the ends."""
_EFFORTS = ((8, 48), (4, 32), (3, 20), (2, 12))
"""Probes and steps of a density, the best first."""


class TimeUp(Exception):
    """There is no time left."""


@dataclass(frozen=True)
class SpectrumEnds:
    """The smallest and the largest eigenvalue of a block; `converged` if both are known to a thousandth."""

    smallest: float
    largest: float
    converged: bool


@dataclass
class BlockSpectra:
    """What is known of the spectra of some blocks.

    Attributes:
        problem: The problem.
        deadline: When to stop.
        seed: Of start vectors and probes.
        watch: Progress callback: the next step.
        ends: By block.
        densities: By block.
        refused: By block, why nothing is known of it.
        pace: Seconds that a product with a block takes.
    """

    problem: Problem
    deadline: Deadline
    seed: int = 0
    watch: Watch = field(default_factory=Watch)
    ends: dict[str, SpectrumEnds] = field(default_factory=dict)
    densities: dict[str, SpectralDensity] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)

    def find_ends(self, names: Sequence[str], until: float = 0.0) -> None:
        """The ends of the spectra of these blocks, one after the other, until so many seconds are left."""
        for name in names:
            if name in self.ends or self.deadline.left <= until:
                continue
            self.watch.step(f"eigenvalues of {name}")
            try:
                self._find(name, until)
            except TimeUp:
                self.refused[name] = "its eigenvalues were not found in time"
            except InputError as error:
                self.refused[name] = str(error)

    def _find(self, name: str, until: float) -> None:
        op, start, count = hessian(self.problem, name), time.monotonic(), op_size(self.problem, name)

        def on_time(made: int, _: int) -> None:
            if self.deadline.left <= until:
                raise TimeUp

        which = "both" if count > 1 else "largest"
        found = eigenvalues(op, 1, which, rtol=_TOLERANCE, seed=self.seed, check_symmetry=False, progress=on_time)
        took = self.problem.ranks.broadcast(time.monotonic() - start)
        self.pace[name] = took / max(found.products, 1)
        if len(found.values):
            self.ends[name] = SpectrumEnds(float(found.values.min()), float(found.values.max()), found.converged)

    def find_densities(self, names: Sequence[str], share: float = 0.5) -> None:
        """Densities of these blocks, with one effort for all, so that they can be compared, in a share of the time."""
        known = [name for name in names if name in self.ends]
        if not known:
            return
        cost = sum(self.pace[name] for name in known)
        fitting = [effort for effort in _EFFORTS if effort[0] * effort[1] * cost <= share * self.deadline.left]
        if not fitting:
            self.refused.update({name: "there was no time for its density" for name in known})
            return
        probes, steps = fitting[0]
        for name in known:
            self.watch.step(f"density of {name}")
            op = hessian(self.problem, name)
            try:
                found = density(op, probes, steps, self.seed, check_symmetry=False, chunk=1, progress=self._on_time)
            except TimeUp:
                self.refused[name] = "its density was not found in time"
                continue
            self.densities[name] = found

    def _on_time(self, made: int, _: int) -> None:
        if self.deadline.left <= 0:
            raise TimeUp


def op_size(problem: Problem, name: str) -> int:
    """Rows of the Hessian of a block."""
    return problem.blocks[name].numel
