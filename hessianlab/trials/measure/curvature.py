"""The norms of the Hessian's blocks of a model in training, on a few sequences of its task."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from hessianlab.experiments.common.slopes import log_log_slope
from hessianlab.results import Row
from hessianlab.training import Ensemble
from hessianlab.trials.measure.candidate_rates import GROUPS, group_of
from hessianlab.trials.measure.tasks import Learned
from hessianlens.models.adapters import problem
from hessianlens.network import block_norms
from hessianlens.problems import Block, Problem
from hessianlens.watching import Monitor

SEQUENCES = 16
"""Of the validation data, that curvature is measured on."""

PARTS = ("full", "ggn", "functional")

SCALES = {"small": (1e-5, 10**-4.5, 1e-4), "here": (0.5, 1.0, 2.0)}
"""Factors of the embeddings at which growth is measured, by the name of the range."""

_PROBES = 8


def curvature_problem(model: nn.Module, learned: Learned) -> Problem:
    """The task's loss on a few sequences, in double precision; the model itself is left alone."""
    data = {"tokens": learned.validation[:SEQUENCES]}
    # the model is the library's own: what is checked of a user's is known of it
    return problem(copy.deepcopy(model).double(), data, learned.task.cross_entropy, check=False, verify=False)


class Watched:
    """The models of the reported seeds, each with the monitor that users get, which looks at them along training."""

    def __init__(self, models: Mapping[int, nn.Module], learned: Learned) -> None:
        self._models = {seed: copy.deepcopy(model).double() for seed, model in models.items()}
        data = {"tokens": learned.validation[:SEQUENCES]}
        self._monitors = {}
        for seed, model in self._models.items():
            known = problem(model, data, learned.task.cross_entropy, check=False, verify=False)
            self._monitors[seed] = Monitor(
                known,
                [block.name for block in _matrices(known)],
                every=1,
                overhead=None,
                quantities=("norm", "gradient"),
                whole=False,
                probes=_PROBES,
                steps=2,
            )

    def look(self, step: int, ensemble: Ensemble) -> list[Row]:
        """Norm, root mean square eigenvalue and gradient of each matrix's own block; none of what diverged."""
        rows: list[Row] = []
        for member, (seed, monitor) in enumerate(self._monitors.items()):
            if not bool(ensemble.weights[member].isfinite().all()):
                continue
            ensemble.load(member, self._models[seed])
            found = monitor.measure(step).numbers
            for block in monitor.blocks:
                numbers = found[block.name]
                norm = numbers["norm"].value
                sizes = {"frobenius": norm, "rms": norm / math.sqrt(block.numel), "gradient": numbers["gradient"].value}
                rows.append({"stage": "curvature", "seed": seed, "step": step, "block": block.name, **sizes})
        return rows


def growth_exponents(known: Problem, names: Sequence[str]) -> list[Row]:
    """Powers with which the norms of blocks grow when the embeddings are scaled.

    ``range`` is "small" (embeddings at least ten thousand times smaller than they are: the limit that theory speaks of;
    with a norm it lies where the norm's epsilon exceeds the variance of a token, which no model in use meets) or "here"
    (from half to twice as large: what the model itself would feel). The power is None where the block vanishes.
    """
    rows: list[Row] = []
    for where, scales in SCALES.items():
        found = [block_norms(_scaled(known, s), names, PARTS, probes=_PROBES, seed=0) for s in scales]
        for name in names:
            for part in PARTS:
                slope = log_log_slope(scales, [norms[name, part].value for norms in found])
                kept = None if slope is None or not math.isfinite(slope) else slope
                rows.append({"block": name, "part": part, "range": where, "exponent": kept})
    return rows


def _scaled(known: Problem, scale: float) -> Problem:
    """The problem with both embeddings times a factor."""
    tables = {name: scale * value for name, value in known.params.items() if group_of(name) == 0}
    return replace(known, params={**known.params, **tables})


def mean_curvature(model: nn.Module, learned: Learned) -> dict[str, float]:
    """Root mean square eigenvalue of each group of blocks; what couples two matrices of a group is left out."""
    known = curvature_problem(model, learned)
    blocks = _matrices(known)
    norms = block_norms(known, [block.name for block in blocks], ("full",), probes=_PROBES, seed=0)
    squares, counts = dict.fromkeys(GROUPS, 0.0), dict.fromkeys(GROUPS, 0)
    for block in blocks:
        group = GROUPS[group_of(block.parameter)]
        squares[group] += norms[block.name, "full"].value ** 2
        counts[group] += block.numel
    return {group: math.sqrt(squares[group] / counts[group]) for group in GROUPS}


def _matrices(known: Problem) -> list[Block]:
    """Blocks of matrices; biases and gains are left out."""
    return [block for block in known.blocks.values() if len(block.shape) == 2]
