"""Call a model with given parameters, and find the tensor at which the loss begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.errors import InputError, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.models.adapters.batches import TOKENS, inputs_of, named_tensors, targets_of
from hessianlens.models.adapters.precision import in_precision_of
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


_NO_GRAPH = "does not require grad and does not have a grad_fn"
"""What autograd says of a derivative of something that it has not followed."""
_FIELDS = ("logits", "prediction_logits", "last_hidden_state", "pooler_output")
_ENDS = ("start_logits", "end_logits")


def call(
    model: nn.Module,
    params: Mapping[str, Tensor],
    batch: Batch,
    *,
    with_targets: bool = False,
    halves: bool = True,
) -> Tensor:
    """The model's outputs for a batch, as a tensor, throughout in no less than the precision of the parameters.

    Args:
        model: The model.
        params: Its parameters and buffers.
        batch: A batch; the model sees its inputs.
        with_targets: Also hand over the targets, as `targets`; see `wants_targets`.
        halves: Whether some steps may ask for half precision.
    """
    return counted_call(model, params, batch, with_targets, halves)[0]


def counted_call(
    model: nn.Module, params: Mapping[str, Tensor], batch: Batch, with_targets: bool, halves: bool = True
) -> tuple[Tensor, frozenset[torch.dtype]]:
    """As `call`, and the narrower dtypes that some steps asked for."""
    inputs = inputs_of(batch)
    args, options = arguments(batch, with_targets)

    def run() -> object:
        return functional_call(model, dict(params), args, options)

    remedy = f"it was given {_shapes(inputs)}, compare that with its forward"
    with failures_as_input_errors(f"model: {type(model).__name__} could not be run on the data", remedy):
        try:
            with in_precision_of(params.values(), halves) as seen:
                result = run()
        except IndexError:
            with Lookups(params, inputs), torch.no_grad():
                run()
            raise
        except RuntimeError as error:
            expect(
                _NO_GRAPH not in str(error),
                f"model: {type(model).__name__} takes a derivative with respect to its own parameters by autograd "
                "while it runs; expected a forward pass that also runs with detached parameters under torch.no_grad(). "
                "Take that derivative by torch.func.grad, vjp or jvp.",
            )
            raise
    return as_tensor(result), frozenset(() if seen is None else seen.asked)


def arguments(batch: Batch, with_targets: bool) -> tuple[tuple[object, ...], dict[str, object]]:
    """What a model is called with: arguments by place and by name."""
    inputs = inputs_of(batch)
    args: tuple[object, ...] = () if isinstance(inputs, Mapping) else (inputs,)
    options: dict[str, object] = dict(inputs) if isinstance(inputs, Mapping) else {}
    targets = targets_of(batch) if with_targets else None
    if targets is not None:
        options["targets"] = targets.clamp(min=0)  # targets without a loss have another number in every library
    return args, options


def checked_call(
    model: nn.Module, params: Mapping[str, Tensor], batch: Batch, with_targets: bool
) -> tuple[Tensor, frozenset[torch.dtype]]:
    """As `counted_call`, with every id looked at before it is looked up: on a GPU a failed lookup ends the process."""
    with Lookups(params, inputs_of(batch)):
        return counted_call(model, params, batch, with_targets)


def _shapes(inputs: Batch) -> str:
    """Names, shapes and dtypes of what a model is given."""
    return ", ".join(
        f"{name} {tuple(t.shape)} {'' if t.layout == torch.strided else 'sparse '}{str(t.dtype).removeprefix('torch.')}"
        for name, t in named_tensors(inputs, "inputs")
    )


def wants_targets(model: nn.Module, params: Mapping[str, Tensor], batch: Batch) -> bool:
    """Whether the model, as nanoGPT does, gives outputs at every position only when it gets `targets`."""
    targets = targets_of(batch)
    if not isinstance(targets, Tensor) or targets.ndim != 2 or targets.is_floating_point():
        return False
    if "targets" not in inspect.signature(model.forward).parameters:
        return False
    with torch.no_grad():
        found = call(model, params, batch)
    return found.ndim == 3 and found.shape[1] < targets.shape[1]


def as_tensor(result: object) -> Tensor:
    """Logits or predictions out of whatever a model returns: a tensor, a Hugging Face output, a tuple, a dict.

    Logits of the start and of the end of an answer are rows of one tensor, (B, 2, L).

    >>> import torch
    >>> as_tensor({"logits": torch.ones(2)}).shape
    torch.Size([2])
    """
    if isinstance(result, Tensor):
        return result
    for name in _FIELDS:
        found = _field(result, name)
        if isinstance(found, Tensor):
            return found
    ends = [_field(result, name) for name in _ENDS]
    if all(isinstance(end, Tensor) for end in ends):
        return torch.stack(ends, 1)  # type: ignore[arg-type]
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise InputError(
        f"model: returned {type(result).__name__}, expected a tensor, a tuple that begins with one, or a field among "
        f"{', '.join(_FIELDS)}; wrap the model so that it returns its predictions."
    )


def _field(result: object, name: str) -> object:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
