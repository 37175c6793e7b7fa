"""How large the entries of a matrix are: a few numbers and a histogram of their logarithms."""

from __future__ import annotations

import numpy as np
from torch import Tensor

EDGES = np.round(np.arange(-16.0, 2.01, 0.1), 1)
"""Edges of the histogram's bins, in powers of ten; entries outside count in the first or last bin."""


def entry_sizes(matrix: Tensor) -> dict[str, float]:
    """Median of the absolute entries that are not zero, root mean square, largest, share of exact zeros, and norm.

    Exact zeros come from structure (a Kronecker product with an identity) and would hide the size of all others.

    >>> import torch
    >>> entry_sizes(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))["median"]
    3.0
    """
    entries = np.abs(matrix.double().numpy())
    present = entries[entries > 0]
    return {
        "median": float(np.median(present)) if present.size else 0.0,
        "rms": float(np.sqrt(np.mean(entries**2))),
        "largest": float(entries.max()),
        "zeros": float(np.mean(entries == 0)),
        "norm": float(np.linalg.norm(entries)),
    }


def log_histogram(matrix: Tensor) -> np.ndarray:
    """How many entries that are not zero lie in each bin of `EDGES`.

    >>> import torch
    >>> int(log_histogram(torch.tensor([0.0, 1e-3, -1e-3])).sum())
    2
    """
    entries = np.abs(matrix.double().numpy())
    logs = np.clip(np.log10(entries[entries > 0]), EDGES[0], EDGES[-1])
    counts, _ = np.histogram(logs, EDGES)
    return counts
