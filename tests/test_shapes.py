"""Every shape in a signature is checked while the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

import hessianlens as hl
from hessianlens.spectra.lengths import lengths_of
from tests.shapes import checked

PACKAGE = Path(hl.__file__).parent


def annotated(root: Path) -> list[str]:
    """The modules whose signatures have shapes."""
    files = sorted(path for path in root.rglob("*.py") if "from jaxtyping import" in path.read_text(encoding="utf-8"))
    return [".".join(path.relative_to(root.parent).with_suffix("").parts) for path in files]


def unchecked(modules: list[str], packages: list[str]) -> list[str]:
    return [name for name in modules if not any(f"{name}.".startswith(f"{package}.") for package in packages)]


def test_every_package_with_shapes_is_checked(pytestconfig: pytest.Config) -> None:
    *packages, checker = pytestconfig.getoption("--jaxtyping-packages").split(",")
    assert checker == "tests.shapes.checked"
    assert annotated(PACKAGE) and unchecked(annotated(PACKAGE), packages) == []


def test_a_package_that_is_not_listed_is_found() -> None:
    modules = ["made.up.one", "made.upper", "made.up"]
    assert unchecked(modules, ["made.up"]) == ["made.upper"]
    assert unchecked(modules, ["made.up.one"]) == ["made.upper", "made.up"]


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


def test_the_packages_are_really_checked() -> None:
    with pytest.raises(TypeCheckError, match="lengths_of"):
        lengths_of(torch.ones(3))
