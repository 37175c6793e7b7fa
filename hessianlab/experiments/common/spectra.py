"""Signs, rank and conditioning of a symmetric matrix, from all its eigenvalues."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hessianlab.results import Scalar


def rounding(values: Tensor) -> float:
    """What an eigenvalue of zero may look like: size times machine precision times the largest one."""
    return len(values) * torch.finfo(values.dtype).eps * float(values.abs().max())


def spectrum_facts(values: Tensor) -> dict[str, Scalar]:
    """What the eigenvalues of a symmetric matrix say; those within rounding of zero count as zero.

    ``negative_share`` is the share of negative eigenvalues in the sum of all absolute ones, ``condition`` the largest
    absolute eigenvalue over the smallest one that is not zero.

    >>> facts = spectrum_facts(torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64))
    >>> facts["rank"], facts["negative"], facts["negative_share"], facts["condition"]
    (2, 1, 0.25, 3.0)
    """
    least = rounding(values)
    sizes = values.abs()
    kept, total = sizes[sizes > least], float(sizes.sum())
    dropped = sizes[sizes <= least]
    negative = values[values < -least]
    return {
        "size": len(values),
        "rank": len(kept),
        "negative": len(negative),
        "negative_share": float(negative.abs().sum()) / total if total else 0.0,
        "smallest": float(values.min()),
        "largest": float(values.max()),
        "norm": float(values.norm()),
        "condition": float(kept.max() / kept.min()) if len(kept) else None,
        "smallest_kept": float(kept.min() / sizes.max()) if len(kept) else None,
        "largest_dropped": float(dropped.max() / sizes.max()) if len(dropped) and total else None,
    }


def multiplicity(values: Tensor) -> int:
    """How often each positive eigenvalue comes, at least: the shortest run of equal ones.

    >>> multiplicity(torch.tensor([-2.0, -2.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64))
    2
    """
    least = rounding(values)
    positive = values[values > least].numpy()
    jumps = np.flatnonzero(np.diff(positive) > 100 * least)
    return int(np.diff(np.concatenate([[-1], jumps, [len(positive) - 1]])).min())
