"""The matrix of norms between all pairs of blocks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hessianlens.curvature import MATRIX_FREE, BlockPairOperator, verify
from hessianlens.display import Cells, DisplayableRows, Grid, Picture
from hessianlens.errors import Refusal, check_seed, check_whole, describe_value, expect, suggest_names
from hessianlens.network.base.price import affordable_hvps, most_hvps
from hessianlens.network.base.progress import Deadline, Watch, watching
from hessianlens.network.base.question import NO_LIMITS, Limits, Question
from hessianlens.network.base.sampling import WORKSPACE
from hessianlens.network.forecasting import ensure_fits_in_memory
from hessianlens.network.operators import Pattern
from hessianlens.network.planner import Choice, Planner, planner_of
from hessianlens.parts import PAIR_METHODS, method_name, part_name
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.sizes import number_of
from hessianlens.spectra import Estimate
from hessianlens.spectra.estimate import ends_in_percent
from hessianlens.spectra.norms import lengths_of, norm_from_lengths
from hessianlens.spectra.probes import Probes
from hessianlens.state_guard import restores_state

_TOLD = 5
"""Pairs whose norms are written out in a notebook."""


@dataclass(frozen=True, repr=False)
class PairNorms(DisplayableRows):
    """Frobenius norms of every pair of blocks.

    Attributes:
        names: The blocks, in model order.
        part: "full", "ggn" or "functional".
        estimates: Norm of the block in row r and column c, by name.
    """

    names: tuple[str, ...]
    part: str
    estimates: dict[tuple[str, str], Estimate]

    def __getitem__(self, key: tuple[str, str]) -> Estimate:
        if not isinstance(key, Hashable) or key not in self.estimates:
            wrong = [name for name in key if name not in self.names] if isinstance(key, tuple) else []
            close = f"; {suggest_names(wrong[0], self.names, 8)}" if wrong else ""
            raise KeyError(f"{describe_value(key)}, expected two of the blocks {', '.join(self.names[:8])}{close}")
        return self.estimates[key]

    def values(self) -> Tensor:
        """The norms as a matrix."""
        return _matrix([[self.estimates[r, c].value for c in self.names] for r in self.names])

    def stderrs(self) -> Tensor:
        """Their standard errors as a matrix."""
        return _matrix([[self.estimates[r, c].stderr for c in self.names] for r in self.names])

    def intervals(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The lower and the upper ends of their intervals, as matrices."""
        ends = [[self.estimates[r, c].interval(level) for c in self.names] for r in self.names]
        low, high = _matrix(ends).unbind(-1)
        return low, high

    def _records(self) -> list[dict[str, Any]]:
        return [{"row": r, "column": c, "part": self.part, **e.row()} for (r, c), e in self.estimates.items()]

    def _heading(self) -> str:
        return f"PairNorms of {number_of(len(self.names), 'block')}, {self.part}"

    def _cells(self) -> Cells:
        """The pairs of two blocks that hold most: the rest is in the picture."""
        pairs = sorted(combinations(self.names, 2), key=lambda pair: -self.estimates[pair].value)[:_TOLD]
        return ["largest between two blocks", "norm"], [[f"{r}, {c}", str(self.estimates[r, c])] for r, c in pairs]

    def _picture(self, asked: bool) -> Picture:
        """Every pair."""
        return Grid(self.names, self.names, self.values().tolist(), f"norm of every pair, {self.part}")

    def __str__(self) -> str:
        width = max(map(len, self.names))
        head = " " * width + "  " + "  ".join(name.rjust(max(9, len(name))) for name in self.names)
        rows = [
            name.ljust(width)
            + "  "
            + "  ".join(f"{self.estimates[name, c].value:.3g}".rjust(max(9, len(c))) for c in self.names)
            for name in self.names
        ]
        return "\n".join([head, *rows, *self._widest()])

    __repr__ = __str__

    def _widest(self) -> list[str]:
        """What the matrix leaves out: the widest interval, and whether few probes decide."""
        sampled = [e for e in self.estimates.values() if not e.exact and e.value > 0]
        if not sampled:
            return []
        widest = max(sampled, key=lambda e: e.relative_width())
        few = "; few probes" if any(e.few for e in sampled) else ""
        return [f"widest 95 % interval: {ends_in_percent(widest.value, *widest.interval())}{few}"]


def _matrix(rows: object) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64, device="cpu")


@restores_state
def block_pair_norms(
    problem: Problem,
    blocks: Pattern = "*",
    part: str = "full",
    *,
    probes: int = 20,
    seed: int = 0,
    method: str = "auto",
    progress: bool | Watch = False,
) -> PairNorms:
    """Frobenius norms of all pairs of blocks: each probe of a column block gives the norms of every row block.

    The matrix is symmetric; both halves are estimated, from the probes of either side, and their squared lengths
    pooled, so that the result is symmetric too. Norms in one column share that block's probes.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Names, globs or ``re:`` expressions.
        part: "full", "ggn" (or "outer") or "functional".
        probes: Probe vectors per column block; a block with no more entries than that gets its exact norm.
        seed: Seed of the probes.
        method: "auto" (exact where that takes few HVPs, as in `block_norms`), "exact" or "probes".
        progress: Show a bar that counts sampled HVPs and estimates the time left.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> norms = block_pair_norms(problem, "layer0.attn.?", probes=4)
    >>> norms.values().shape, norms["layer0.attn.q", "layer0.attn.v"] == norms["layer0.attn.v", "layer0.attn.q"]
    (torch.Size([4, 4]), True)
    """
    check_problem(problem)
    part = part_name(part)
    check_whole("probes", probes, 1)
    check_seed(seed)
    method = method_name(method, PAIR_METHODS)
    chosen = problem.select(blocks)
    both = {} if method == "probes" else _exact(problem, chosen, part, probes, forced=method == "exact")
    missing = [(column, [row for row in chosen if (row.name, column.name) not in both]) for column in chosen]
    sampled = [(column, rows) for column, rows in missing if rows]
    one_sided: dict[tuple[str, str], _Lengths] = {}
    if sampled:
        ensure_fits_in_memory(problem, chosen, probes, 1, together=True)
    with watching(progress) as watch:
        watch.begin(sum(min(probes, column.numel) for column, _ in sampled), Deadline())
        for column, rows in sampled:
            watch.step(column.name)
            one_sided.update(_column(MATRIX_FREE[part](problem, rows, [column]), rows, column, probes, seed))
            watch.products(min(probes, column.numel))
        watch.end()
    names = tuple(block.name for block in chosen)
    for r, c in one_sided:
        both[r, c] = both[c, r] = _combined(one_sided[r, c], one_sided[c, r], seed)
    return PairNorms(names, part, {(r, c): both[r, c] for r in names for c in names})


