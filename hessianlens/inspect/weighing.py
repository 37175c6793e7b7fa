"""How large a model will be, before it is built: counted on the meta device with one layer and with two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from hessianlens.errors import InputError, expect
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.sizes import readable

_BYTES_PER_MODULE = 4000
"""What the objects of one module take beside its weights."""


def ensure_model_fits(
    named: str, build: Callable[[int], nn.Module], layers: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Refuse a model whose weights would not fit in memory, before any of them exist.

    Weights and modules of n layers are ``a + b n``: models of one and of two layers on the meta device, where weights
    have a size and no contents, tell a and b.

    Args:
        named: The model, for the message.
        build: From a number of layers to a model.
        layers: How many it would have.
        dtype: Dtype of the derivatives, in which the weights are held beside the model's own.
        device: Where they are held.
    """
    try:
        with torch.device("meta"):
            sizes = [_size(build(count), dtype) for count in sorted({1, min(2, layers)})]
    except RuntimeError as error:  # sizes beyond what torch can count
        raise InputError(f"model: {named} could not be built: {' '.join(str(error).split())[:200]}") from error
    needed = sizes[0] + (sizes[-1] - sizes[0]) * (layers - 1)
    free = available_bytes(torch.device(device))
    expect(
        needed <= SAFE_SHARE * free,
        f"model: {named} would need {readable(needed)} for its weights, {readable(free)} are free; choose a smaller "
        "one, or --dtype float32.",
    )


def _size(model: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of the weights, in their own dtype and once more in that of the derivatives where it is another."""
    weights = {p.data_ptr() if not p.is_meta else id(p): p for p in (*model.parameters(), *model.buffers())}.values()
    held = sum(p.numel() * (p.element_size() + (dtype.itemsize if p.dtype != dtype else 0)) for p in weights)
    return held + _BYTES_PER_MODULE * sum(1 for _ in model.modules())


def ensure_saved_fits(folder: Path, dtype: torch.dtype) -> None:
    """Refuse a saved model whose files are larger than what fits in memory."""
    files = [file for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern)]
    stored = sum(file.stat().st_size for file in files)
    # Saved in half precision at best, held in float32 and in the dtype of the derivatives.
    needed, free = stored * (1 + dtype.itemsize / 4), available_bytes(torch.device("cpu"))
    expect(
        needed <= SAFE_SHARE * free,
        f"model: the weights in '{folder}' would need at least {readable(needed)}, {readable(free)} are free; "
        "use --dtype float32, or a smaller model.",
    )
