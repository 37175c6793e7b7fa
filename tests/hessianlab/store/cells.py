"""Cells to put into stores."""

import dataclasses

import numpy as np

from hessianlab.results import FinishedCell, Measurement, Scalar, collect
from hessianlab.store import Code

CODE = Code("a" * 64, "numpy 2, torch 2")
OTHER = Code("b" * 64, "numpy 2, torch 2")
NEWER = Code("a" * 64, "numpy 2, torch 3")
PROVENANCE = dataclasses.replace(collect(), commit="c0ffee")


def cell(number: int = 0, **parameters: Scalar) -> FinishedCell:
    rows = ({"block": "query", "value": 0.1 + number}, {"block": "value", "value": float("nan")})
    return FinishedCell({"number": number, **parameters}, Measurement(rows, {"map": np.eye(3) * number}), 0.5)
