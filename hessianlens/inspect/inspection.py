"""A run of everything that was asked about a model: rows first, then pairs and spectra; what is done is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hessianlens.errors import RankError
from hessianlens.inspect.data import advice_with_caveats
from hessianlens.inspect.diagnostics import SECONDS, diagnose
from hessianlens.inspect.measurement import BlockMeasurements, outcome, run_until
from hessianlens.inspect.page import Baseline, Subject, model_page
from hessianlens.inspect.preparation import OpenedModel
from hessianlens.inspect.quantisation import RoundingCost
from hessianlens.inspect.settings import PROBES
from hessianlens.inspect.table import CurvatureTable
from hessianlens.memory import memory_errors_explained
from hessianlens.network.base.progress import Deadline, Watch, terminations_interrupt
from hessianlens.network.norm_run import NormRun
from hessianlens.network.operators import hessian
from hessianlens.network.pairs import PairNorms, block_pair_norms
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.problems import Block
from hessianlens.sizes import number_of
from hessianlens.spectra import Estimate, eigenvalues, inertia
from hessianlens.spectra.estimate import ends_in_percent
from hessianlens.spectra.extremal_eigenvalues import Eigenvalues
from hessianlens.spectra.inertia_shares import RELATIVE_ZERO, Inertia
from hessianlens.state_guard import restores_state

_SHARE_PROBES, _SHARE_STEPS = 5, 128
"""For shares of eigenvalues: more steps narrow their intervals more than further probes do."""
_ENDS = 3
"""Eigenvalues at each end of a spectrum."""
_NORM_SHARE = 0.6
"""Of a budget, where a page is asked for: the rest is for the closer look."""
_LEAST = 10.0
"""Seconds that a page is given for a closer look, even where the norms have taken the whole budget."""


class Inspection:
    """What is asked about a model, and what is known so far.

    Args:
        opened: The model on its data.
        with_pairs: Whether the norms of all pairs of blocks are asked for.
        spectra: Patterns of the blocks whose spectra are asked for.
        deadline: When to stop; by default the budget of the settings, from now.
        with_page: Whether part of the budget is kept for the closer look of a page.
        bits: Also what rounding every matrix to so many bits costs; None for no such column.

    >>> from hessianlens.inspect.preparation import open_model
    >>> from hessianlens.inspect.settings import Settings
    >>> opened = open_model(Settings("toy:d_model=4", blocks=("layer0.attn.[qv]",), sequences=2))
    >>> inspection = Inspection(opened)
    >>> inspection.run()
    >>> [row.norms["functional"].value > 0 for row in inspection.table.rows]
    [True, False]
    """

    def __init__(
        self,
        opened: OpenedModel,
        with_pairs: bool = False,
        spectra: tuple[str, ...] = (),
        deadline: Deadline | None = None,
        with_page: bool = False,
        bits: int | None = None,
    ) -> None:
        self.opened, self.with_pairs, self.bits = opened, with_pairs, bits
        self.spectral_blocks: list[Block] = opened.problem.select(list(spectra)) if spectra else []
        timer = Deadline(opened.settings.seconds) if deadline is None else deadline
        self.deadline = timer.among(opened.problem.ranks)
        self._norm_deadline = self.deadline.part(_NORM_SHARE) if with_page else self.deadline
        self.interrupted, self.lost = False, ""
        settings = opened.settings
        saved = None if settings.resume is None else SavedNorms(settings.resume, opened.problem)
        self._norms = NormRun(
            opened.problem,
            opened.blocks,
            settings.parts,
            seed=settings.seed,
            method=settings.method,
            rtol=settings.rtol,
            saved=saved,
        )
        self._pairs: PairNorms | None = None
        self._spectra: dict[str, tuple[Eigenvalues, Inertia]] = {}
        self.rounding: dict[str, RoundingCost] = {}

    @property
    def measured(self) -> BlockMeasurements:
        """The norms that are known so far."""
        return outcome(self._norms, self.deadline, self.interrupted, self.opened.work)

    @property
    def table(self) -> CurvatureTable:
        """The rows measured so far, in the order of the model."""
        return self.measured.table

    def advice(self) -> str:
        """What the scales say about training, and what they cannot say."""
        return advice_with_caveats(self.measured.advice(), self.opened.loaded, self.opened.data)

    def run(self, watch: Watch | None = None) -> None:
        """Measure; an interruption, or the end of another process, ends the run and leaves what is done.

        Args:
            watch: Progress callback: the next step and the HVPs done.
        """
        try:
            with self.opened.work.running():
                self._run(watch or Watch())
        except RankError as error:
            self.interrupted, self.lost = True, str(error)

    def _run(self, watch: Watch) -> None:
        self._norms.watch = watch
        most = self.opened.settings.most_probes
        with memory_errors_explained("use --max-memory, --length, --dtype float32 or fewer --blocks"):
            self.interrupted = run_until(
                self._norms,
                self._norm_deadline,
                None if math.isinf(most) else int(most),
                self.opened.settings.narrow_enough,
            )
            if self.interrupted:
                return
            try:
                self._extra(self._norms.watch)
                self._norms.watch.end()
            except KeyboardInterrupt:
                self.interrupted = True

    @restores_state
    def _extra(self, watch: Watch) -> None:
        """Pairs and spectra, which are asked for by name and made whatever the budget is."""
        with terminations_interrupt():
            self._each_extra(watch)

    def _each_extra(self, watch: Watch) -> None:
        problem, settings, blocks = self.opened.problem, self.opened.settings, self.opened.blocks
        if self.with_pairs:
            watch.step(f"{len(blocks)} x {len(blocks)} pairs")
            names, probes = [block.name for block in blocks], settings.probes or PROBES
            self._pairs = block_pair_norms(problem, names, settings.parts[0], probes=probes, seed=settings.seed)
        for block in self.spectral_blocks:
            self._spectra[block.name] = self._spectrum(block, watch.step)
        if self.bits is not None:
            watch.step(f"rounding to {self.bits} bits")
            self.rounding = self.measured.quantisation(self.bits, probes=settings.probes or PROBES)

    def _spectrum(self, block: Block, say: Callable[[str], None]) -> tuple[Eigenvalues, Inertia]:
        title, seed = f"spectrum of {block.name}", self.opened.settings.seed
        say(title)
        op = hessian(self.opened.problem, block.name)
        count = min(_ENDS, max(1, block.numel // 2))
        which = "both" if block.numel > 1 else "largest"
        ends = eigenvalues(op, count, which, seed=seed, progress=lambda made, _: say(f"{title}: {made} HVPs"))
        return ends, inertia(op, _SHARE_PROBES, _SHARE_STEPS, seed, relative=RELATIVE_ZERO)

    def page(self, path: Path, watch: Watch | None = None, command: str = "", before: Inspection | None = None) -> Path:
        """Write a page about the model; a closer look is taken for it, in what is left of the budget, or a minute.

        Of several processes one writes it.

        Args:
            path: The file.
            watch: Progress callback: the next step.
            command: What gives the same page again.
            before: Another measurement, to be compared with.
        """
        opened, watch = self.opened, watch or Watch()
        seconds = max(self.deadline.left, _LEAST) if self.deadline.seconds is not None else SECONDS
        deadline = Deadline(seconds, ranks=opened.problem.ranks)
        watch.begin(None, deadline)
        names = [block.name for block in self.spectral_blocks]
        seed, pairs = opened.settings.seed, self._pairs
        diagnostics = diagnose(opened.problem, self.table, deadline, seed=seed, spectra=names, pairs=pairs, watch=watch)
        settings = opened.settings
        subject = Subject(
            model=self._model,
            data=opened.data.described,
            loss=self._loss,
            how=f"seed {settings.seed}, {settings.dtype} on {opened.problem.device}",
            notes=opened.notes,
            warnings=opened.caveats,
            repeat=command,
            advice=self.advice(),
        )
        former = None if before is None else Baseline(before.measured, before._model, before._loss)
        page = model_page(subject, self.measured, diagnostics, former)
        return page.write(path) if opened.problem.ranks.first else path

    @property
    def _model(self) -> str:
        return f"{self.opened.loaded.described}, {number_of(self.opened.loaded.parameters, 'parameter', ',')}"

    @property
    def _loss(self) -> str:
        return f"{self.opened.loss:.6g} ({self.opened.problem.reduction})"

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
            "complete": table.complete and not self.interrupted,
            "left_out": list(self.measured.left_out),
            "products": self.measured.products,
            "seconds": self.measured.seconds,
            "processor_seconds": self.opened.work.by_kind(),
            "blocks": table.to_list(),
            "flat": list(table.flat),
            "advice": self.advice(),
            "statements": [
                {"kind": s.kind, "value": s.value, "blocks": list(s.blocks), "text": s.text}
                for s in self.measured.statements()
            ],
        }
        if self.rounding:
            found["rounding"] = {
                "bits": self.bits,
                "blocks": {
                    name: {"rise": cost.rise, "low": cost.interval()[0], "high": cost.interval()[1], "step": cost.step}
                    for name, cost in self.rounding.items()
                },
            }
        if self._pairs is not None:
            found["pairs"] = {
                "part": self._pairs.part,
                "blocks": list(self._pairs.names),
                "norms": self._pairs.values().tolist(),
                "stderrs": self._pairs.stderrs().tolist(),
                **{name: ends.tolist() for name, ends in zip(("low", "high"), self._pairs.intervals(), strict=True)},
            }
        if self._spectra:
            found["spectra"] = {name: _spectrum(*both) for name, both in self._spectra.items()}
        return {key: _finite(value) for key, value in found.items()}


def cell(estimate: Estimate) -> str:
    """A norm in a table: with the ends of its 95 % interval in percent, without them where it is exact.

    >>> cell(Estimate(3.2141, 0.0372, probes=20, seed=0, skewed=True)), cell(Estimate.exactly(0.5))
    ('3.21 -2.1% +3.5%', '0.5')
    >>> cell(Estimate(3.2141, 0.0372, probes=4, seed=0, skewed=True))
    '3.21 -2.6% +11% few'
    """
    if estimate.exact or estimate.value == 0:
        return f"{estimate.value:.4g}"
    few = " few" if estimate.few else ""
    return f"{estimate.value:.3g} {ends_in_percent(estimate.value, *estimate.interval())}{few}"


def _spectrum(ends: Eigenvalues, found: Inertia) -> dict[str, Any]:
    return {
        "eigenvalues": ends.values.tolist(),
        "residuals": ends.residuals.tolist(),
        "converged": ends.converged,
        **_with_ends("negative_share", found.negative),
        **_with_ends("zero_share", found.zero),
        **_with_ends("positive_share", found.positive),
        **_with_ends("negative_mass", found.mass),
        "zero_up_to": found.threshold,
        "counted": found.exact,
    }


def _with_ends(name: str, share: Estimate) -> dict[str, float]:
    """A number beside the ends of its 95 % interval."""
    low, high = share.interval()
    return {name: share.value, f"{name}_low": low, f"{name}_high": high}


def _finite(value: Any) -> Any:
    """Plain data with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
