"""A forward pass on the meta device: how it would end and what it would hold, before any of it runs.

There tensors have a size but no contents. A pass over sequences of any length takes a few milliseconds and no memory,
and shows which attention the model calls, the shape of its outputs and the most memory held at once. Questions about
contents ("is nothing masked?") are answered with yes, so a dry run is good for a forecast and not for a result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from hessianlens.errors import InputError
from hessianlens.memory import SAFE_SHARE, LiveBytes, available_bytes
from hessianlens.models.adapters.first_look import Seen
from hessianlens.models.adapters.long_attention import LongAttention
from hessianlens.models.adapters.outputs import call, counted_call
from hessianlens.models.adapters.scope import differentiable_twice
from hessianlens.models.adapters.unembedding import LastMap
from hessianlens.problems import Batch, Problem, move, tensors
from hessianlens.sizes import readable


@dataclass(frozen=True, eq=False)
class ForwardDryRun:
    """A forward pass without contents.

    Attributes:
        seen: What a first run would have shown.
        peak_bytes: The most memory that its tensors would hold at once, beside parameters and data.
    """

    seen: Seen
    peak_bytes: int


def run_dry(model: nn.Module, made: Problem, batch: Batch, with_targets: bool) -> ForwardDryRun | None:
    """A batch on the meta device; None where the model cannot do without contents.

    Args:
        model: The model.
        made: The problem that is made of it.
        batch: One batch of its data.
        with_targets: Whether the model is handed the targets too.
    """
    try:
        on_meta = replace(made.alone(), data=[batch]).to(device="meta")
        inputs = (*on_meta.params.values(), *tensors(on_meta.data))
        with on_meta.scope() as attention, torch.no_grad(), LastMap(on_meta.params) as maps:
            with LiveBytes(inputs) as live:
                outputs, asked = counted_call(model, on_meta.params, on_meta.data[0], with_targets)
            last = maps.found(model, outputs)
    except Exception:  # whatever a model makes of tensors without contents, with contents it may run
        return None
    assert isinstance(attention, LongAttention)
    return ForwardDryRun(Seen(outputs, asked, attention, last), live.peak)


def ensure_batches_fit(model: nn.Module, made: Problem, with_targets: bool) -> None:
    """Refuse data of which the largest batch does not fit in memory, not even without derivatives.

    Args:
        model: The model.
        made: The problem that is made of it.
        with_targets: Whether the model is handed the targets too.
    """
    largest = max(made.data, key=lambda batch: sum(tensor.numel() for tensor in tensors(batch)))
    found = run_dry(model, made, move(largest, None, made.device), with_targets)
    free = available_bytes(made.device)
    if found is None or found.peak_bytes <= SAFE_SHARE * free:
        return
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors(largest))
    eager = getattr(getattr(model, "config", None), "_attn_implementation", None) == "eager"
    chunks = ", or load the model with attn_implementation='sdpa', whose attention runs in chunks" if eager else ""
    raise InputError(
        f"data: got a batch of shapes {shapes}, whose forward pass alone holds {readable(found.peak_bytes)}; expected "
        f"at most {readable(SAFE_SHARE * free)} of the {readable(free)} that are free on {made.device}; take shorter "
        f"sequences or fewer of them per batch{chunks}."
    )


def output_shape(model: nn.Module, batch: Batch) -> torch.Size:
    """The shape of a model's outputs, without running it where it can do without contents.

    Args:
        model: The model.
        batch: A batch.

    >>> output_shape(nn.Linear(3, 2), torch.zeros(5, 3))
    torch.Size([5, 2])
    """
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    on_meta = {name: tensor.detach().to("meta") for name, tensor in state.items()}
    with differentiable_twice(model), torch.no_grad():
        try:
            with LiveBytes():
                return call(model, on_meta, move(batch, None, "meta")).shape
        except Exception:  # as in `run_dry`
            return call(model, state, batch).shape
