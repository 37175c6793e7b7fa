"""Call a model with given parameters, and find the tensor at which the loss begins."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.errors import InputError
from hessianlens.models.adapters.batches import inputs_of, targets_of
from hessianlens.models.adapters.precision import in_precision_of
from hessianlens.problems import Batch

_FIELDS = ("logits", "prediction_logits", "last_hidden_state", "pooler_output")


def call(
    model: nn.Module,
    params: Mapping[str, Tensor],
    batch: Batch,
    *,
    with_targets: bool = False,
    halves: bool = True,
) -> Tensor:
    """The model's outputs for a batch, as a tensor, throughout in no less than the precision of the parameters.

    Args:
        model: The model.
        params: Its parameters and buffers.
        batch: A batch; the model sees its inputs.
        with_targets: Also hand over the targets, as `targets`; see `wants_targets`.
        halves: Whether some steps may ask for half precision.
    """
    return counted_call(model, params, batch, with_targets, halves)[0]


def counted_call(
    model: nn.Module, params: Mapping[str, Tensor], batch: Batch, with_targets: bool, halves: bool = True
) -> tuple[Tensor, frozenset[torch.dtype]]:
    """As `call`, and the narrower dtypes that some steps asked for."""
    inputs = inputs_of(batch)
    args: tuple[object, ...] = () if isinstance(inputs, Mapping) else (inputs,)
    options = dict(inputs) if isinstance(inputs, Mapping) else {}
    targets = targets_of(batch) if with_targets else None
    if targets is not None:
        options["targets"] = targets.clamp(min=0)  # targets without a loss have another number in every library
    with in_precision_of(params.values(), halves) as seen:
        result = functional_call(model, dict(params), args, options)
    return as_tensor(result), frozenset(() if seen is None else seen.asked)


def wants_targets(model: nn.Module, params: Mapping[str, Tensor], batch: Batch) -> bool:
    """Whether the model, as nanoGPT does, gives outputs at every position only when it gets `targets`."""
    targets = targets_of(batch)
    if not isinstance(targets, Tensor) or targets.ndim != 2 or targets.is_floating_point():
        return False
    if "targets" not in inspect.signature(model.forward).parameters:
        return False
    with torch.no_grad():
        found = call(model, params, batch)
    return found.ndim == 3 and found.shape[1] < targets.shape[1]


def as_tensor(result: object) -> Tensor:
    """Logits or predictions out of whatever a model returns: a tensor, a Hugging Face output, a tuple, a dict.

    >>> import torch
    >>> as_tensor({"logits": torch.ones(2)}).shape
    torch.Size([2])
    """
    if isinstance(result, Tensor):
        return result
    for name in _FIELDS:
        found = result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
        if isinstance(found, Tensor):
            return found
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise InputError(
        f"model: returned {type(result).__name__}, expected a tensor, a tuple that begins with one, or a field among "
        f"{', '.join(_FIELDS)}; wrap the model so that it returns its predictions."
    )
