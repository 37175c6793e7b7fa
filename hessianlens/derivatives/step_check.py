"""Whether a result is made of PyTorch's own steps alone, so that its derivatives are those of the function.

Autograd applies the chain rule to the steps that it has seen. Its derivatives, of every order, are right if

1. every step that depends on the leaves was seen: no tensor was detached and used, no number read out of one, nothing
   computed without gradients;
2. every step is one of PyTorch's own whose second derivative is known to be right (`STEPS_OF_PYTORCH`, each compared
   with differences in the tests), and none is a Function of a user's or of another library's;
3. nothing but PyTorch's own code runs in the backward pass: no hook on a gradient, none on saved tensors.

All three can be seen while the result and its derivatives are computed, at the price of a few microseconds per step.
What cannot be certified so may still be right: `hessianlens.derivatives.difference` decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hessianlens.derivatives.graph import kinds, steps_of
from hessianlens.state_guard import Restore, StateChange

STEPS_OF_PYTORCH = frozenset(
    [
        "torch::autograd::AccumulateGrad",
        *("View", "UnsafeView", "ReshapeAlias", "Expand", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Clone"),
        *("Alias", "Slice", "Select", "Split", "SplitWithSizes", "UnsafeSplit", "Unbind", "Cat", "Stack", "ToCopy"),
        *(
            "Repeat",
            "Flip",
            "Roll",
            "Tril",
            "Triu",
            "Index",
            "IndexSelect",
            "Gather",
            "Where",
            "MaskedFill",
            "Embedding",
        ),
        *("Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Addmv", "Dot", "Convolution"),
        *(
            "Add",
            "Sub",
            "Rsub",
            "Mul",
            "Div",
            "Neg",
            "Reciprocal",
            "Pow",
            "Sqrt",
            "Rsqrt",
            "Abs",
            "Sum",
            "Mean",
            "Cumsum",
        ),
        *("Exp", "Log", "Log1P", "Sin", "Cos", "Tanh", "Sigmoid", "LogSigmoid", "Erf", "Logsumexp", "LinalgVectorNorm"),
        *("Relu", "LeakyRelu", "Elu", "Gelu", "Silu", "Softplus", "ClampMin", "Softmax", "SafeSoftmax", "LogSoftmax"),
        *("NativeLayerNorm", "NativeBatchNorm"),
        *("NllLoss", "NllLoss2D", "MseLoss", "BinaryCrossEntropyWithLogits", "SmoothL1Loss", "HuberLoss"),
    ]
)
"""Steps of PyTorch's whose first and second derivatives the tests compare with differences, by the names of nodes."""

_aten = torch.ops.aten
_DETACH = _aten.detach.default
_READS = {
    getattr(packet, overload)
    for packet in (_aten._local_scalar_dense, _aten.set_, _aten.resize_)
    for overload in packet.overloads()
}
"""Operations that turn a tensor into a number, or put other values into it."""
_SHAPES_ONLY = {
    getattr(_aten, name).default
    for name in ("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full")
}
"""Operations whose result does not depend on the values of a tensor."""
_UNSEEN = ("tolist", "untyped_storage", "data_ptr", "register_hook")
"""Methods of tensors that no operation tells of, and that read values or change a gradient."""


