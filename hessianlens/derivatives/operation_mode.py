"""The base of scopes that every operation of PyTorch passes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class OperationMode(TorchFunctionMode):
    """A scope in which `operation` is called in place of every operation.

    >>> import torch
    >>> class Names(OperationMode):
    ...     def operation(self, func, args, named):
    ...         print(func.__name__)
    ...         return func(*args, **named)
    >>> with Names():
    ...     total = torch.ones(2).add(1, alpha=2)
    ones
    add
    >>> total
    tensor([3., 3.])
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As PyTorch calls it."""
        return self.operation(func, args, dict(kwargs) if kwargs else {})

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The result of an operation.

        Args:
            func: The operation; inside, calls of it do not come here again.
            args: Its arguments.
            named: Its arguments by name.
        """
        raise NotImplementedError
