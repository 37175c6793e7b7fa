"""What is recorded of an operator, an estimate, a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import hessianlens as hl
from tests.golden.reasons import category

PARTS = {"full": hl.hessian, "ggn": hl.ggn, "functional": hl.functional}


def direction(like: Any, side: int) -> Tensor:
    """A fixed vector of rows (0) or columns (1)."""
    places = torch.arange(like.shape[side], dtype=torch.float64)
    return torch.cos((0.7 + 0.6 * side) * places + 0.3).to(like.dtype)


def operator(op: Any, wanted: str = "product norm") -> dict[str, Any]:
    """Numbers of an operator.

    Args:
        op: The operator.
        wanted: Among product, norm, entries, trace and diagonal.
    """
    rows, v = direction(op, 0), direction(op, 1)
    ways: dict[str, Callable[[], Tensor]] = {
        "product": lambda: rows @ (op @ v),
        "norm": lambda: op.frobenius_norm(),
        "entries": lambda: rows @ (op.to_dense() @ v),
        "trace": lambda: op.trace(),
        "diagonal": lambda: rows @ op.diagonal(),
    }
    return {name: float(ways[name]()) for name in wanted.split()}


def estimate(found: hl.spectra.Estimate) -> dict[str, Any]:
    """Its value and method; of what was sampled also the interval and the number of probes."""
    if found.exact:
        assert found.stderr == 0 and found.interval() == (found.value, found.value)
        return {"value": float(found.value), "method": found.method}
    low, high = found.interval()
    numbers = {"value": float(found.value), "low": float(low), "high": float(high)}
    return {**numbers, "probes": found.probes, "method": found.method}


def reason(why: str) -> dict[str, str]:
    return {"why": why, "category": category(why)}


def norms(found: hl.network.BlockNorms, reasons: bool = False) -> dict[str, Any]:
    """Norms by block and part, and why they are exact or sampled."""
    record: dict[str, Any] = {}
    for (block, part), norm in found.items():
        record.setdefault(_name(block), {})[part] = estimate(norm)
    for block, why in found.why.items() if reasons else ():
        record[_name(block)]["reason"] = reason(why)
    return record


def _name(block: Any) -> str:
    return block if isinstance(block, str) else ", ".join(map(str, block))
