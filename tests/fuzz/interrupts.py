"""Public calls that are interrupted at every line: ``python -m tests.fuzz.interrupts --per-line 2 --seed 0``.

A call is traced once, and every line that it comes to is noted: in this package, and in what PyTorch, Hugging Face and
Python run to change something for a while (context managers, swapped parameters, modes, patches). Then the call is
repeated, and KeyboardInterrupt is raised at a chosen line. Afterwards everything of the user's must be as it was: while
the exception is still held, as a notebook holds it, and also later, when its traceback is dropped and whatever hangs on
it is finalised. The same call, made once more, must give the same answer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import random
import signal
import sys
import unittest.mock
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as nnf
from torch.nn.modules import module as nn_module

import hessianlens

_PACKAGE = str(Path(hessianlens.__file__).parent) + os.sep
_TORCH = Path(torch.__file__).parent
_CHANGING = {
    contextlib.__file__,
    unittest.mock.__file__,
    *(
        str(_TORCH / name)
        for name in (
            "_functorch/functional_call.py",
            "_functorch/vmap.py",
            "_functorch/eager_transforms.py",
            "amp/autocast_mode.py",
            "autograd/forward_ad.py",
            "autograd/grad_mode.py",
            "nn/attention/__init__.py",
            "nn/modules/module.py",
            "nn/utils/_named_member_accessor.py",
            "nn/utils/stateless.py",
            "overrides.py",
            "utils/_contextlib.py",
            "utils/_python_dispatch.py",
        )
    ),
}
"""Files outside of the package that take part in changing something and putting it back."""
TRIAL_SECONDS = 600
_AGAIN = 50
"""Trials for a situation at lines that change something, and that another situation has come to already."""

Place = tuple[str, int]
"""A file and a line."""


@dataclass(frozen=True)
class Situation:
    """What belongs to the user, and a call that works on it.

    Attributes:
        model: The model.
        call: The call; its answer is numbers, or None if another call gives another one.
        data: The user's tensors, and modules other than the model.
        optimizer: The user's optimiser, if there is one.
    """

    model: nn.Module | None
    call: Callable[[], Iterable[float] | None]
    data: Any = ()
    optimizer: torch.optim.Optimizer | None = None


# --- everything of the user's ----------------------------------------------------------------------------------------


def user_state(situation: Situation) -> dict[str, Any]:
    """Everything that could have been changed, by name; first what would disturb the look at the rest."""
    found = {
        "function modes": [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())],
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "inside a dispatch mode": torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
        "functorch levels": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "jvp nesting": torch._functorch.eager_transforms.JVP_NESTING,
        "dual levels": torch.autograd.forward_ad._current_level,
        "gradient mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "module hooks": [*nn_module._global_forward_pre_hooks, *nn_module._global_forward_hooks],
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        "attention kernels": [getattr(torch._C, f"_get_{name}_sdp_enabled")() for name in _KERNELS],
        "kernel order": list(torch._C._get_sdp_priority_order()),
        "encoder shortcut": torch.backends.mha.get_fastpath_enabled(),
        "activation checkpoints": [getattr(torch.utils.checkpoint, name) for name in _CHECKPOINTS],
        "functions of torch": [getattr(nnf, name) for name in _PATCHED],
        "default dtype": torch.get_default_dtype(),
        "default device": str(torch.get_default_device()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "random states": [_plain(x) for x in (random.getstate(), np.random.get_state(), torch.get_rng_state())],
        "warning filters": list(warnings.filters),
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logging": [logging.getLogger(name).level for name in ("transformers", "huggingface_hub")],
        "data": _plain(situation.data),
    }
    if "torch._dynamo.eval_frame" in sys.modules:
        found["compiler stance"] = sys.modules["torch._dynamo.eval_frame"]._stance
    if situation.model is not None:
        found |= _model_state(situation.model)
    if situation.optimizer is not None:
        found["optimiser"] = _plain(situation.optimizer.state_dict())
    return found


_KERNELS = ("flash", "mem_efficient", "math", "cudnn", "overrideable")
_PATCHED = ("linear", "has_torch_function", "scaled_dot_product_attention", "multi_head_attention_forward", "softmax")
_CHECKPOINTS = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def _model_state(model: nn.Module) -> dict[str, Any]:
    modules = list(model.modules())
    parameters = list(model.named_parameters())
    configs = {id(m.config): m.config for m in modules if hasattr(m, "config")}
    return {
        "training flags": [m.training for m in modules],
        "hooks": [list(getattr(m, kind)) for m in modules for kind in _HOOKS],
        "attributes": [sorted(m.__dict__) for m in modules],
        "forward": [m.__dict__.get("forward") for m in modules],
        "submodules": [[id(child) for child in m._modules.values()] for m in modules],
        "parameters": [[(name, id(p)) for name, p in m._parameters.items()] for m in modules],
        "buffers": [[(name, id(b)) for name, b in m._buffers.items()] for m in modules],
        "values": [_plain(p) for _, p in parameters] + [_plain(b) for b in model.buffers()],
        "gradients": [(id(p.grad), _plain(p.grad)) for _, p in parameters],
        "requires_grad": [p.requires_grad for _, p in parameters],
        "graphs": [p.grad_fn is None for _, p in parameters],
        "dropout": [m.p for m in modules if isinstance(m, nn.Dropout)],
        "configurations": [config.to_dict() for config in configs.values()],
        "attention": [config._attn_implementation for config in configs.values()],
    }


def _plain(value: Any) -> Any:
    """Something that can be compared with ==."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, nn.Module):
        return [(name, id(tensor), _plain(tensor)) for name, tensor in value.named_buffers()]
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def changed(before: dict[str, Any], situation: Situation) -> list[str]:
    """Names of what is not as it was."""
    after = user_state(situation)
    return [name for name in before if name not in after or after[name] != before[name]]


