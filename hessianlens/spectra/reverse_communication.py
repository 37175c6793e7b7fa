"""Reverse communication: an iteration asks for products with a matrix instead of making them.

An iteration is a generator of matrices ``V [n, c]`` that is sent ``A V`` for each; what it returns is its result. Who
runs it decides when a product is made: `answer` makes all of them at once, a monitor one per training step.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from torch import Tensor

T = TypeVar("T")
Iteration: TypeAlias = Generator[Tensor, Tensor, T]


def answer(iteration: Iteration[T], multiply: Callable[[Tensor], Tensor]) -> T:
    """The result of an iteration, every product made at once.

    Args:
        iteration: What asks.
        multiply: From V to ``A V``.

    >>> import torch
    >>> def twice(v):
    ...     w = yield v
    ...     return (yield w)
    >>> answer(twice(torch.ones(2, 1)), lambda V: 3 * V).flatten()
    tensor([9., 9.])
    """
    try:
        vectors = next(iteration)
        while True:
            vectors = iteration.send(multiply(vectors))
    except StopIteration as end:
        result: T = end.value
        return result
