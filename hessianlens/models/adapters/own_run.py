"""The model by itself: its own parameters, dtype and kernels, in evaluation mode, without derivatives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.models.adapters.outputs import arguments, as_tensor
from hessianlens.models.adapters.precision import is_half
from hessianlens.models.adapters.twice_differentiable import evaluation_mode
from hessianlens.problems import Batch, move


@dataclass(frozen=True, eq=False)
class FirstBatch:
    """What is known of the first batch from a trial run.

    Attributes:
        batch: The batch.
        outputs: Outputs as a problem with materialised logits computes them.
        own: What the model by itself returns; None if that was not kept.
    """

    batch: Batch
    outputs: Tensor
    own: object | None


def has_own_digits(model: nn.Module, precisions: Iterable[torch.dtype], device: torch.device) -> bool:
    """Whether the model by itself computes on this device, and in a dtype with digits to compare."""
    placed = all(p.device == device for p in model.parameters())
    return placed and not any(map(is_half, precisions))


def floating_dtypes(model: nn.Module) -> set[torch.dtype]:
    """Floating dtypes of the parameters."""
    return {p.dtype for p in model.parameters() if p.is_floating_point()}


def own_result(model: nn.Module, batch: Batch, with_targets: bool) -> object | None:
    """What the model by itself returns; None if it cannot be run so.

    Args:
        model: The model.
        batch: A batch.
        with_targets: Whether the model is handed the targets too.

    >>> own_result(nn.Identity(), torch.ones(1, 2), with_targets=False)
    tensor([[1., 1.]])
    """
    dtypes = floating_dtypes(model)
    given = move(batch, next(iter(dtypes)) if len(dtypes) == 1 else None, None)
    args, options = arguments(given, with_targets)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {name: tensor.detach() for name, tensor in state.items()}
    try:
        with evaluation_mode(model), torch.no_grad():
            result: object = functional_call(model, kept, args, options)
            as_tensor(result)
    except Exception:  # half of the data in another dtype, a kernel that is not there: the problem has run
        return None
    return result
