"""Dense Hessians of whole networks by autograd: chosen weights in, one total loss out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.oracles.autograd import DenseHessian, Weights, dense_parts

Batch = Any
Piece = tuple[str, tuple[slice, ...]]
Total = Callable[[Sequence[Tensor], Sequence[Batch]], Tensor]
"""The loss of all batches at once, from the outputs of all of them."""

PARTS = {"full": "full", "ggn": "outer", "functional": "functional"}


def plain_copy(model: nn.Module, attention: str) -> nn.Module:
    """A copy in evaluation mode; a Hugging Face model with the attention that is named."""
    copied = copy.deepcopy(model).eval()
    if hasattr(copied, "set_attn_implementation"):
        copied.set_attn_implementation(attention)
        copied.config.use_cache = False
    return copied


@contextmanager
def float64_by_another_name() -> Iterator[None]:
    """Models that ask for `torch.float32` by name, in the middle of float64, are given float64."""
    names = (patch.object(torch, name, torch.float64) for name in ("float32", "float"))
    with ExitStack() as stack:
        for each in (*names, patch.object(Tensor, "float", Tensor.double)):
            stack.enter_context(each)
        yield


@contextmanager
def plain_kernels() -> Iterator[None]:
    shortcut = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), float64_by_another_name():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(shortcut)


def outputs_of(model: nn.Module, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """Logits or predictions."""
    if isinstance(batch, Mapping):
        # An encoder-decoder makes what goes into its decoder from the labels.
        decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
        inputs = {key: value for key, value in batch.items() if decodes or key != "labels"}
        result = functional_call(model, dict(weights), (), inputs)
    else:
        result = functional_call(model, dict(weights), (batch[0] if isinstance(batch, tuple) else batch,))
    if isinstance(result, Tensor):
        return result
    return result[0] if isinstance(result, tuple) else result.logits


def dense_network_hessian(
    model: nn.Module, batches: Sequence[Batch], total: Total, pieces: Mapping[str, Piece], attention: str = "eager"
) -> DenseHessian:
    """All pairs of blocks of a network, under a loss of the outputs of all batches.

    Args:
        model: The network, left alone.
        batches: All data.
        total: The loss, as a function of the outputs of all batches.
        pieces: Parameter and index of every block; they must not overlap.
        attention: Attention of a Hugging Face model.
    """
    frozen = plain_copy(model, attention)
    base = {name: p.detach() for name, p in frozen.named_parameters()}

    def outputs(blocks: Weights) -> Tensor:
        changed = dict(base)
        for block, (name, index) in pieces.items():
            changed[name] = changed[name].clone()
            changed[name][index] = blocks[block]
        return torch.cat([outputs_of(frozen, changed, batch).reshape(-1) for batch in batches])

    with plain_kernels():
        shapes = [outputs_of(frozen, base, batch).shape for batch in batches]

        def loss(flat: Tensor) -> Tensor:
            split = flat.split([shape.numel() for shape in shapes])
            return total([o.reshape(shape) for o, shape in zip(split, shapes, strict=True)], batches)

        return dense_parts(outputs, loss, {block: base[name][index] for block, (name, index) in pieces.items()})


def whole(*parameters: str) -> dict[str, Piece]:
    """Parameters that are blocks as they are."""
    return {name: (name, ()) for name in parameters}
