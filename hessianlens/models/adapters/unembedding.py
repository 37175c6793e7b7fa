"""The last linear map of a model, from features to logits: found, and stopped in front of.

Whatever a model calls, `nn.Linear`, `F.linear` or a matrix product with a parameter, passes here. If the outputs are
what its last such call gives, up to a bias, and a scale and a soft cap that the configuration states, they need not be
formed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.errors import InputError, Refusal
from hessianlens.models.adapters.outputs import call
from hessianlens.problems import Batch, Logits, LogitsForward
from hessianlens.sizes import readable

LOGITS = ("auto", "chunked", "whole")
"""Whether logits are formed: not where they are large, nowhere, or everywhere."""
_LARGE_BYTES = 2**27
"""Of the logits of a batch, of which several copies are held for derivatives."""
_SUMS = {torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__iadd__}
_PRODUCTS = {torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm}
_ROUNDING = 1e3
"""Units in the last place by which outputs may differ from the logits that a configuration states."""


@dataclass(frozen=True, eq=False)
class _Map:
    """One call of a linear map with a parameter, by its name."""

    parameter: str
    hidden: Tensor
    weight: Tensor
    bias: Tensor | None


class _Maps(OperationMode):
    """A scope in which linear maps with parameters are seen."""

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in params.items()}

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every operation of PyTorch's passes here."""
        found = self._map(func, args, named)
        if found is not None:
            self.about_to_run(found)
        result = func(*args, **named)
        if found is not None:
            self.has_run(found, result)
        elif func in _SUMS and len(args) == 2 and not named:
            self.has_added(*args, result)
        return result

    def about_to_run(self, found: _Map) -> None:
        """What is done in front of a linear map."""

    def has_run(self, found: _Map, result: Tensor) -> None:
        """What is done behind it."""

    def has_added(self, one: object, other: object, result: Tensor) -> None:
        """What is done behind a sum."""

    def name_of(self, tensor: Tensor) -> str | None:
        """The parameter that a tensor is, or is a view of."""
        return self._names.get(id(tensor if tensor._base is None else tensor._base))

    def _map(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> _Map | None:
        if func is nnf.linear:
            asked = dict(zip(("input", "weight", "bias"), args, strict=False)) | named
            hidden, weight, bias = asked["input"], asked["weight"], asked.get("bias")
        elif func in _PRODUCTS and len(args) == 2 and not named and all(isinstance(x, Tensor) for x in args):
            hidden, weight, bias = args[0], args[1].mT if args[1].ndim == 2 else args[1], None
        else:
            return None
        name = self.name_of(weight)
        base = weight if weight._base is None else weight._base
        whole = weight.ndim == 2 and weight.numel() == base.numel()
        return _Map(name, hidden, weight, bias) if name is not None and whole and hidden.ndim >= 2 else None


class LastMap(_Maps):
    """A scope that keeps the last linear map of a model.

    Args:
        params: The parameters that the model is called with.
    """

    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__(params)
        self._last: tuple[_Map, Tensor] | None = None
        self._version = 0
        self._shift: str | None = None
        self._uses = Counter[str]()

    def has_run(self, found: _Map, result: Tensor) -> None:
        """Keeps it."""
        self._last, self._shift, self._version = (found, result), None, _version(result)
        self._uses[found.parameter] += 1

    def has_added(self, one: object, other: object, result: Tensor) -> None:
        """A bias that is added behind the last map belongs to it."""
        if self._last is None or self._shift is not None or self._last[0].bias is not None:
            return
        last, made = self._last
        if one is made and isinstance(other, Tensor) and other.numel() == len(last.weight) == other.shape[-1]:
            untouched = _version(made) == self._version + (result is made)
            self._shift = self.name_of(other) if untouched else None
            if self._shift is not None:
                self._last, self._version = (last, result), _version(result)

    def found(self, model: nn.Module, outputs: Tensor) -> Unembedding | Refusal:
        """What the outputs are formed of; a refusal where that is not known."""
        if self._last is None:
            return Refusal(f"no linear map of {type(model).__name__} with a parameter as it stands was seen")
        (last, result), (scale, cap) = self._last, _stated(model)
        if result.shape != outputs.shape:
            return Refusal(f"outputs are not what its last linear map, with {last.parameter}, gives")
        if self._uses[last.parameter] > 1:
            return Refusal(f"{last.parameter} is used in {self._uses[last.parameter]} linear maps")
        same = result is outputs or (_place(result) == _place(outputs) and result.stride() == outputs.stride())
        if _version(result) != self._version:
            return Refusal(f"what its last linear map, with {last.parameter}, gives is written over in place")
        if same:
            return Unembedding(last.parameter, self._shift)
        expected = result * scale
        expected = expected if cap is None else cap * torch.tanh(expected / cap)
        gap = (expected - outputs).abs().max()
        if (scale == 1 and cap is None) or gap > _ROUNDING * torch.finfo(outputs.dtype).eps * outputs.abs().max():
            return Refusal(
                f"outputs are not what its last linear map, with {last.parameter}, gives, but something made of it"
            )
        return Unembedding(last.parameter, self._shift, scale, cap)


def _version(tensor: Tensor) -> int:
    """How often a tensor, or what it is a view of, was written over in place."""
    return 0 if tensor.is_inference() else tensor._version


def _place(tensor: Tensor) -> tuple[int, int]:
    """Where a tensor begins: its storage, also on the meta device, where no tensor has an address, and its offset."""
    return tensor.untyped_storage()._cdata, int(tensor.storage_offset())


def _stated(model: nn.Module) -> tuple[float, float | None]:
    """What a configuration says is done to logits: a scale and a soft cap."""
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return scale, None if cap is None else float(cap)


@dataclass(frozen=True)
class Unembedding:
    """A last linear map, by the parameter of its weight, and what follows.

    Attributes:
        parameter: The name of the weight.
        shift: The name of what is added behind it as a bias.
        scale: What logits are multiplied by.
        softcap: c, where they are then replaced by ``c tanh(z / c)``.
    """

    parameter: str
    shift: str | None = None
    scale: float = 1.0
    softcap: float | None = None


class _LastMapReached(BaseException):
    """The last linear map is about to run; no error, which a model might catch."""


class _StopAtLastMap(_Maps):
    """A scope in which a model ends in front of its last linear map."""

    def __init__(self, params: Mapping[str, Tensor], parameter: str) -> None:
        super().__init__({parameter: params[parameter]})
        self.reached: _Map | None = None

    def about_to_run(self, found: _Map) -> None:
        """Ends the model."""
        self.reached = found
        raise _LastMapReached


@dataclass(frozen=True, eq=False)
class FusedLossCall(LogitsForward):
    """A model as a function of parameters and batch that can end in front of its last linear map.

    Attributes:
        model: The model.
        last: Its last linear map.
        with_targets: Whether the model is handed the targets too.
        halves: Whether some of its steps may ask for half precision.
    """

    model: nn.Module
    last: Unembedding
    with_targets: bool
    halves: bool

    def __call__(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The outputs."""
        return call(self.model, params, batch, with_targets=self.with_targets, halves=self.halves)

    def logits(self, params: Mapping[str, Tensor], batch: Batch) -> Logits:
        """What the outputs would be formed of."""
        stop = _StopAtLastMap(params, self.last.parameter)
        try:
            with stop:
                self(params, batch)
        except _LastMapReached:
            pass
        if stop.reached is None:
            raise InputError(
                f"model: {type(self.model).__name__} did not come to its last linear map, with {self.last.parameter}, "
                "on this batch; give logits='whole' in hessianlens.problem."
            )
        reached, shift = stop.reached, self.last.shift
        bias = reached.bias if shift is None else params[shift].reshape(-1)
        return Logits(reached.hidden, reached.weight, bias, self.last.scale, self.last.softcap)


def are_large(*outputs: Tensor) -> bool:
    """Whether copies of some outputs would be a burden."""
    return sum(each.numel() * each.element_size() for each in outputs) >= _LARGE_BYTES


def logits_note(outputs: Tensor, found: Unembedding | Refusal) -> str:
    """How logits are dealt with while differentiating, as text."""
    size = f"{' x '.join(map(str, outputs.shape))}, {readable(outputs.numel() * outputs.element_size())}"
    if isinstance(found, Unembedding):
        return (
            f"logits ({size}) are not materialised while differentiating: hessianlens.losses.linear_cross_entropy "
            f"takes the place of the linear map with {found.parameter} and of the loss, in chunks of tokens"
        )
    return f"logits ({size}) are formed and held as a whole: {found}"
