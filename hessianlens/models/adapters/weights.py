"""Weights that cannot be differentiated, by name and with the reason."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError, expect

_SHARDED = ("FullyShardedDataParallel", "FSDPModule")
_QUANTISERS = ("bitsandbytes", "torchao")
"""Packages whose parameters are quantised numbers."""
_DEQUANTISED = ("gguf",)
"""Formats of files that transformers makes ordinary parameters of."""


def check_weights(model: nn.Module) -> None:
    """Every parameter is a dense tensor of real numbers that is there as a whole.

    >>> check_weights(nn.Linear(2, 2, device="meta"))
    Traceback (most recent call last):
    hessianlens.errors.InputError: model: the parameter weight is on the meta device, which holds shapes and no numbers;
    load the weights first.
    """
    named = dict(model.named_parameters())
    expect(len(named) > 0, f"model: {type(model).__name__} has no parameters.")
    sharded = next((name for m in model.modules() if (name := _ancestor(type(m), _SHARDED))), None)
    if sharded is not None:
        raise InputError(
            f"model: its weights are sharded over ranks ({sharded}), which leaves PyTorch's gradients without a "
            "graph: they cannot be differentiated again; gather them into a model of one process, with a full state "
            "dict, and give that one (with process_group, if the data is to be shared)."
        )
    for name, tensor in named.items():
        reason = _obstacle(tensor)
        if reason is not None:
            raise InputError(f"model: the parameter {name} {reason}.")
    method = _quantised(model)
    if method is not None:
        raise InputError(
            f"model: {type(model).__name__} is quantised ({method}), and its weights are no longer numbers that can be "
            "differentiated; load it without quantisation."
        )


def _ancestor(kind: type, names: tuple[str, ...]) -> str | None:
    return next((one.__name__ for one in kind.__mro__ if one.__name__ in names), None)


def _obstacle(tensor: Tensor) -> str | None:
    """Why a parameter has no derivatives; None if it has."""
    kind = type(tensor).__name__
    if isinstance(tensor, nn.parameter.UninitializedParameter):
        return "has no shape yet; run the model once on a batch"
    if kind == "DTensor":
        return (
            "is a DTensor, sharded over ranks, and PyTorch's second derivatives of tensor-parallel modules are "
            "wrong without an error; gather it with full_tensor() into a model of one process"
        )
    if type(tensor).__module__.partition(".")[0] in _QUANTISERS or tensor.is_quantized:
        return f"is quantised ({kind}, {tensor.dtype}); load the model without quantisation"
    if tensor.is_meta:
        return "is on the meta device, which holds shapes and no numbers; load the weights first"
    if tensor.layout != torch.strided:
        return f"is sparse ({tensor.layout}), expected a dense tensor; convert it with .to_dense()"
    if tensor.is_complex():
        return f"is {tensor.dtype}, expected real numbers; give its real and imaginary part as two parameters"
    if not tensor.is_floating_point():
        return f"is {tensor.dtype}, whole numbers that have no derivative; make it a buffer"
    return None


def _quantised(model: nn.Module) -> str | None:
    """How a Hugging Face model was quantised, where that leaves no parameter behind to tell."""
    if not getattr(model, "is_quantized", False):
        return None
    method = getattr(model, "quantization_method", None)
    name = str(getattr(method, "value", method) or "by its configuration")
    return None if name in _DEQUANTISED else name
