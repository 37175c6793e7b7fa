"""What a monitor is given, checked: a model or a problem, numbers of the loop, and arguments of earlier versions."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hessianlens.errors import check_that, expect
from hessianlens.models.adapters import problem as make_problem
from hessianlens.monitor.integrations import OLD_LOG_NAMES, log_from_old_names
from hessianlens.problems import Problem


def watched_problem(given: Problem | nn.Module, data: object, loss: Any) -> Problem:
    """The problem of a single process, made of a model if it was given one."""
    if isinstance(given, Problem):
        expect(data is None and loss is None, "data: got some beside a Problem, which has its own; give one of both.")
        expect(
            given.ranks.size == 1,
            f"problem: got one of {given.ranks.size} ranks, whose clocks would differ in when to measure; expected "
            "one of a single process: watch in one of them, or call hessianlens.measure in all of them.",
        )
        return given
    check_that(isinstance(given, nn.Module), "problem", given, "a Problem, or an nn.Module with data")
    expect(data is not None, "data: got none, expected the probe batch on which the model is measured.")
    return make_problem(given, data, loss)


_PRESENT_NAMES = {"warm": "the attribute warm_start", "clock": "the attribute pace.clock", "tol": "rtol="}
"""By earlier arguments that are not among those of `log`."""


def targets_from_old_names(given: Mapping[str, Any]) -> list[Any]:
    """Targets of `log` from the arguments that it has replaced, with a warning for every one of them."""
    for name in given:
        if name not in (*OLD_LOG_NAMES, *_PRESENT_NAMES):
            raise TypeError(f"Monitor() got an unexpected keyword argument {name!r}")
        warnings.warn(f"Monitor: {name}= is now {_PRESENT_NAMES.get(name, 'log=')}", DeprecationWarning, stacklevel=4)
    return log_from_old_names(given)


def check_given(name: str, value: object) -> float:
    """A number that the loop passes, perhaps as a tensor of one entry."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.detach().item()
    check_that(isinstance(value, (int, float)) and not isinstance(value, bool), name, value, "a number")
    assert isinstance(value, (int, float))
    return float(value)
