"""Whatever interrupts a public call, at whichever line, everything of the user's is as it was."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

import hessianlens as hl
from hessianlens.state_guard import (
    ModuleTensors,
    ReplacedAttribute,
    Restore,
    StateChange,
    TorchState,
    function_modes,
    restore_function_modes,
    restores_state,
)
from tests.fuzz.interrupts import Situation, changed, user_state
from tests.fuzz.situations import SITUATIONS

# --- every line ------------------------------------------------------------------------------------------------------


def interrupted(*options: str) -> str:
    """In a process of its own: what a failure has changed disturbs no other test."""
    command = [sys.executable, "-m", "tests.fuzz.interrupts", *options]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()[-1]


def test_a_hundred_lines() -> None:
    cheap = (
        "problem of an MLP",
        "problem with a loss of PyTorch's",
        "product of an MLP",
        "Hessian of an attention layer",
    )
    found = interrupted("--most", "25", "--only", *cheap)
    assert found.startswith("100 trials") and found.endswith(" 0 missed, 0 failures")


@pytest.mark.long
def test_some_lines_of_larger_models() -> None:
    models = ("problem of GPT-2", "product of GPT-2", "step of a monitor", "a step without second derivative")
    found = interrupted("--most", "12", "--only", *models)
    assert found.startswith("48 trials") and found.endswith(" 0 failures")


@pytest.mark.long
@pytest.mark.parametrize("situation", list(SITUATIONS)[::4])
def test_many_lines(situation: str) -> None:
    """All lines, twice each: `python -m tests.fuzz.interrupts --per-line 2`, half an hour."""
    assert interrupted("--most", "4", "--only", situation).endswith(" 0 failures")


PURE = {
    "activations",
    "attention_entropy",
    "eigenvalue_pairs",
    "explore",
    "first_moment",
    "linear_cross_entropy",  # part of the user's own graph
    "load_param_groups",
    "predicted_growth",
    "scaled_dot_product_attention",  # part of the user's own graph
    "second_moment",
    "t_outer_rank",
    "t_outer_rank_bound",
    "third_moment",
    "third_moment_along",
}
"""Public functions that run no model of the user's and change nothing."""


def test_public_functions_restore_the_state() -> None:
    known = {name: attrgetter(hl._EARLIER.get(name, name))(hl) for name in (*hl.__all__, *hl._EARLIER)}
    functions = {name for name, value in known.items() if inspect.isfunction(value)}
    assert {name for name in functions if not is_guarded(known[name])} == functions & PURE
    for method in ("__matmul__", "to_dense", "trace", "diagonal", "frobenius_norm"):
        assert is_guarded(getattr(hl.operators.Operator, method))
    assert is_guarded(hl.Monitor.measure) and is_guarded(hl.inspect.BlockMeasurements.page)


