"""Every shape in a signature is checked while the tests run."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

import hessianlens as hl
from hessianlens.spectra.norms import lengths_of
from tests.shapes import checked

PACKAGE = Path(hl.__file__).parent


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if "from jaxtyping import" in path.read_text(encoding="utf-8")]


def unchecked(module: ModuleType, source: str) -> list[str]:
    """The functions and methods that have a shape in their signatures, but are not checked."""
    found = []
    for node in ast.parse(source).body:
        holder = vars(module)[node.name] if isinstance(node, ast.ClassDef) else module
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef) and "[Tensor, '" in ast.unparse(inner).split(":\n")[0]:
                made = vars(holder)[inner.name]
                function = next(
                    (getattr(made, name) for name in ("fget", "func", "__func__") if hasattr(made, name)), made
                )
                found += [] if function.__code__.co_filename == jaxtyped.__code__.co_filename else [inner.name]
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_every_shape_is_checked(file: Path) -> None:
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    assert unchecked(import_module(name), file.read_text(encoding="utf-8")) == []


def test_a_function_that_is_not_checked_is_found() -> None:
    source = "def f(x: Float[Tensor, 'n']) -> None: ...\ndef g(x: int) -> None: ..."
    module = ModuleType("made_up")
    exec(f"from __future__ import annotations\n{source}", vars(module))
    assert unchecked(module, source) == ["f"]


@jaxtyped(typechecker=checked)
def column_sums(matrix: Float[Tensor, "n m"], times: int = 1) -> Float[Tensor, "m"]:
    if matrix.ndim != 2:
        raise ValueError("matrix: expected two axes.")
    return times * matrix.sum(int(matrix.shape[0] == 3))


def test_a_wrong_shape_is_found() -> None:
    assert column_sums(torch.ones(2, 4)).shape == (4,)
    with pytest.raises(TypeCheckError, match="return value"):
        column_sums(torch.ones(3, 4))
    with pytest.raises(TypeCheckError):
        column_sums(torch.ones(2, 4, dtype=torch.int64))


def test_what_a_function_refuses_it_refuses_itself() -> None:
    with pytest.raises(ValueError, match="expected two axes"):
        column_sums(torch.ones(2))


def test_nothing_but_shapes_is_checked() -> None:
    assert column_sums(torch.ones(2, 4), times=0.5).sum() == 4  # type: ignore[arg-type]


def test_the_package_is_really_checked() -> None:
    with pytest.raises(TypeCheckError, match="lengths_of"):
        lengths_of(torch.ones(3))
