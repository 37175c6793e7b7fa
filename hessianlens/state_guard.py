"""State of the user's that a call changes for a while, and its return whatever ends the call.

A measurement runs a model in evaluation mode, with other parameters, other attention kernels and under modes of
PyTorch's that watch its operations. All of this belongs to the user. A context manager alone does not give it back: an
interruption (Ctrl-C is raised between any two instructions) may come behind its change and in front of the body of the
``with``, or behind the body and in front of ``__exit__``, or inside ``__exit__``. Two things close these gaps:

- `StateChange`, a context manager that notes how to restore the state before it changes anything;
- `restores_state`, a decorator of public calls: whatever a call has left open is restored when the call ends, in a
  ``finally`` of its own and, should that be interrupted, in a second one.

**Guarantee.** An exception that is raised at any instruction of a decorated call, and a second one that comes while the
first is dealt with, leave nothing changed: no `StateChange` open, and the modes, gradient mode, autocast and transform
levels of PyTorch as they were at the beginning (`TorchState`). Context managers that hang on the traceback (generators
that were interrupted in ``__exit__``) are closed at once, not when the traceback is dropped. It holds for the thread of
the call. It does not hold for calls that are not decorated, nor against a third exception within the same microseconds.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import torch
from torch import nn
from torch._functorch import eager_transforms
from torch.autograd import forward_ad, grad_mode
from torch.nn.modules import module as nn_module
from torch.utils import _python_dispatch
from torch.utils.module_tracker import ModuleTracker

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Restore = Callable[[], None]
"""Puts something back as it was; may run any number of times."""


class _Thread(threading.local):
    """Changes of this thread that have not been taken back, the latest last."""

    def __init__(self) -> None:
        self.changes: list[StateChange[Any]] = []


_THREAD = _Thread()


class StateChange(Generic[T]):
    """A change of the user's state for the time of a ``with``.

    A kind of change has `record`, which looks and changes nothing, and `change`.
    """

    _restore: Restore | None = None

    def record(self) -> Restore:
        """What puts everything back that `change` changes, even if it is interrupted half-way."""
        raise NotImplementedError

    def change(self) -> T:
        """Make the change; the result is what ``as`` gives."""
        raise NotImplementedError

    def __enter__(self) -> T:
        self._restore = self.record()
        try:
            _THREAD.changes.append(self)
            return self.change()
        except BaseException:
            self.restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.restore()

    def restore(self) -> None:
        """Put everything back; nothing happens if that was done before, by whomever."""
        if self._restore is None or not any(one is self for one in _THREAD.changes):
            return
        self._restore()
        _THREAD.changes[:] = [one for one in _THREAD.changes if one is not self]


class ReplacedAttribute(StateChange[None]):
    """Another value of an attribute.

    Args:
        owner: A module, a class or an object.
        name: Name of the attribute, which may be one of the owner's class.
        value: Its value for the time being.

    >>> class Owner:
    ...     name = "of the class"
    >>> owner = Owner()
    >>> with ReplacedAttribute(owner, "name", "replaced"):
    ...     owner.name
    'replaced'
    >>> owner.name, vars(owner)
    ('of the class', {})
    """

    def __init__(self, owner: Any, name: str, value: object) -> None:
        self.owner, self.name, self.value = owner, name, value

    def record(self) -> Restore:
        """The value that it has; none where it is that of the owner's class."""
        if self.name in vars(self.owner):
            return functools.partial(setattr, self.owner, self.name, getattr(self.owner, self.name))
        return self._uncover

    def _uncover(self) -> None:
        if self.name in vars(self.owner):
            delattr(self.owner, self.name)

    def change(self) -> None:
        """Another one."""
        setattr(self.owner, self.name, self.value)


class ThreadCount(StateChange[None]):
    """Another number of threads of PyTorch's.

    Args:
        threads: How many.

    >>> before = torch.get_num_threads()
    >>> with ThreadCount(1):
    ...     torch.get_num_threads()
    1
    >>> torch.get_num_threads() == before
    True
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def record(self) -> Restore:
        """How many there are."""
        return functools.partial(torch.set_num_threads, torch.get_num_threads())

    def change(self) -> None:
        """So many."""
        torch.set_num_threads(self.threads)


class ModuleTensors(StateChange[None]):
    """Parameters and buffers of a module, which a call with others (`torch.func.functional_call`) swaps for a while.

    Args:
        module: The module; its parts are looked after, too.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def record(self) -> Restore:
        """Every tensor under its name; tensors that come to be meanwhile stay."""
        return tensors_of(self.module.modules())

    def change(self) -> None:
        """Left to the call."""


