"""What a model or a loss raises on the data of its user, said in one line with what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf
from torch.overrides import TorchFunctionMode

from hessianlens.errors import InputError
from hessianlens.memory import lacks_memory
from hessianlens.models.adapters.batches import TOKENS, named_tensors
from hessianlens.problems import Batch


@contextmanager
def explained(what: str, remedy: str) -> Iterator[None]:
    """Any failure inside becomes one `InputError` that quotes it; a lack of memory stays what it is.

    Args:
        what: The argument, and what could not be done with it.
        remedy: What to do.

    >>> with explained("model: Linear could not be run", "check the data"):
    ...     torch.ones(2) @ torch.ones(3)
    Traceback (most recent call last):
    hessianlens.errors.InputError: model: Linear could not be run: inconsistent tensor size, ...; check the data.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a model or a loss may raise anything
        if lacks_memory(error) or "vmap" in str(error):  # what cannot be vectorised is looped over, not refused
            raise
        raise InputError(f"{what}: {line(error)}; {remedy}.") from error


def line(error: BaseException) -> str:
    """What an error says, in one line; its kind where it says nothing, or only a name."""
    said = " ".join(str(error).split())[:300].rstrip(".;")
    return said if " " in said else f"{type(error).__name__} {said}".rstrip()


class Lookups(TorchFunctionMode):
    """Says which ids are outside of which embedding, before the lookup fails.

    Args:
        params: The model's parameters, by name.
        batch: What the model is run on.

    >>> table = torch.zeros(3, 2)
    >>> with Lookups({"wte": table}, {"input_ids": torch.tensor([[0, 7]])}):
    ...     nnf.embedding(torch.tensor([[0, 7]]), table)
    Traceback (most recent call last):
    hessianlens.errors.InputError: data: got the ids 0 .. 7 in input_ids, expected 0 .. 2: wte has 3 rows; ...
    """

    def __init__(self, params: Mapping[str, Tensor], batch: Batch) -> None:
        super().__init__()
        self._params, self._batch = params, batch

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run `func`; a lookup is checked first."""
        if func is nnf.embedding and len(args) > 1 and isinstance(args[0], Tensor) and args[0].numel():
            self._check(args[0], args[1])
        return func(*args, **(kwargs or {}))

    def _check(self, ids: Tensor, table: Tensor) -> None:
        low, high, rows = int(ids.min()), int(ids.max()), len(table)
        if low >= 0 and high < rows:
            return
        name = next((name for name, tensor in self._params.items() if tensor is table), "an embedding")
        given = named_tensors(self._batch, "inputs")
        key = next((key for key, tensor in given if tensor.shape == ids.shape and torch.equal(tensor, ids)), None)
        if key is not None:
            found = f"data: got the ids {low} .. {high} in {key}, expected 0 .. {rows - 1}: {name} has {rows} rows"
            known = key in (*TOKENS, "inputs")
            remedy = "take the tokenizer of this model, or enlarge its embedding" if known else "check them"
            raise InputError(f"{found}; {remedy}.")
        raise InputError(
            f"data: the model looks up row {high if high >= rows else low} of {name}, which has {rows} rows; sequences "
            f"of {ids.shape[-1]} tokens are longer than its positions, cut them."
        )
