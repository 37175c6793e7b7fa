"""Attention as a single operation of PyTorch's dispatcher, for those who write down what a model does.

Whoever watches every operation, to differentiate or to count, sees the chunks of an attention one by one, and would
keep all of them. Inside `as_one_operation` it sees one call, ``hessianlens::attention``, twice differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from hessianlens.attention.chunked import passes
from hessianlens.attention.chunked.chunk import Operands
from hessianlens.attention.chunked.functions import Frame, Value
from hessianlens.attention.chunked.rule import Rule

_ONE_OPERATION: ContextVar[bool] = ContextVar("one_operation", default=False)
_FRAMES: list[Frame] = []
"""What goes with a call and is no tensor, by number: an operation takes tensors and numbers only."""

_LIBRARY = torch.library.Library("hessianlens", "DEF")
_LIBRARY.define("attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? visible, int frame) -> Tensor")


@contextmanager
def as_one_operation() -> Iterator[None]:
    """A scope in which attention is one operation of the dispatcher."""
    before = _ONE_OPERATION.set(True)
    try:
        yield
    finally:
        _ONE_OPERATION.reset(before)


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, visible: Tensor | None, heads: int, rule: Rule
) -> Tensor:
    """``O`` as rows (n, g, L, f), for operands as in `Operands`."""
    frame = Frame(rule, heads)
    result: Tensor
    if _ONE_OPERATION.get():
        result = torch.ops.hessianlens.attention(q, k, v, bias, visible, _number(frame))
    else:
        result = Value.apply(q, k, v, bias, visible, frame)
    return result


def _number(frame: Frame) -> int:
    if frame not in _FRAMES:
        _FRAMES.append(frame)
    return _FRAMES.index(frame)


def _value(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, visible: Tensor | None, frame: int) -> Tensor:
    own = _FRAMES[frame]
    return passes.value(Operands(q, k, v, bias, visible, own.heads), own.rule)


def _with_derivatives(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, visible: Tensor | None, frame: int
) -> Tensor:
    asked = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, bias))
    result: Tensor
    if asked:
        result = Value.apply(q, k, v, bias, visible, _FRAMES[frame])
    else:
        with torch._C._AutoDispatchBelowAutograd():
            result = torch.ops.hessianlens.attention(q, k, v, bias, visible, frame)
    return result


_LIBRARY.impl("attention", _value, "CompositeExplicitAutograd")
_LIBRARY.impl("attention", _with_derivatives, "Autograd")
