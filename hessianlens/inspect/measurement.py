"""A run of everything that was asked about a model: rows first, then pairs and spectra; what is done is kept."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from hessianlens.errors import InputError, expect
from hessianlens.inspect.blockwise import rows
from hessianlens.inspect.caveats import advised
from hessianlens.inspect.opened import Opened
from hessianlens.inspect.operators import hessian
from hessianlens.inspect.pairs import PairNorms, block_pair_norms
from hessianlens.inspect.table import CurvatureTable, Row
from hessianlens.problems import Block
from hessianlens.spectra import Estimate, eigenvalues, inertia
from hessianlens.spectra.extremal import Eigenvalues
from hessianlens.spectra.inertia import Inertia

_ENDS = 3
"""Eigenvalues at each end of a spectrum."""


class Measurement:
    """What is asked about a model, and what is known so far.

    Args:
        opened: The model on its data.
        with_pairs: Whether the norms of all pairs of blocks are asked for.
        spectra: Patterns of the blocks whose spectra are asked for.

    >>> from hessianlens.inspect.opened import Settings, open_model
    >>> opened = open_model(Settings("toy:d_model=4", blocks=("layer0.attn.[qv]",), sequences=2))
    >>> measurement = Measurement(opened)
    >>> measurement.run()
    >>> [row.norms["functional"].value > 0 for row in measurement.table.rows]
    [True, False]
    """

    def __init__(self, opened: Opened, with_pairs: bool = False, spectra: tuple[str, ...] = ()) -> None:
        self.opened, self.with_pairs = opened, with_pairs
        self.spectral_blocks: list[Block] = opened.problem.select(list(spectra)) if spectra else []
        self.interrupted = False
        self._rows: dict[str, Row] = {}
        self._pairs: PairNorms | None = None
        self._spectra: dict[str, tuple[Eigenvalues, Inertia]] = {}

    @property
    def products(self) -> int:
        """Products that the bar counts: a spectrum is given those of a block of its size."""
        probes = self.opened.settings.probes
        each = [min(probes, block.numel) for block in self.opened.blocks]
        return sum(each) * (2 if self.with_pairs else 1) + probes * len(self.spectral_blocks)

    @property
    def table(self) -> CurvatureTable:
        """The rows measured so far, in the order of the model."""
        found = tuple(self._rows[block.name] for block in self.opened.blocks if block.name in self._rows)
        return CurvatureTable(found, len(self.opened.blocks), torch.finfo(self.opened.problem.dtype).eps)

    def advice(self) -> str:
        """What the scales say about training, and what they cannot say."""
        return advised(self.table.advice(), self.opened.loaded, self.opened.data)

    def run(
        self, on_step: Callable[[str], None] | None = None, on_products: Callable[[int], None] | None = None
    ) -> None:
        """Measure; an interruption ends the run and leaves what is done.

        Args:
            on_step: Called with the name of what comes next.
            on_products: Called with a number of products that are done.
        """
        say, done = on_step or (lambda title: None), on_products or (lambda count: None)
        try:
            self._measure(say, done)
        except KeyboardInterrupt:
            self.interrupted = True

    def _measure(self, say: Callable[[str], None], done: Callable[[int], None]) -> None:
        problem, settings, blocks = self.opened.problem, self.opened.settings, self.opened.blocks
        options: dict[str, Any] = {"probes": settings.probes, "seed": settings.seed}
        for row in rows(problem, blocks, settings.parts, **options, on_group=say):
            self._rows[row.name] = row
            done(min(settings.probes, row.parameters))
        if self.with_pairs:
            say(f"{len(blocks)} x {len(blocks)} pairs")
            names = [block.name for block in blocks]
            self._pairs = block_pair_norms(problem, names, settings.parts[0], **options)
            done(sum(min(settings.probes, block.numel) for block in blocks))
        for block in self.spectral_blocks:
            self._spectra[block.name] = self._spectrum(block, say)
            done(settings.probes)

    def _spectrum(self, block: Block, say: Callable[[str], None]) -> tuple[Eigenvalues, Inertia]:
        title, seed = f"spectrum of {block.name}", self.opened.settings.seed
        say(title)
        op = hessian(self.opened.problem, block.name)
        count = min(_ENDS, max(1, block.numel // 2))
        which = "both" if block.numel > 1 else "largest"
        ends = eigenvalues(op, count, which, seed=seed, progress=lambda made, _: say(f"{title}: {made} products"))
        return ends, inertia(op, seed=seed)

    def extras(self) -> Iterator[tuple[str, str]]:
        """Titles and texts of pairs and spectra."""
        if self._pairs is not None:
            yield f"Norms of every pair of blocks, {self._pairs.part}", str(self._pairs)
        for name, (ends, found) in self._spectra.items():
            yield f"Spectrum of {name}", f"eigenvalues, {ends}\n{found}"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and texts."""
        table = self.table
        found: dict[str, Any] = {
            **self.opened.to_dict(),
            "complete": not self.interrupted,
            "blocks": table.to_list(),
            "flat": list(table.flat),
            "advice": self.advice(),
        }
        if self._pairs is not None:
            found["pairs"] = {
                "part": self._pairs.part,
                "blocks": list(self._pairs.names),
                "norms": self._pairs.values().tolist(),
                "stderrs": self._pairs.stderrs().tolist(),
            }
        if self._spectra:
            found["spectra"] = {name: _spectrum(*both) for name, both in self._spectra.items()}
        return {key: _finite(value) for key, value in found.items()}


def cell(estimate: Estimate) -> str:
    """A norm in a table: with its relative standard error, without one where it is exact.

    >>> cell(Estimate(3.2141, 0.0372, probes=20, seed=0, method="hutchinson")), cell(Estimate.exactly(0.5))
    ('3.21 ± 1.2%', '0.5')
    """
    if estimate.exact or estimate.value == 0:
        return f"{estimate.value:.4g}"
    return f"{estimate.value:.3g} ± {100 * estimate.stderr / estimate.value:.2g}%"


def check_writable(path: Path) -> None:
    """A file that can be written, before any work is done for it."""
    folder = path.parent
    expect(
        folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK),
        f"csv: cannot write '{path}'; expected a file in a folder that exists.",
    )


def write_csv(table: CurvatureTable, path: Path) -> None:
    """The table as a file."""
    try:
        path.write_text(table.to_csv(), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"csv: cannot write '{path}' ({error.strerror}); expected a file that can be written."
        ) from error


def _spectrum(ends: Eigenvalues, found: Inertia) -> dict[str, Any]:
    return {
        "eigenvalues": ends.values.tolist(),
        "residuals": ends.residuals.tolist(),
        "converged": ends.converged,
        "negative_share": found.negative.value,
        "zero_share": found.zero.value,
        "positive_share": found.positive.value,
        "negative_mass": found.mass.value,
    }


def _finite(value: Any) -> Any:
    """Plain data with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
