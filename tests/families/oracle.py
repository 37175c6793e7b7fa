"""Gradient, Hessian and Gauss-Newton matrix of a small model by plain double backward, without hessianlens.

The model is a copy in float64, in evaluation mode, with eager attention and eager experts. The loss is written out here
from the task alone: the mean cross-entropy of the logits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as nnf
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from tests.families.registry import TARGETS, Built, without_cache

aten = torch.ops.aten
CHUNK = 128
"""Columns that are differentiated together."""


class Oracle:
    """Second derivatives of one class's loss.

    Args:
        built: The class, built small.
        parameters: Names of the parameters that are differentiated.
    """

    def __init__(self, built: Built, parameters: Sequence[str]) -> None:
        self.task, self.batch = built.case.task, built.batch
        model: Any = copy.deepcopy(built.model).eval()
        model.set_attn_implementation("eager")
        model.set_experts_implementation("eager")
        state = {name: tensor.detach() for name, tensor in model.named_parameters()}
        self.leaves = {name: state[name].clone().requires_grad_() for name in parameters}
        with plain_run(model):
            self.logits = _logits(model, {**state, **self.leaves}, self.batch)
        self.loss = task_loss(self.task, self.logits, self.batch)
        self.gradient = dict(
            zip(
                self.leaves,
                torch.autograd.grad(
                    self.loss, list(self.leaves.values()), create_graph=True, allow_unused=True, materialize_grads=True
                ),
                strict=True,
            )
        )

    def products(self, parameter: str, vectors: Tensor, columns: Sequence[str]) -> dict[str, Tensor]:
        """``V H`` for vectors shaped as a parameter, one per row of the answer, by the parameters of the columns."""
        inputs = [self.leaves[name] for name in columns]
        gradient = self.gradient[parameter]
        if not gradient.requires_grad:
            return {name: vectors.new_zeros(len(vectors), *self.leaves[name].shape) for name in columns}
        return dict(zip(columns, _vjp(gradient, inputs, vectors), strict=True))

    def jacobian(self, columns: Sequence[str]) -> dict[str, Tensor]:
        """Derivatives of all logits by parameters, one row per logit."""
        eye = torch.eye(self.logits.numel(), dtype=self.logits.dtype).reshape(-1, *self.logits.shape)
        inputs = [self.leaves[name] for name in columns]
        return dict(zip(columns, _vjp(self.logits, inputs, eye), strict=True))

    def curvature(self) -> Tensor:
        """Second derivatives of the loss by all logits."""
        shape = self.logits.shape

        def loss(flat: Tensor) -> Tensor:
            return task_loss(self.task, flat.reshape(shape), self.batch)

        return torch.autograd.functional.hessian(loss, self.logits.detach().flatten())


def _vjp(output: Tensor, inputs: Sequence[Tensor], vectors: Tensor) -> list[Tensor]:
    """Vector-Jacobian products of many vectors; one by one where an operation cannot take them together."""
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        chunks = vectors.split(CHUNK)
        found = [torch.autograd.grad(output, inputs, chunk, is_grads_batched=True, **options) for chunk in chunks]
        joined = [None if each[0] is None else torch.cat(each) for each in zip(*found, strict=True)]
    except RuntimeError as error:
        if "vmap" not in str(error) and "batch" not in str(error):
            raise
        single = [torch.autograd.grad(output, inputs, vector, **options) for vector in vectors]
        joined = [None if each[0] is None else torch.stack(each) for each in zip(*single, strict=True)]
    pairs = zip(joined, inputs, strict=True)
    return [vectors.new_zeros(len(vectors), *like.shape) if found is None else found for found, like in pairs]


_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}
_FLOAT32_MAX = torch.finfo(torch.float32).max


class NothingNarrowed(TorchDispatchMode):
    """No float64 tensor becomes a narrower one, below autograd: a copy stays float64, and so does a matrix product."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        wanted = kwargs.get("dtype")
        if func is aten._to_copy.default and args[0].dtype == torch.float64 and wanted in _NARROW:
            return args[0].clone()
        if wanted in _NARROW and args and isinstance(args[0], Tensor) and args[0].dtype == torch.float64:
            kwargs = {**kwargs, "dtype": torch.float64}
        if func is aten.full.default and wanted is None and _FLOAT32_MAX < abs(float(args[1])) < math.inf:
            kwargs = {**kwargs, "dtype": torch.float64}
        if not str(func._schema.name).endswith("_") and any(map(_only_in_float64, args)):
            whole = func is aten.mul.Tensor
            args = tuple(each.to(torch.float64) if _is_narrow(each, whole) else each for each in args)
        if func in _PRODUCTS and any(tensor.dtype == torch.float64 for tensor in args if isinstance(tensor, Tensor)):
            args = tuple(each.to(torch.float64) if isinstance(each, Tensor) else each for each in args)
        return func(*args, **kwargs)


def _is_narrow(value: object, whole: bool) -> bool:
    """Whether a tensor is narrower than float64; with `whole`, also one of whole numbers."""
    return isinstance(value, Tensor) and (value.dtype in _NARROW or (whole and not value.is_floating_point()))


def _only_in_float64(value: object) -> bool:
    """Whether a number, as such or as a tensor of no axes, is larger than float32 holds."""
    if isinstance(value, Tensor):
        value = float(value) if value.ndim == 0 and value.dtype == torch.float64 and value.device.type == "cpu" else 0.0
    return isinstance(value, float) and _FLOAT32_MAX < abs(value) < math.inf


_NARROW = (torch.float32, torch.float16, torch.bfloat16)


@contextmanager
def plain_run(model: nn.Module) -> Iterator[None]:
    """The plain attention kernel, no cache, and nothing narrower than float64."""
    with sdpa_kernel(SDPBackend.MATH), without_cache(model), NothingNarrowed():
        yield


def _logits(model: Any, state: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
    keep: Callable[[str], bool] = lambda key: key not in TARGETS or model.config.is_encoder_decoder  # noqa: E731
    result = functional_call(model, dict(state), (), {key: value for key, value in batch.items() if keep(key)})
    if "start_positions" in batch:
        return torch.stack([result.start_logits, result.end_logits], 1)
    return result.logits


def task_loss(task: str, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean cross-entropy of a task."""
    if task == "causal":
        logits, labels = logits[:, :-1], batch["input_ids"][:, 1:]
    elif task == "question":
        labels = torch.stack([batch["start_positions"], batch["end_positions"]], 1)
    else:
        labels = batch["labels"]
    return nnf.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