class StepCheck:
    """Watches the passes by which some results and their derivatives are computed.

    Attributes:
        results: What was computed, to be put here by whoever did.

    >>> weight, check = torch.ones(2, requires_grad=True), StepCheck()
    >>> with check.forward():
    ...     loss = (weight / weight.detach().norm()).tanh().sum()
    >>> check.results.append(loss)
    >>> check.doubt
    'a tensor is detached'
    """

    def __init__(self) -> None:
        self.results: list[Tensor] = []
        self._reasons: list[str] = []

    @contextmanager
    def forward(self) -> Iterator[None]:
        """A scope in which steps are computed."""
        operations = _Operations(self._reasons)
        with _Methods(self._reasons), operations:
            yield
        operations.look_at_last()

    def backward(self) -> AbstractContextManager[None]:
        """A scope in which a derivative is taken."""
        if sys.getprofile() is None:
            return _PythonInBackward(self._reasons)
        self._reasons.append("a profiler is running")  # which is left alone
        return nullcontext()

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of steps of the results."""
        return frozenset().union(*map(kinds, self.results))

    @property
    def doubt(self) -> str:
        """Why derivatives of the results may not be those of the function; empty if they are."""
        if self._reasons:
            return self._reasons[0]
        if any(result.device.type != "cpu" for result in self.results):
            return "the backward pass runs in threads that are not looked at"
        for step in (step for result in self.results for step in steps_of(result)):
            name = step.name()
            if _kind(name) not in STEPS_OF_PYTORCH:
                return f"{name} is not among the steps whose derivatives are known"
            if name.startswith("Embedding") and step._saved_scale_grad_by_freq:
                return "an embedding scales its gradient"
        return ""


def _kind(name: str) -> str:
    return name.rstrip("0123456789").removesuffix("Backward")


class _Operations(TorchDispatchMode):
    """Every operation on a tensor that depends on the leaves: does what it gives depend on them too?

    Autograd itself detaches what a step saves of its own result, right after the step and within the same call; such a
    tensor is never used by another operation.
    """

    def __init__(self, reasons: list[str]) -> None:
        super().__init__()
        self._reasons = reasons
        self._last: Any = None
        self._results: Any = None
        self._frame: FrameType | None = None
        self._instruction = 0
        self._saved: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is ever compiled."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Every operation passes here."""
        named = kwargs or {}
        if self._reasons:
            return func(*args, **named)
        depends = self._depends(args) or (bool(named) and self._depends(named.values()))
        if func is _DETACH:
            found = func(*args)
            if depends:
                self._detached(args[0], found)
            return found
        if self._last is not None:
            self.look_at_last()
        found = func(*args, **named)
        if depends and func not in _SHAPES_ONLY:
            self._frame = frame = sys._getframe(1)
            self._last, self._results, self._instruction = func, found, frame.f_lasti
            if func in _READS:
                self._reasons.append(f"{func.overloadpacket.__name__} reads or replaces the numbers of a tensor")
        return found

    def _depends(self, arguments: Iterable[Any]) -> bool:
        """Whether an argument depends on the leaves; a detached one that is used is noted."""
        found = False
        for given in arguments:
            if isinstance(given, Tensor):
                if given.requires_grad:
                    found = True
                elif id(given) in self._saved:
                    self._reasons.append("a tensor is detached")
            elif isinstance(given, (tuple, list)) and self._depends(given):
                found = True
        return found

    def _floating(self) -> list[Tensor]:
        """What the last operation gave."""
        several = isinstance(self._results, (tuple, list))
        results = self._results if several else (self._results,)
        return [one for one in results if isinstance(one, Tensor) and one.dtype.is_floating_point]

    def _detached(self, tensor: Tensor, found: Tensor) -> None:
        frame = sys._getframe(2)
        same_call = self._frame is frame and self._instruction == frame.f_lasti
        if same_call and any(one is tensor for one in self._floating()):
            self._saved[id(found)] = found
        else:
            self._reasons.append("a tensor is detached")

    def look_at_last(self) -> None:
        """Whether the result of the last operation depends on the leaves, which is known after the call.

        Of several results one at least does; others, such as the mean that a norm has computed, are for autograd alone.
        """
        results = self._results
        if not (isinstance(results, Tensor) and results.requires_grad):
            floating = self._floating()
            if floating and not any(one.requires_grad for one in floating):
                self._reasons.append(f"{self._last.overloadpacket.__name__} is computed without gradients")
        self._last = self._results = self._frame = None


class _Methods(StateChange[None]):
    """Notes calls of methods that no operation tells of."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons

    def record(self) -> Restore:
        """Which of them `torch.Tensor` has of its own."""
        own = {name: vars(torch.Tensor)[name] for name in (*_UNSEEN, "data") if name in vars(torch.Tensor)}

        def restore() -> None:
            for name in (*_UNSEEN, "data"):
                if name in own:
                    setattr(torch.Tensor, name, own[name])
                elif name in vars(torch.Tensor):
                    delattr(torch.Tensor, name)

        return restore

    def change(self) -> None:
        """Each says so first."""
        for name in _UNSEEN:
            setattr(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name)))
        data: Any = torch.Tensor.data
        noting = self._noting("data", data.__set__)
        setattr(torch.Tensor, "data", property(data.__get__, noting))  # noqa: B010

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **named: Any) -> Any:
            if tensor.requires_grad:
                self._reasons.append(f"Tensor.{name} is called")
            return method(tensor, *args, **named)

        return call


class _PythonInBackward(StateChange[None]):
    """Notes functions in Python that run within autograd's engine: hooks, and backward passes of Functions."""

    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons
        self._inside = False

    def record(self) -> Restore:
        """There is no other profiler."""
        return partial(sys.setprofile, None)

    def change(self) -> None:
        """A profiler of our own."""
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            if self._inside:
                self._reasons.append(f"{frame.f_code.co_name} runs in the backward pass")
        elif event.startswith("c_") and getattr(argument, "__name__", "") == "run_backward":
            self._inside = event == "c_call"
