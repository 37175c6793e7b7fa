"""Norms of every block, traces and spectra of the diagonal ones."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from hessianlab.experiments.statistics import spectrum_facts
from hessianlab.layer_page.facts import BlockNorms, Curvature
from hessianlab.layer_page.setting import Setting
from hessianlens.parts import LAYER_PARTS

WHOLE = "all"


def dense_parts(setting: Setting) -> dict[str, Tensor]:
    """The three dense matrices, from the closed form."""
    return {part: setting.hessian.part(part)[:].to_dense() for part in LAYER_PARTS}


def block_norms(setting: Setting) -> tuple[BlockNorms, ...]:
    """Exact norms of the six distinct blocks."""
    H, layer = setting.hessian, setting.layer
    norms = {part: H.part(part).norms() for part in LAYER_PARTS}
    return tuple(
        BlockNorms(
            row=row,
            column=column,
            rows=layer.parameters[row].numel(),
            columns=layer.parameters[column].numel(),
            **{part: float(norms[part][row, column]) for part in LAYER_PARTS},
        )
        for row, column in combinations_with_replacement(layer.names, 2)
    )


def curvatures(setting: Setting, dense: Mapping[str, Tensor]) -> tuple[Curvature, ...]:
    """Each weight matrix by itself and the whole, in every part."""
    found, start = [], 0
    ranges = {}
    for name, weight in setting.layer.parameters.items():
        ranges[name] = slice(start, start + weight.numel())
        start += weight.numel()
    for name in (*ranges, WHOLE):
        at = ranges.get(name, slice(None))
        for part in LAYER_PARTS:
            grid = setting.hessian.part(part)
            operator = grid[:] if name == WHOLE else grid[name, name]
            found.append(curvature(name, part, float(operator.trace()), dense[part][at, at]))
    return tuple(found)


def curvature(name: str, part: str, trace: float, matrix: Tensor) -> Curvature:
    """Spectrum of a symmetric matrix; an eigenvalue within rounding of zero counts as zero."""
    facts: dict[str, Any] = spectrum_facts(torch.linalg.eigvalsh(matrix))
    told = ("size", "smallest", "largest", "negative", "negative_share")
    return Curvature(name=name, part=part, trace=trace, **{fact: facts[fact] for fact in told})