# --- lines -----------------------------------------------------------------------------------------------------------


class _Lines:
    """Looks at every line that is run: counts it, and raises at one of them.

    Args:
        target: A line and how many times it is come to before KeyboardInterrupt is raised there; None to count.
    """

    def __init__(self, target: tuple[Place, int] | None = None) -> None:
        self.target, self.left = (None, 0) if target is None else target
        self.counts: Counter[Place] = Counter()
        self._wanted: dict[str, bool] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if file not in self._wanted:
            self._wanted[file] = file.startswith(_PACKAGE) or file in _CHANGING
        if not self._wanted[file] or (self.target is not None and self.target[0] != file):
            return None
        return self.line

    def line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            if self.target is None:
                self.counts[place] += 1
            elif place == self.target:
                self.left -= 1
                if self.left == 0:
                    raise KeyboardInterrupt
        return self.line


def run_traced(call: Callable[[], object], lines: _Lines) -> object:
    """Run something and look at its lines."""
    sys.settrace(lines)
    try:
        return call()
    finally:
        sys.settrace(None)


@dataclass(frozen=True)
class Trial:
    """A call that was interrupted; `fault` says what was changed or went wrong, empty if nothing was and did."""

    situation: str
    place: Place
    occurrence: int
    reached: bool
    fault: str = ""

    def __str__(self) -> str:
        file, line = self.place
        return f"{self.situation}: {file.removeprefix(_PACKAGE)}:{line}, time {self.occurrence}: {self.fault}"


def trial(name: str, make: Callable[[], Situation], place: Place, occurrence: int, answer: Any) -> Trial:
    """Make a situation, interrupt its call, and look."""
    situation = make()
    before = user_state(situation)
    held: BaseException | None = None
    try:
        run_traced(situation.call, lines := _Lines((place, occurrence)))
    except BaseException as error:  # what the call makes of an interruption is its own affair, its traces are not
        held = error
    reached = lines.left <= 0
    fault = ", ".join(changed(before, situation))
    if not fault and reached:
        fault = _late(situation, held)
    del held
    if not fault and reached and answer is not None:
        again = situation.call()
        assert again is not None
        if not all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(again, answer, strict=True)):
            fault = "another answer afterwards"
    return Trial(name, place, occurrence, reached, fault)


def _late(situation: Situation, held: BaseException | None) -> str:
    """What is changed when the exception is forgotten, by something that still wants to put back what it borrowed."""
    model = situation.model
    if held is None or model is None:
        return ""
    for module in model.modules():
        module.training = not module.training
    torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled())
    owner = next(m for m in model.modules() if any(p is not None for p in m._parameters.values()))
    name = next(name for name, p in owner._parameters.items() if p is not None)
    old = owner._parameters[name]
    assert old is not None
    owner._parameters[name] = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)
    before = user_state(situation)
    held.__traceback__ = held.__context__ = held.__cause__ = None
    found = changed(before, situation)
    for module in model.modules():
        module.training = not module.training
    torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled())
    owner._parameters[name] = old
    return "".join(f"{each} later on, " for each in found)


# --- a series of trials ----------------------------------------------------------------------------------------------


def record(make: Callable[[], Situation]) -> tuple[Counter[Place], list[float] | None]:
    """How often each line is come to by a call that nobody disturbs, and its answer."""
    make().call()  # what is made once in a process is made
    situation = make()
    before = user_state(situation)
    lines = _Lines()
    answer = run_traced(situation.call, lines)
    assert changed(before, situation) == [], changed(before, situation)
    return lines.counts, None if answer is None else list(answer)  # type: ignore[call-overload]