def tensors_of(modules: Iterable[nn.Module]) -> Restore:
    """What puts back the parameters and buffers that some modules have now."""
    owned: list[dict[str, Any]] = []
    for module in modules:
        owned += [own for own in (module._parameters, module._buffers) if own]
    known = [(own, dict(own)) for own in owned]

    def restore() -> None:
        for now, before in known:
            for name, tensor in before.items():
                if now.get(name) is not tensor:
                    now[name] = tensor

    return restore


class WithoutAutocast(StateChange[None]):
    """Full precision on a kind of device, whatever `torch.autocast` says.

    Args:
        kind: Such as ``cuda``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def record(self) -> Restore:
        """Whether it is on."""
        return functools.partial(torch.set_autocast_enabled, self.kind, torch.is_autocast_enabled(self.kind))

    def change(self) -> None:
        """Off."""
        torch.set_autocast_enabled(self.kind, False)


def restores_state(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: the call leaves the user's state as it was, however it ends; see the guarantee above.

    >>> @restores_state
    ... def careless():
    ...     torch.set_grad_enabled(False)
    ...     raise KeyboardInterrupt
    >>> try:
    ...     careless()
    ... except KeyboardInterrupt:
    ...     torch.is_grad_enabled()
    True
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        opened, state, restored = len(_THREAD.changes), TorchState(), False
        try:
            try:
                return function(*args, **kwargs)
            finally:
                _give_back(opened, state)
                restored = True
        finally:
            if not restored:  # it was interrupted
                _give_back(opened, state)

    return call


def _give_back(opened: int, state: TorchState) -> None:
    _close_abandoned(sys.exc_info()[1])
    state.restore()
    if len(_THREAD.changes) > opened:
        while len(_THREAD.changes) > opened:
            _THREAD.changes[-1].restore()
        state.restore()  # a change that was made under a mode of the call has put that mode back


_HOLDERS = {contextlib.__file__, grad_mode.__file__}
"""Files whose functions hold, as ``self``, a scope that is left when it is finalised."""


def _close_abandoned(error: BaseException | None) -> None:
    """Finalise scopes that only a traceback holds: later they would undo what the user has done since."""
    known: set[int] = set()
    while error is not None and id(error) not in known:
        known.add(id(error))
        step = error.__traceback__
        while step is not None:
            if step.tb_frame.f_code.co_filename in _HOLDERS:
                with contextlib.suppress(RuntimeError):  # a frame that still runs is not abandoned
                    step.tb_frame.clear()
            step = step.tb_next
        error = error.__context__


def _is_tracking_hook(hook: object) -> bool:
    """Whether a hook belongs to the tracker of modules of a count of operations."""
    return isinstance(getattr(hook, "__self__", None), ModuleTracker)


class TorchState:
    """Modes of PyTorch's of this thread as they are now: everything that a context manager of its may have changed.

    Function and dispatch modes, levels of `torch.func` and of forward mode, gradient and inference mode, autocast, and
    the hooks of all modules that a count of operations works with.
    """

    def __init__(self) -> None:
        self.functions = function_modes()
        self.dispatches = _dispatch_modes()
        self.flags = {name: getattr(_python_dispatch, name) for name in _DISPATCH_FLAGS}
        self.depth = _transform_depth()
        self.nesting = eager_transforms.JVP_NESTING
        self.single_level = torch._C._functorch.get_single_level_autograd_function_allowed()
        self.dual = forward_ad._current_level
        self.forward = torch._C._is_fwd_grad_enabled()
        self.gradients = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = [torch.is_autocast_enabled(kind) for kind in _AUTOCAST]
        self.module_hooks = {key for hooks in _MODULE_HOOKS for key in hooks}

    def restore(self) -> None:
        """Everything that is not as it was is made so."""
        restore_function_modes(self.functions)
        self._restore_dispatch()
        if _transform_depth() > self.depth:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self.depth)
        if self.nesting != eager_transforms.JVP_NESTING:
            eager_transforms.JVP_NESTING = self.nesting
        torch._C._functorch.set_single_level_autograd_function_allowed(self.single_level)
        self._restore_dual_level()
        if torch._C._is_fwd_grad_enabled() != self.forward:
            torch._C._set_fwd_grad_enabled(self.forward)
        if torch.is_inference_mode_enabled() != self.inference:
            torch.inference_mode(self.inference).__enter__()
        if torch.is_grad_enabled() != self.gradients:
            torch._C._set_grad_enabled(self.gradients)
        for kind, enabled in zip(_AUTOCAST, self.autocast, strict=True):
            if torch.is_autocast_enabled(kind) != enabled:
                torch.set_autocast_enabled(kind, enabled)
        for hooks in _MODULE_HOOKS:
            for key in [key for key in hooks if key not in self.module_hooks and _is_tracking_hook(hooks[key])]:
                del hooks[key]

    def _restore_dual_level(self) -> None:
        """Leave a level of forward mode, of which there is at most one, that was entered since.

        An interruption may come between the two lines that tell PyTorch's C++ and its Python of a level, on the way in
        or out: only the first of them is asked.
        """
        if self.dual >= 0 or (forward_ad._current_level < 0 and sys.exc_info()[1] is None):
            return
        with contextlib.suppress(RuntimeError):  # there is no level
            torch._C._exit_dual_level(level=0)
        forward_ad._current_level = self.dual

    def _restore_dispatch(self) -> None:
        now = _dispatch_modes()
        same = _in_common(now, self.dispatches)
        for _ in now[same:]:
            torch._C._pop_torch_dispatch_stack(None)
        for mode in self.dispatches[same:]:
            torch._C._push_on_torch_dispatch_stack(mode)
        for name, value in self.flags.items():
            if getattr(_python_dispatch, name) != value:
                setattr(_python_dispatch, name, value)
                if name == _KNOWN_BELOW:
                    vars(_python_dispatch)["set_is_in_mode_without_ignore_compile_internals"](value)


_AUTOCAST = ("cpu", "cuda")
_MODULE_HOOKS = (nn_module._global_forward_pre_hooks, nn_module._global_forward_hooks)
_KNOWN_BELOW = "_is_in_any_mode_without_ignore_compile_internals"
_DISPATCH_FLAGS = tuple(
    name
    for name in ("_is_in_torch_dispatch_mode", "_is_in_non_infra_torch_dispatch_mode", _KNOWN_BELOW)
    if hasattr(_python_dispatch, name)
)


def _transform_depth() -> int:
    """How many transforms of `torch.func` are at work; PyTorch before 2.5 does not tell."""
    depth = getattr(torch._C._functorch, "get_dynamic_layer_stack_depth", None)
    return 0 if depth is None else int(depth())


def function_modes() -> list[Any]:
    """The stack of `torch.overrides.TorchFunctionMode`, the outermost first."""
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


def restore_function_modes(modes: Sequence[Any]) -> None:
    """Make the stack of function modes what it was."""
    now = function_modes()
    same = _in_common(now, modes)
    for _ in now[same:]:
        torch._C._pop_torch_function_stack()
    for mode in modes[same:]:
        torch._C._push_on_torch_function_stack(mode)


def _dispatch_modes() -> list[Any]:
    return [torch._C._get_dispatch_stack_at(k) for k in range(torch._C._len_torch_dispatch_stack())]


def _in_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many of the first entries are the same objects."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine is not theirs:
            break
        count += 1
    return count


class without_side_effects(StateChange[None]):
    """Derivatives can be taken inside, in full precision; outside nothing has changed, not even the next random number.

    The generators of Python, NumPy and PyTorch (of every device that is in use) are put back. Weights, gradients,
    buffers and modes of a model are not touched by the measurements themselves: they run on detached weights, in a
    scope of their own that restores the mode of every module.

    >>> torch.manual_seed(0).initial_seed()
    0
    >>> with without_side_effects():
    ...     first = torch.rand(1)
    >>> bool(torch.rand(1) == first)
    True
    """

    _derivatives: torch.inference_mode | None = None

    def record(self) -> Restore:
        """Random states and modes."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        modes = TorchState()

        def restore() -> None:
            if self._derivatives is not None:
                self._derivatives.__exit__(None, None, None)
            modes.restore()
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            if mps is not None:
                torch.mps.set_rng_state(mps)

        return restore

    def change(self) -> None:
        """Gradients on, autocast off."""
        if torch.is_inference_mode_enabled():
            self._derivatives = torch.inference_mode(False)
            self._derivatives.__enter__()
        torch.set_grad_enabled(True)
        for kind in ("cpu", "cuda"):
            torch.set_autocast_enabled(kind, False)