def _exact(
    problem: Problem, blocks: Sequence[Block], part: str, probes: int, forced: bool
) -> dict[tuple[str, str], Estimate]:
    """Every pair that can be had exactly, blocks with themselves first, as long as it is worth it in all."""
    planner, own = planner_of(problem), dict[tuple[str, str], Choice]()

    def look() -> set[tuple[str, str]]:
        own.update(_affordable(planner, blocks, probes, forced))
        return set(own)

    with nullcontext() if planner.refusal else planner.maps.together(blocks):
        everywhere = set.intersection(*problem.ranks.all_gather("closed forms of pairs", look))
        choices = {pair: choice for pair, choice in own.items() if pair in everywhere}
        if names := {name for pair in choices for name in pair}:
            verify(problem, [block.parameter for block in blocks if block.name in names])
        computed = _norms_of(planner, choices, part, forced)
    return computed | {(column, row): norm for (row, column), norm in computed.items()}


def _affordable(planner: Planner, blocks: Sequence[Block], probes: int, forced: bool) -> dict[tuple[str, str], Choice]:
    """Choices by pair."""
    sampled = sum(min(probes, block.numel) for block in blocks)  # a product with a column serves all rows
    left = math.inf if forced else affordable_hvps(planner.problem, sampled)
    choices, paid, certified = dict[tuple[str, str], Choice](), set[Hashable](), set[str]()
    for row, column in (*((block, block) for block in blocks), *combinations(blocks, 2)):
        most = most_hvps(min(probes, row.numel, column.numel))
        limits = NO_LIMITS if forced else Limits(min(left, most), shared_hvps=left)
        choice = planner.choose(Question(row, column, limits, norms_only=True))
        if isinstance(choice, Refusal):
            expect(not forced, f"method: got 'exact', but {row.name} x {column.name}: {choice}; expected 'auto'.")
            continue
        if choice.cost.shared not in paid:  # HVPs with the vectors of one row serve all columns
            left -= choice.cost.upfront_hvps
            paid.add(choice.cost.shared)
        if column.name not in certified:
            left -= choice.cost.certificate_hvps
            certified.add(column.name)
        choices[row.name, column.name] = choice
    return choices


def _norms_of(
    planner: Planner, choices: Mapping[tuple[str, str], Choice], part: str, forced: bool
) -> dict[tuple[str, str], Estimate]:
    """Norms of pairs; those between linear maps with the same row are computed together."""
    planner.announce([choice.question for choice in choices.values()])
    computed: dict[tuple[str, str], Estimate] = {}

    def compute(choice: Choice) -> None:
        pair, answer = choice.question.pair, planner.norms(choice, [part])
        if isinstance(answer, Refusal):
            expect(not forced, f"method: got 'exact', but {pair[0]} x {pair[1]}: {answer}; expected 'auto'.")
        else:
            computed[pair] = Estimate.exactly(answer[0].values[part])

    of_maps = [choice for choice in choices.values() if choice.route is planner.linear_map]
    for choice in choices.values():
        if choice.route is not planner.linear_map:
            compute(choice)
    for group in planner.linear_map.in_groups([choice.question for choice in of_maps]) if of_maps else ():
        for question in group:
            compute(choices[question.pair])
    return computed


def _column(
    operator: BlockPairOperator, rows: Sequence[Block], column: Block, probes: int, seed: int
) -> dict[tuple[str, str], _Lengths]:
    # Every block has probes of its own: the two estimates of a pair must not share them.
    vectors = Probes.of_block(column.name, column.numel, probes, seed, operator.dtype, operator.device)
    held = (column.numel + sum(block.numel for block in rows)) * operator.dtype.itemsize
    lengths: dict[str, list[Tensor]] = {block.name: [] for block in rows}
    for chunk in vectors.chunks(max(1, WORKSPACE // held)):
        products = operator._matmat([chunk.reshape(*column.shape, -1)])
        for block, product in zip(rows, products, strict=True):
            lengths[block.name].append(lengths_of(product.reshape(block.numel, -1)))
    exact = vectors.distribution == "basis"
    return {(name, column.name): _Lengths(torch.cat(found), exact) for name, found in lengths.items()}


class _Lengths(NamedTuple):
    """Lengths of the products with the probes of one side, or with every basis vector."""

    lengths: Tensor
    exact: bool


def _combined(one: _Lengths, other: _Lengths, seed: int) -> Estimate:
    """The lengths of both sides are independent samples of one squared norm; an exact side wins."""
    for side in (one, other):
        if side.exact:
            return norm_from_lengths(side.lengths, seed=None, exact=True)
    lengths = one.lengths if one is other else torch.cat([one.lengths, other.lengths])
    return norm_from_lengths(lengths, seed=seed)
