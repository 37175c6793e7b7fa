"""`block_norms`: norms of many blocks and parts at once, exact where that is possible."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch

from hessianlens.checks import check_precision
from hessianlens.errors import check_choice, check_seed, check_whole, shown
from hessianlens.memory import memory_errors_explained
from hessianlens.network.forecasting import ensure_fits_in_memory
from hessianlens.network.kept_norms import KeptNorms
from hessianlens.network.norm_run import NormRun
from hessianlens.network.operators import Pattern
from hessianlens.network.watch import Deadline, Watch, watching
from hessianlens.parts import METHODS, PART_NAMES, PARTS, check_parts, part_name
from hessianlens.problems import Problem, check_problem
from hessianlens.spectra import Estimate

REMEDY = "cut the batches with hessianlens.fit_memory(problem), shorten the sequences or use float32"
"""What helps where memory ran out."""


class BlockNorms(Mapping[tuple[str, str], Estimate]):
    """Frobenius norms by (block, part), each an `Estimate`; prints as a table.

    Attributes:
        why: By block, why it is exact, or why it was sampled.
    """

    def __init__(self, found: dict[tuple[str, str], Estimate], why: Mapping[str, str] | None = None) -> None:
        self._found, self.why = found, dict(why or {})

    def __getitem__(self, key: tuple[str, str]) -> Estimate:
        found = self._found.get(_own_key(key)) if isinstance(key, Hashable) else None
        if found is None:
            raise KeyError(f"{shown(key)}, expected a block and a part, such as {next(iter(self._found), None)}")
        return found

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        parts = list(dict.fromkeys(part for _, part in self._found))
        names = list(dict.fromkeys(name for name, _ in self._found))
        rows = [["block", *parts], *([name, *(str(self._found[name, p]) for p in parts)] for name in names)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    __repr__ = __str__


def _own_key(key: Any) -> Any:
    """The same with the part under its own name."""
    named = isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str) and key[1] in PART_NAMES
    return (key[0], part_name(key[1])) if named else key


def block_norms(
    problem: Problem,
    blocks: Pattern = "*",
    parts: Sequence[str] = PARTS,
    *,
    probes: int = 20,
    seed: int = 0,
    method: str = "auto",
    progress: bool | Watch = False,
    resume: str | os.PathLike[str] | None = None,
    tangents: torch.dtype | None = None,
) -> BlockNorms:
    """Frobenius norms of the diagonal blocks of the Hessian, Gauss-Newton and functional matrix.

    Blocks are answered exactly, without probes, where that takes no more than eight times the products of the probes:
    weights of a decoder's last attention layer, what lies behind it, and in small models every layer; ``norms.why``
    says of each block why, or why not. Every part of another block comes from the same probes and the same graph;
    different blocks have different probes. With "auto" the probes of earlier attention layers go together through the
    layers' own formulas where these are joined by piecewise linear maps (one head, no norm, ReLU). Vectors are made and
    dropped one at a time: the memory it takes does not grow with their number. For an answer within a given time see
    `hessianlens.measure`.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Names, globs or ``re:`` expressions.
        parts: Among "full", "ggn" (or "outer") and "functional".
        probes: Random vectors a block; a block with no more entries than that is answered exactly.
        seed: Seed of the probes.
        method: "auto", "exact" or "products", as for `hessian`.
        progress: Show a bar that counts products and tells the time left.
        resume: A file to which exact norms are written as they become known, and from which those of an earlier run are
            taken; it must belong to the same weights, data and loss.
        tangents: Precision of the vectors that go through the formulas of earlier attention layers; that of the problem
            if omitted. ``torch.float32`` in a float64 problem is about three times as fast: activations, softmax and
            gradients stay in float64, and a norm changes by less than 1e-6 of itself.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> norms = block_norms(problem, ["layer0.attn.q", "embed"], probes=4)
    >>> norms["layer0.attn.q", "functional"].stderr, norms["embed", "full"].probes
    (0.0, 4)
    """
    check_problem(problem)
    parts = check_parts(parts)
    check_choice("method", method, METHODS)
    check_whole("probes", probes, 1)
    check_seed(seed)
    if tangents is not None:
        check_precision("tangents", tangents)
    chosen, kept = problem.select(blocks), None if resume is None else KeptNorms(resume, problem)
    with memory_errors_explained(REMEDY), watching(progress) as watch:
        run = NormRun(problem, chosen, parts, seed=seed, method=method, watch=watch, kept=kept, tangents=tangents)
        run.solve(probes)
        if run.sampled:
            ensure_fits_in_memory(problem, run.sampled, probes, len(parts))
            watch.begin(sum(min(probes, block.numel) for block in run.sampled), Deadline())
            run.sample(probes)
    return BlockNorms(run.found, run.why)
