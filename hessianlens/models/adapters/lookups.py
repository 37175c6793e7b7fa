"""Ids that are outside of an embedding: which, of what, before the lookup fails without a word about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.errors import InputError
from hessianlens.models.adapters.batches import TOKENS, named_tensors
from hessianlens.problems import Batch


class Lookups(OperationMode):
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

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run `func`; a lookup is checked first."""
        if func is nnf.embedding and len(args) > 1 and isinstance(args[0], Tensor) and args[0].numel():
            self._check(args[0], args[1])
        return func(*args, **named)

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
