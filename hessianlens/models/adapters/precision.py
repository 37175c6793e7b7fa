"""Models that compute some steps in float32 whatever their dtype, made to compute them in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PRODUCTS = {
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.Tensor.__rmatmul__,
    torch.Tensor.bmm,
    torch.matmul,
    torch.bmm,
    torch.einsum,
}
"""Functions that refuse operands of two dtypes where others promote them."""


class Doubles(TorchFunctionMode):
    """Keeps float64 tensors in float64 where a model asks for float32.

    Norms of LLaMA-like models and eager attention cast to float32 and back, which is meant to *raise* the precision of
    half-precision models. Whole numbers may still become float32: they are exact there, and the steps that follow,
    such as the buckets of relative positions, stay what they were.

    Attributes:
        widened: Steps that asked for float32 and ran in float64.

    >>> with Doubles() as seen:
    ...     kept = torch.ones(2, dtype=torch.float64).to(torch.float32)
    >>> kept.dtype, seen.widened
    (torch.float64, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self.widened = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func` with every float32 it asks for replaced, if it acts on a float64 tensor."""
        kwargs = kwargs or {}
        if not any(_is(torch.float64, value) for value in _flat(args)):
            return func(*args, **kwargs)
        if func is torch.Tensor.float:
            self.widened += 1
            return args[0]
        if func in _PRODUCTS:
            args = _promoted(args)
        elif any(value is torch.float32 for value in (*args, kwargs.get("dtype"))):
            self.widened += 1
            args = tuple(torch.float64 if value is torch.float32 else value for value in args)
            kwargs = {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def in_precision_of(values: Iterable[Tensor]) -> Iterator[Doubles | None]:
    """A scope in which float64 stays float64, if the first floating tensor of `values` is float64; else none.

    >>> with in_precision_of([torch.ones(1)]) as seen:
    ...     seen is None
    True
    """
    first = next((value for value in values if value.is_floating_point()), None)
    if first is None or first.dtype != torch.float64:
        yield None
        return
    with Doubles() as seen:
        yield seen


def _is(dtype: torch.dtype, value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == dtype


def _flat(args: Iterable[Any]) -> Iterator[Any]:
    for value in args:
        if isinstance(value, (tuple, list)):
            yield from value
        else:
            yield value


def _promoted(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with float32 tensors raised to float64."""
    return tuple(
        type(value)(_promoted(tuple(value)))
        if isinstance(value, (tuple, list))
        else (value.double() if _is(torch.float32, value) else value)
        for value in args
    )
