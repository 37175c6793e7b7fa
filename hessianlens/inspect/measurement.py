"""`measure`: every block of a problem within a time budget, widest intervals first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hessianlens.display import Cells, DisplayableRows, Picture
from hessianlens.errors import check_number, check_path, check_seed, check_that, check_whole, expect, first_names
from hessianlens.files import check_writable
from hessianlens.inspect.advice import Statement, advice_text, alarm_statements, attention_statements, table_statements
from hessianlens.inspect.comparison import Comparison, compare_norms
from hessianlens.inspect.diagnostics import SECONDS, diagnose
from hessianlens.inspect.learning_rates import LIMIT, POWER, Group, learning_rate_groups, with_parameters
from hessianlens.inspect.quantisation import RoundingCost, rounding_costs
from hessianlens.inspect.resources import within_memory
from hessianlens.inspect.table import CurvatureTable, Row
from hessianlens.memory import memory_errors_explained
from hessianlens.network.base.progress import Deadline, Watch, terminations_interrupt, watching
from hessianlens.network.head_health import AttentionHealth, attention_health
from hessianlens.network.norm_run import PROBES, NormRun
from hessianlens.network.norms import REMEDY, BlockNorms
from hessianlens.network.operators import Pattern
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.parts import NORM_METHODS, PARTS, check_parts, method_name
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.sizes import number_of, parse_time, readable_time
from hessianlens.spectra.estimate import ends_in_percent
from hessianlens.state_guard import restores_state
from hessianlens.work_times import WorkTimes

BUDGET, RTOL = 300.0, 0.05
"""Seconds, and the relative half-width of intervals that is narrow enough, where nothing else is asked for."""


@dataclass(frozen=True, eq=False)
class BlockMeasurements(DisplayableRows):
    """Norms of the blocks of a problem within a budget, and what follows from them.

    Attributes:
        norms: Frobenius norms by block and part.
        blocks: The blocks asked for.
        left_out: Names of the blocks that were not measured.
        products: Hessian-vector products with probe vectors.
        seconds: Time taken.
        budget: Time allowed; None if the number of probes was given instead.
        interrupted: Whether Ctrl-C or a signal ended it.
        dtype: Precision of the numbers.
        problem: The measured problem.
        seed: Seed of the probes.
        lengths: By block and part, the lengths of the products with probe vectors that the norms come from.
        work: Processor time by kind of work.
    """

    norms: BlockNorms
    blocks: tuple[Block, ...]
    left_out: tuple[str, ...]
    products: int
    seconds: float
    budget: float | None
    interrupted: bool
    dtype: torch.dtype
    problem: Problem
    seed: int
    lengths: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    work: WorkTimes = field(default_factory=WorkTimes)

    @property
    def table(self) -> CurvatureTable:
        """One row per measured block, with scales and advice."""
        parts = list(dict.fromkeys(part for _, part in self.norms))
        rows = [
            Row.of(block, {part: self.norms[block.name, part] for part in parts})
            for block in self.blocks
            if block.name not in self.left_out
        ]
        return CurvatureTable(tuple(rows), len(self.blocks), torch.finfo(self.dtype).eps)

    @property
    def summary(self) -> str:
        """One line: how much was done, and what was left out."""
        sampled = [norm for norm in self.norms.values() if not norm.exact and norm.value]
        wide = max(sampled, key=lambda norm: norm.relative_width(), default=None)
        widest = "" if wide is None else f", widest interval {ends_in_percent(wide.value, *wide.interval())}"
        within = f" of {readable_time(self.budget)}" if self.budget is not None else ""
        ended = ", interrupted" if self.interrupted else ""
        left = f"; left out: {first_names(self.left_out)}" if self.left_out else ""
        return (
            f"{len(self.blocks) - len(self.left_out)} of {len(self.blocks)} blocks, "
            f"{number_of(self.products, 'HVP')} in {readable_time(self.seconds)}{within}{ended}{widest}{left}."
        )

    def _records(self) -> list[dict[str, Any]]:
        return self.table.records()

    def _heading(self) -> str:
        return self.summary

    def _cells(self) -> Cells:
        return self.norms._cells()

    def _picture(self, asked: bool) -> Picture | None:
        """The norms with their intervals."""
        return self.norms._picture(asked)

    @restores_state
    def page(
        self,
        path: str | os.PathLike[str],
        *,
        before: BlockMeasurements | None = None,
        budget: str | float | None = None,
        progress: bool | Watch = True,
    ) -> Path:
        """Write a self-contained page about the model; of several ranks the first one writes it.

        What the norms leave open is looked at for it: gradients, attention, eigenvalues and spectra of the blocks that
        matter, then of the others, until time is up. The page says what was left out.

        Args:
            path: The file.
            before: An earlier measurement of the same blocks, such as before training: the page shows what has changed.
            budget: Time for the closer look, in seconds or such as "5m"; a minute by default.
            progress: Show a bar.
        """
        from hessianlens.inspect.page import Baseline, model_page, subject_of  # which reads all of this class

        check_that(
            before is None or isinstance(before, BlockMeasurements), "before", before, "what hessianlens.measure gave"
        )
        target = check_writable(check_path("page", path, "the name of a file to be written"), "page")
        with watching(progress) as watch:
            deadline = Deadline(SECONDS if budget is None else parse_time(budget), ranks=self.problem.ranks)
            watch.begin(None, deadline)
            diagnostics = diagnose(self.problem, self.table, deadline, seed=self.seed, watch=watch)
        precision = str(self.dtype).removeprefix("torch.")
        how = f"seed {self.seed}, {precision} on {self.problem.device}"
        code = (
            "problem = hessianlens.problem(model, data, loss)\n"
            f"measured = hessianlens.measure(problem, budget={self.budget}, seed={self.seed})\n"
            f'measured.page("page.html"{"" if before is None else ", before=before"})'
        )
        subject = subject_of(self.problem, how, code, self.advice())
        former = None
        if before is not None:
            then = subject_of(before.problem, how, "", "")
            former = Baseline(before, then.model, then.loss)
        page = model_page(subject, self, diagnostics, former)
        return page.write(target) if self.problem.ranks.first else target

    @property
    def attention(self) -> AttentionHealth:
        """Entropy, logits and moments of every attention head; computed at the first call."""
        return self.problem.cached(AttentionHealth, lambda: attention_health(self.problem))

    def statements(self) -> list[Statement]:
        """Consequences for training, each statement with the number that it rests on."""
        return [
            *table_statements(self.table),
            *attention_statements(self.attention.layers),
            *alarm_statements(self.attention),
        ]

    def advice(self) -> str:
        """The statements as one text."""
        return advice_text(self.statements())

    def param_groups(self, base_lr: float, *, power: float = POWER, limit: float = LIMIT) -> list[dict[str, Any]]:
        """Groups of parameters with learning rates from the measured curvature, ready for `torch.optim`.

        A parameter's rate is ``base_lr (median / rms) ** power``, with its root mean square eigenvalue and that of the
        median parameter, within a factor of `limit` and rounded to powers of two, so that groups are few. Matrices,
        and biases and gains of norms, are compared among themselves and never share a group. What is flat or was not
        measured keeps `base_lr`. Every trained parameter is in exactly one group. For experiments: in trials such rates
        did not help (docs/how-to/inspect.md).

        Args:
            base_lr: The learning rate of the median parameter.
            power: 1 makes steps the inverse of curvature, as Newton's would be; 0 ignores it. The default, 0.5, lies
                between them, since the curvature of one batch is not that of all of training.
            limit: The largest factor, up or down.

        >>> import hessianlens as hl
        >>> model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, dtype=torch.float64)
        >>> task = hl.tasks.Addition(digits=1)
        >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
        >>> groups = hl.measure(problem, probes=4, budget=None, progress=False).param_groups(base_lr=0.1)
        >>> optimizer = torch.optim.AdamW(groups)
        >>> sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
        True
        """
        return with_parameters(self.groups(base_lr, power=power, limit=limit), self.problem.source)

    def groups(self, base_lr: float, *, power: float = POWER, limit: float = LIMIT) -> list[Group]:
        """The same groups by name, for a file: see `param_groups` and `hessianlens.inspect.load_param_groups`."""
        return learning_rate_groups(self.problem, self.table, base_lr, power, limit)

    def compare(self, other: BlockMeasurements) -> Comparison:
        """This and another measurement side by side; differences of norms from the same probes are paired.

        Args:
            other: Of the same blocks at other weights, on other data or of another model, with the same seed.
        """
        check_that(isinstance(other, BlockMeasurements), "other", other, "what hessianlens.measure gave")
        return compare_norms(self.norms, other.norms, self.lengths, other.lengths, self.seed == other.seed)

    @restores_state
    def quantisation(
        self, bits: int = 4, *, blocks: Pattern | None = None, probes: int = 10
    ) -> dict[str, RoundingCost]:
        """By block, what rounding its weights to so many bits costs: ``tr(H) step^2 / 24``, see `RoundingCost`.

        Args:
            bits: Of the rounded weights.
            blocks: Names, globs or ``re:`` expressions; default: all matrices that were measured.
            probes: Products for a trace that is not known exactly.
        """
        named = None if blocks is None else {block.name for block in self.problem.select(blocks)}
        chosen = [b for b in self.blocks if (len(b.shape) > 1 if named is None else b.name in named)]
        return rounding_costs(self.problem, chosen, bits, probes=probes, seed=self.seed)

    def __str__(self) -> str:
        return f"{self.norms}\n{self.summary}"

    __repr__ = __str__


@restores_state
def measure(
    problem: Problem,
    blocks: Pattern | None = None,
    *,
    budget: str | float | None = BUDGET,
    probes: int | None = None,
    parts: Sequence[str] = PARTS,
    rtol: float = RTOL,
    seed: int = 0,
    method: str = "auto",
    max_memory: str | float | None = None,
    progress: bool | Watch = True,
    resume: str | os.PathLike[str] | None = None,
) -> BlockMeasurements:
    """Norms of every block within a time budget; what `hessianlens inspect` does.

    Blocks with a closed form come first. Then one probe vector per block gives every other block a first, wide
    interval. Further probes go to the block whose interval is widest relative to its norm, until time is up or every
    relative half-width is below `rtol`. Ctrl-C and SIGTERM stop the measurement and keep the results so far.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Names, globs or ``re:`` expressions; default: all.
        budget: Seconds, or a time such as "5m"; None for `probes` vectors per block, however long that takes.
        probes: Maximum number of probe vectors per block; without a budget, their number.
        parts: Any of "full", "ggn" (or "outer") and "functional".
        rtol: Target half-width of the intervals, relative to the norm.
        seed: Seed of the probes.
        method: "auto", "exact", "sketch" or "probes", as for `hessianlens.block_norms`.
        max_memory: Memory limit of the process, such as "2GB"; batches are split to stay within it. Default: most of
            the free memory.
        progress: Show a progress bar that counts HVPs and estimates the time left.
        resume: A file for saving and loading exact norms, as for `hessianlens.block_norms`.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=4, d_mlp=8, dtype=torch.float64)
    >>> task = hl.tasks.Addition(digits=1)
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> measured = measure(problem, "layer0.*", budget=60, progress=False)
    >>> measured.left_out, measured.norms["layer0.mlp.in", "full"].relative_width() <= 0.05
    ((), True)
    """
    check_problem(problem)
    parts = check_parts(parts)
    method = method_name(method, NORM_METHODS)
    deadline = Deadline(None if budget is None else parse_time(budget), ranks=problem.ranks)
    if probes is not None:
        check_whole("probes", probes, 1)
    check_seed(seed)
    expect(budget is not None or probes is not None, "budget: got None, expected a time, or a number of probes.")
    check_number("rtol", rtol, 0.0, strictly=True)
    chosen = list(problem.blocks.values()) if blocks is None else problem.select(blocks)
    with WorkTimes().running() as times:
        fitted, _ = within_memory(problem, chosen, probes or 1, len(parts), max_memory)
        saved = None if resume is None else SavedNorms(resume, fitted)
        with memory_errors_explained(REMEDY), watching(progress) as watch:
            sketched = rtol if method == "sketch" else None
            run = NormRun(fitted, chosen, parts, seed=seed, method=method, rtol=sketched, watch=watch, saved=saved)
            interrupted = run_until(run, deadline, probes, rtol)
            if not interrupted:
                watch.end()
    return outcome(run, deadline, interrupted, times)


def run_until(run: NormRun, deadline: Deadline, probes: int | None, rtol: float) -> bool:
    """Measure until time is up or everything is known well enough; whether it was interrupted."""
    try:
        _run_until(run, deadline, probes, rtol)
    except KeyboardInterrupt:
        return True
    return False


@restores_state
def _run_until(run: NormRun, deadline: Deadline, probes: int | None, rtol: float) -> None:
    with terminations_interrupt():
        run.solve(probes or PROBES)
        if deadline.seconds is None:
            assert probes is not None
            if run.sampled:
                run.watch.begin(sum(min(probes, block.numel) for block in run.sampled), deadline)
            run.sample(probes)
        elif run.sampled:
            run.watch.begin(None, deadline)
            run.refine(deadline, rtol, probes)


def outcome(run: NormRun, deadline: Deadline, interrupted: bool, times: WorkTimes) -> BlockMeasurements:
    """What is known after a run."""
    return BlockMeasurements(
        norms=BlockNorms(run.found, run.why),
        blocks=run.blocks,
        left_out=run.left_out,
        products=run.products,
        seconds=deadline.elapsed,
        budget=deadline.seconds,
        interrupted=interrupted,
        dtype=run.problem.dtype,
        problem=run.problem,
        seed=run.seed,
        lengths={block.name: run.lengths(block) for block in run.blocks},
        work=replace(times),
    )
