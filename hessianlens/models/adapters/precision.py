"""Models that compute some steps in a narrower dtype than asked for, made to compute them in the one asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.state_guard import WithoutAutocast

_NARROWER = {
    torch.float64: {torch.float32, torch.float16, torch.bfloat16},
    torch.float32: {torch.float16, torch.bfloat16},
}
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
_CASTS_LIKE = {torch.Tensor.to, torch.Tensor.type_as}
_PRODUCTS = {
    torch.Tensor.matmul,
    torch.Tensor.__matmul__,
    torch.Tensor.__rmatmul__,
    torch.Tensor.bmm,
    torch.Tensor.mm,
    torch.matmul,
    torch.bmm,
    torch.mm,
    torch.addmm,
    torch.baddbmm,
    torch.einsum,
    nnf.linear,
    nnf.scaled_dot_product_attention,
}
"""Functions that refuse operands of two dtypes where others promote them, and that autocast computes in half."""

_FACTORIES = {torch.full, torch.tensor, torch.scalar_tensor}
"""Functions that make a tensor of a number, in float32 unless something else is asked for."""

_MULTIPLICATIONS = {torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__}


class WidenedPrecision(OperationMode):
    """Keeps tensors of one precision in it where a model asks for a narrower one.

    Norms of LLaMA-like models and eager attention cast to float32 and back, which is meant to *raise* the precision of
    half-precision models; others cast to half precision, or run under autocast, to save time. Whole numbers may still
    become what is asked for: they are exact there, and the steps that follow, such as the buckets of relative
    positions, stay what they were.

    Args:
        dtype: The precision, float32 or float64.

    Attributes:
        asked: Narrower dtypes that were asked for.

    >>> with WidenedPrecision(torch.float64) as seen:
    ...     kept = torch.ones(2, dtype=torch.float64).to(torch.float32)
    >>> kept.dtype, seen.asked
    (torch.float64, {torch.float32})
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.asked = dtype, set[torch.dtype]()
        self._narrower = _NARROWER[dtype]

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run `func` with every narrower dtype it asks for replaced, if it acts on a tensor of the precision."""
        if getattr(func, "__name__", "") == "__get__":  # a shape or a dtype is looked up
            return func(*args, **named)
        own = self._first_own(args)
        own = self._first_own(named.values()) if own is None else own
        if own is None:
            if self._too_large(args, named):
                if func in _FACTORIES:
                    named = {**named, "dtype": self.dtype}
                elif func in _MULTIPLICATIONS:  # whole numbers would become float32
                    args = tuple(self._as_own(value) for value in args)
                elif not func.__name__.endswith("_") or func.__name__.endswith("__"):  # nothing in place
                    args = self._promoted(args)
            return func(*args, **named)
        if func in _CASTS and _CASTS[func] in self._narrower and own is args[0]:
            self.asked.add(_CASTS[func])
            return own
        if func in _PRODUCTS:
            args = self._promoted(args)
            named = dict(zip(named, self._promoted(tuple(named.values())), strict=True))
        elif func in _CASTS_LIKE and own is args[0] and any(map(self._is_narrow, args[1:])):
            args = tuple(self._widened(value) for value in args)
        else:
            args = tuple([self._replaced(value) if isinstance(value, torch.dtype) else value for value in args])
            if named:
                named = {name: self._replaced(value) for name, value in named.items()}
        kind = own.device.type
        if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return func(*args, **named)
        if func in _PRODUCTS:
            self.asked.add(torch.get_autocast_dtype(kind))
        with WithoutAutocast(kind):
            return func(*args, **named)

    def _first_own(self, values: Iterable[Any]) -> Tensor | None:
        """The first tensor of the precision, one level deep; this is asked at every step of a model."""
        for value in values:
            if isinstance(value, Tensor):
                if value.dtype == self.dtype:
                    return value
            elif isinstance(value, (tuple, list)):
                for inner in value:
                    if isinstance(inner, Tensor) and inner.dtype == self.dtype:
                        return inner
        return None

    @staticmethod
    def _too_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a number that float32 cannot hold, such as the least one of float64 for a mask, meets float32."""
        default = torch.finfo(torch.get_default_dtype()).max
        numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, float)]
        return kwargs.get("dtype") is None and any(default < abs(value) < math.inf for value in numbers)

    def _is_narrow(self, value: object) -> bool:
        return isinstance(value, Tensor) and value.dtype in self._narrower

    def _as_own(self, value: Any) -> Any:
        return value.to(self.dtype) if isinstance(value, Tensor) and not value.is_complex() else value

    def _widened(self, value: Any) -> Any:
        """A narrow tensor in the precision; a cast to its dtype then changes nothing."""
        if not self._is_narrow(value):
            return value
        self.asked.add(value.dtype)
        return value.to(self.dtype)

    def _replaced(self, value: Any) -> Any:
        """The precision in place of a narrower dtype."""
        if not isinstance(value, torch.dtype) or value not in self._narrower:
            return value
        self.asked.add(value)
        return self.dtype

    def _promoted(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments with narrower tensors raised to the precision."""
        return tuple(
            type(value)(self._promoted(tuple(value)))
            if isinstance(value, (tuple, list))
            else (value.to(self.dtype) if self._is_narrow(value) else value)
            for value in args
        )


class NarrowResults(OperationMode):
    """Sees whether a model asks for less than one precision somewhere; changes nothing.

    Args:
        dtype: The precision, float32 or float64.

    Attributes:
        seen: Whether a step gave something narrower.

    >>> with NarrowResults(torch.float64) as results:
    ...     narrow = torch.ones(2, dtype=torch.float64).to(torch.float32)
    >>> results.seen
    True
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.seen = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        self._narrower = _NARROWER[dtype]

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every operation of PyTorch's passes here."""
        result = func(*args, **named)
        if isinstance(result, Tensor) and result.dtype in self._narrower:
            self.seen = True
        return result


def in_precision_of(values: Iterable[Tensor], halves: bool = True) -> AbstractContextManager[WidenedPrecision | None]:
    """A scope in which nothing is computed in less than the precision of the first floating tensor of `values`.

    Args:
        values: Tensors.
        halves: Whether half precision may occur; if not, there is nothing to do in float32.

    >>> with in_precision_of([torch.arange(2)]) as seen:
    ...     seen is None
    True
    """
    first = next((value for value in values if value.is_floating_point()), None)
    if first is None or first.dtype not in _NARROWER or (first.dtype == torch.float32 and not halves):
        return nullcontext()
    return WidenedPrecision(first.dtype)


def is_half(dtype: torch.dtype) -> bool:
    """Whether a dtype is narrower than float32."""
    return dtype.itemsize < torch.float32.itemsize


def _own_dtypes(model: nn.Module) -> list[torch.dtype]:
    """Floating dtypes of the parameters, narrowest first."""
    found = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return sorted(found, key=lambda dtype: (dtype.itemsize, str(dtype)))


def widest_dtype(model: nn.Module) -> torch.dtype:
    """The widest dtype of the parameters, at least float32."""
    return torch.float64 if torch.float64 in _own_dtypes(model) else torch.float32


def weights_note(model: nn.Module, dtype: torch.dtype) -> tuple[str, ...]:
    """A note on weights in half precision or in several dtypes."""
    own = _own_dtypes(model)
    half = any(map(is_half, own))
    if not half and len(own) < 2:
        return ()
    rounded = " of the rounded weights" if half else ""
    return (f"weights are {_names(own)}: derivatives are computed in {_names([dtype])}{rounded}",)


def precision_note(asked: Iterable[torch.dtype], dtype: torch.dtype) -> tuple[str, ...]:
    """A note on narrower dtypes that some steps ask for."""
    if not asked:
        return ()
    return (f"the model casts some steps to {_names(asked)}: they run in {_names([dtype])} while differentiating",)


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