def targets(counts: Counter[Place], per_line: int, draw: random.Random) -> Iterator[tuple[Place, int]]:
    """Of every line some of the times it is come to: the first, the last, then any."""
    for place, count in counts.items():
        chosen = list(dict.fromkeys((1, count)))[:per_line]
        others = [k for k in draw.sample(range(1, count + 1), min(count, per_line + 2)) if k not in chosen]
        for occurrence in (*chosen, *others[: per_line - len(chosen)]):
            yield place, occurrence


@dataclass
class Outcome:
    """Trials of a series, how many never came to their line, and those after which something was changed."""

    trials: int = 0
    lines: int = 0
    missed: int = 0
    faults: list[Trial] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.trials} trials at {self.lines} lines, {self.missed} missed, {len(self.faults)} failures"


def interrupt(
    situations: dict[str, Callable[[], Situation]], per_line: int, most: int | None, seed: int, say: bool = False
) -> Outcome:
    """Trials for every situation, in processes of their own: what a failure has changed disturbs no other trial.

    Args:
        situations: By name.
        per_line: Trials for every line.
        most: The most trials for a situation, half of them at lines of files that change something. Without it every
            line that some situation comes to is tried in the first that does.
        seed: Of what is drawn.
        say: Print what has been done.
    """
    outcome, known, lines = Outcome(), set[Place](), set[Place]()
    for name, make in situations.items():
        draw = random.Random(seed)
        counts, answer = record(make)
        chosen = list(targets(counts, per_line, draw))
        if most is None:  # a line once for all situations, and some more of those that change things
            again = [one for one in chosen if one[0] in known and not _is_plain(one[0])]
            chosen = [one for one in chosen if one[0] not in known]
            chosen += draw.sample(again, min(len(again), _AGAIN))
            known |= set(counts)
        if most is not None and len(chosen) > most:
            draw.shuffle(chosen)
            chosen.sort(key=lambda one: _is_plain(one[0]))
            half = chosen[: most // 2]
            chosen = half + draw.sample(chosen[most // 2 :], most - len(half))
        found = list(_in_processes(name, make, chosen, answer))
        outcome.trials += len(found)
        lines |= {one.place for one in found}
        outcome.lines = len(lines)
        outcome.missed += sum(not one.reached for one in found)
        outcome.faults += [one for one in found if one.fault]
        if say:
            here = [one for one in found if one.fault]
            print(f"{name}: {len(found)} trials, {sum(counts.values())} line events, {len(here)} failures", flush=True)
            for one in here:
                print(f"    {one}", flush=True)
    return outcome


def _is_plain(place: Place) -> bool:
    """Whether a line is not in a file whose business is to change things for a while."""
    return not (place[0] in _CHANGING or place[0].endswith(("state_guard.py", "scope.py")))


def _in_processes(
    name: str, make: Callable[[], Situation], chosen: list[tuple[Place, int]], answer: list[float] | None
) -> Iterator[Trial]:
    done = 0
    while done < len(chosen):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            _child(name, make, chosen[done:], answer, writing)
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                place, occurrence, reached, fault = json.loads(line)
                done += 1
                yield Trial(name, (place[0], place[1]), occurrence, reached, fault)
        _, status = os.waitpid(child, 0)
        if status:
            place, occurrence = chosen[done]
            done += 1
            yield Trial(name, place, occurrence, True, f"the process ended with status {status}")


def _child(
    name: str, make: Callable[[], Situation], chosen: list[tuple[Place, int]], answer: list[float] | None, writing: int
) -> None:
    code = 1
    try:
        with os.fdopen(writing, "w") as out:
            for place, occurrence in chosen:
                signal.alarm(TRIAL_SECONDS)
                try:
                    found = trial(name, make, place, occurrence, answer)
                except Exception as error:
                    found = Trial(name, place, occurrence, True, f"{type(error).__name__}: {error}"[:200])
                out.write(json.dumps([place, occurrence, found.reached, found.fault]) + "\n")
                out.flush()
                if found.fault:
                    break
        code = 0
    finally:
        os._exit(code)


def main() -> int:
    from tests.fuzz.situations import SITUATIONS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-line", type=int, default=1, help="trials for every line")
    parser.add_argument("--most", type=int, help="the most trials for a situation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="situations, by name")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {name: make for name, make in SITUATIONS.items() if not asked.only or name in asked.only}
    outcome = interrupt(chosen, asked.per_line, asked.most, asked.seed, say=True)
    print(outcome)
    return int(bool(outcome.faults))


if __name__ == "__main__":
    sys.exit(main())
