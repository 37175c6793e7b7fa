"""Call a model with given parameters, and find the tensor at which the loss begins."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.errors import InputError
from hessianlens.models.adapters.batches import inputs_of
from hessianlens.problem import Batch

_FIELDS = ("logits", "prediction_logits", "last_hidden_state", "pooler_output")


def call(model: nn.Module, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The model's outputs for a batch, as a tensor."""
    inputs = inputs_of(batch)
    if isinstance(inputs, Mapping):
        result = functional_call(model, dict(params), (), dict(inputs))
    else:
        result = functional_call(model, dict(params), (inputs,))
    return as_tensor(result)


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
