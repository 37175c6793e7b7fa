"""Random weights that depend on the seed alone, not on the dtype or on anything drawn elsewhere.

Every tensor is drawn in float64 in its standard form (N(0, 1), or uniform on [-1, 1)), scaled, and then rounded to the
dtype of the parameter. A model draws its tensors from one generator, embeddings first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.errors import check_seed
from hessianlens.state_guard import restores_state


def generator(seed: int) -> torch.Generator:
    """A generator of its own, apart from torch's global one."""
    return torch.Generator().manual_seed(check_seed(seed))


@restores_state
def fill_normal(parameter: Tensor, std: float, source: torch.Generator) -> None:
    """Overwrite a parameter with ``std`` times standard normals.

    >>> weight = torch.empty(2, 3)
    >>> fill_normal(weight, 0.0, generator(0))
    >>> weight.abs().max().item()
    0.0
    """
    if parameter.is_meta:  # a size without contents
        return
    with torch.no_grad():
        parameter.copy_(std * torch.randn(parameter.shape, generator=source, dtype=torch.float64))


@restores_state
def fill_uniform(parameter: Tensor, bound: float, source: torch.Generator) -> None:
    """Overwrite a parameter with draws that are uniform on ``[-bound, bound)``."""
    with torch.no_grad():
        parameter.copy_(bound * (2 * torch.rand(parameter.shape, generator=source, dtype=torch.float64) - 1))
