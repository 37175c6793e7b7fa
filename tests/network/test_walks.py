"""How far a question goes: the files of the library that two calls pass through, and what construction runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import hessianlens as hl
from hessianlens.problems import Problem

PACKAGE = Path(hl.__file__).parent
ASKED = ("models/attention.py", "models/block.py", "models/embedding.py", "models/transformer.py", "tasks/")
"""The model and its loss, which are the user's."""


def two_layers() -> Problem:
    model = hl.models.Transformer(layers=2, d_model=16, d_mlp=32, dtype=torch.float64)
    task = hl.tasks.Addition()
    return hl.problem(model, task.batch(8, seed=1234, carries="none"), task.cross_entropy)


def files_of(call: Callable[[], Any]) -> set[str]:
    """The files of the package whose functions run in a call, without those of the model."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and frame.f_code.co_name != "<module>" and path.is_relative_to(PACKAGE):
            found.add(path.relative_to(PACKAGE).as_posix())

    before = sys.gettrace()
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(before)
    return {name for name in found if not name.startswith(ASKED)}


def test_a_product_passes_few_files() -> None:
    v = torch.ones(256, dtype=torch.float64)
    hl.hessian(two_layers(), "layer0.attn.q") @ v  # imports
    problem = two_layers()
    assert len(files_of(lambda: hl.hessian(problem, "layer0.attn.q") @ v)) <= 31


def test_norms_by_two_routes_and_with_a_certificate_pass_a_known_number_of_files() -> None:
    """The closed form of the last layer, the curvature that it passes on, plain autograd's HVP for both."""
    names = ["layer0.attn.q", "layer1.attn.q"]
    hl.block_norms(two_layers(), names)  # imports
    problem = two_layers()
    assert len(files_of(lambda: hl.block_norms(problem, names))) <= 101


def test_construction_differentiates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = two_layers()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a gradient")

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    monkeypatch.setattr(torch.autograd, "backward", refuse)
    assert len(files_of(lambda: hl.hessian(problem, "layer0.attn.q"))) <= 8
    with pytest.raises(hl.InputError, match="a gradient"):
        hl.hessian(problem, "layer0.attn.q") @ torch.ones(256, dtype=torch.float64)