def is_guarded(function: object) -> bool:
    """Whether `restores_state` is among the decorators of a function."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        if function.__code__.co_filename.endswith("state_guard.py"):  # type: ignore[attr-defined]
            return True
        function = inner
    return False


# --- one change ------------------------------------------------------------------------------------------------------


class Two(StateChange[None]):
    """Changes two entries of a dictionary; may fail in between."""

    def __init__(self, entries: dict[str, int], fails: bool = False) -> None:
        self.entries, self.fails = entries, fails

    def record(self) -> Restore:
        before = dict(self.entries)
        return lambda: self.entries.update(before)

    def change(self) -> None:
        self.entries["a"] = -1
        if self.fails:
            raise KeyboardInterrupt
        self.entries["b"] = -2


def test_a_change_is_taken_back() -> None:
    entries = {"a": 1, "b": 2}
    with Two(entries):
        assert entries == {"a": -1, "b": -2}
    assert entries == {"a": 1, "b": 2}


def test_a_change_that_is_interrupted_half_way_is_taken_back() -> None:
    entries = {"a": 1, "b": 2}
    with pytest.raises(KeyboardInterrupt), Two(entries, fails=True):
        pass
    assert entries == {"a": 1, "b": 2}


def test_a_call_takes_back_what_was_left_open_the_last_first() -> None:
    entries = {"a": 1, "b": 2}

    @restores_state
    def careless() -> None:
        Two(entries).__enter__()
        entries["a"] = 5
        Two(entries).__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        careless()
    assert entries == {"a": 1, "b": 2}


def test_what_was_given_back_is_not_given_back_again() -> None:
    """As when a generator that holds the scope is finalised long after the call has ended."""
    entries, scope = {"a": 1, "b": 2}, []

    @restores_state
    def careless() -> None:
        scope.append(Two(entries))
        scope[0].__enter__()

    careless()
    entries["a"] = 7
    scope[0].__exit__(None, None, None)
    assert entries == {"a": 7, "b": 2}


def test_a_restoration_that_is_interrupted_is_made_again() -> None:
    class Interrupted(Two):
        times = 0

        def record(self) -> Restore:
            before = dict(self.entries)

            def restore() -> None:
                self.times += 1
                if self.times == 1:
                    raise KeyboardInterrupt
                self.entries.update(before)

            return restore

    entries = {"a": 1, "b": 2}

    @restores_state
    def call() -> None:
        Interrupted(entries).__enter__()

    with pytest.raises(KeyboardInterrupt):
        call()
    assert entries == {"a": 1, "b": 2}


def test_changes_belong_to_their_thread() -> None:
    entries, opened, ended = {"a": 1, "b": 2}, threading.Event(), threading.Event()

    def elsewhere() -> None:
        with Two(entries):
            opened.set()
            ended.wait(10)

    other = threading.Thread(target=elsewhere)
    other.start()
    opened.wait(10)
    restores_state(lambda: None)()
    assert entries == {"a": -1, "b": -2}
    ended.set()
    other.join()
    assert entries == {"a": 1, "b": 2}


def test_tensors_of_a_module_are_put_back() -> None:
    layer = nn.Linear(2, 2)
    weight, bias = layer.weight, layer.bias
    with ModuleTensors(layer):
        functional_call(layer, {"weight": torch.zeros(2, 2)}, torch.ones(1, 2))
        layer._parameters["bias"] = nn.Parameter(torch.zeros(2))
        layer.register_buffer("cached", torch.ones(1))
    assert layer.weight is weight and layer.bias is bias
    assert "cached" in layer._buffers  # made by the module itself, for its next call


def test_an_attribute_is_put_back() -> None:
    before = nn.functional.linear
    with ReplacedAttribute(nn.functional, "linear", None):
        assert nn.functional.linear is None
    assert nn.functional.linear is before


class Passing(TorchFunctionMode):
    """Does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_modes_of_torch_are_put_back() -> None:
    """Each of them is left on by a context manager that was entered and never left."""
    situation = Situation(None, lambda: None)

    def leave_on() -> None:
        Passing().__enter__()
        torch.utils.flop_counter.FlopCounterMode(display=False).__enter__()
        torch.no_grad().__enter__()
        torch.set_autocast_enabled("cpu", True)
        torch._C._functorch._vmap_increment_nesting(2, "error")
        torch.autograd.forward_ad.enter_dual_level()

    with Passing():  # the user's own, which stays
        before, state = user_state(situation), TorchState()
        leave_on()
        assert set(changed(before, situation)) >= {"function modes", "dispatch modes", "gradient mode", "autocast"}
        state.restore()
        assert changed(before, situation) == []
        leave_on()
        torch._C._pop_torch_function_stack()
        torch._C._pop_torch_function_stack()  # the user's, too
        state.restore()
        assert changed(before, situation) == []


def test_a_change_that_was_made_under_a_mode_leaves_none_behind() -> None:
    """It is still open when the call ends, since its first restoration was interrupted; the mode was left by then."""

    class Scope(StateChange[None]):
        interrupted = False

        def record(self) -> Restore:
            modes = function_modes()

            def restore() -> None:
                if not self.interrupted:
                    self.interrupted = True
                    raise KeyboardInterrupt
                restore_function_modes(modes)

            return restore

        def change(self) -> None:
            """Left to the call."""

    @restores_state
    def call() -> None:
        with Passing(), Scope():
            pass

    with Passing():  # the user's own, which stays
        before = function_modes()
        with pytest.raises(KeyboardInterrupt):
            call()
        assert function_modes() == before
