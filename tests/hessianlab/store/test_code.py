"""The digest follows every file that can change a number, and no other."""

from functools import partial
from pathlib import Path

import pytest

from hessianlens.attention import attention_entropy
from hessianlens.lab.claims.ledger import examine
from hessianlens.lab.store.code import PACKAGE, _own_files, code_of, measuring_files, package_digest

FILES = (
    "__init__.py",
    "attention/layer.py",
    "lab/figures/fig1/measure.py",
    "lab/figures/fig1/pictures.py",
    "lab/growth/findings/series.py",
    "lab/experiments/registry.py",
    "lab/plots/style.py",
    "lab/store/code.py",
    "cli/group.py",
    "explorer/page.py",
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    return tmp_path


def digest(package: Path) -> str:
    return package_digest.__wrapped__(package)


@pytest.mark.parametrize("name", ["__init__.py", "attention/layer.py", "lab/figures/fig1/measure.py"])
def test_a_file_that_measures_changes_the_digest(package: Path, name: str) -> None:
    before = digest(package)
    (package / name).write_text("x = 2\n")
    assert digest(package) != before


@pytest.mark.parametrize(
    "name",
    [
        "lab/plots/style.py",
        "lab/store/code.py",
        "cli/group.py",
        "explorer/page.py",
        "lab/experiments/registry.py",
        "lab/figures/fig1/pictures.py",
        "lab/growth/findings/series.py",
    ],
)
def test_a_file_that_only_draws_or_keeps_does_not(package: Path, name: str) -> None:
    before = digest(package)
    (package / name).write_text("x = 2\n")
    assert digest(package) == before


def test_a_new_and_a_renamed_file_change_the_digest(package: Path) -> None:
    digests = {digest(package)}
    (package / "attention/new.py").write_text("x = 1\n")
    digests.add(digest(package))
    (package / "attention/new.py").rename(package / "attention/other.py")
    digests.add(digest(package))
    assert len(digests) == 3


def test_every_excluded_part_that_exists_is_spelled_right() -> None:
    measuring = {path.relative_to(PACKAGE).as_posix() for path in measuring_files(PACKAGE)}
    assert {"attention/layer.py", "spectra/traces.py", "lab/experiments/experiment.py"} <= measuring
    assert not [
        name
        for name in measuring
        if name.startswith(("cli/", "lab/plots/", "lab/store/", "lab/runner/", "lab/growth/findings/"))
    ]


def test_a_function_in_a_part_that_is_left_out_takes_it_in() -> None:
    claim = code_of(examine)
    assert claim.digest != code_of(attention_entropy).digest
    files = {path.relative_to(PACKAGE).as_posix() for path in _own_files(PACKAGE / "lab/claims/ledger.py")}
    assert {"lab/claims/ledger.py", "lab/claims/check.py"} <= files
    assert _own_files(PACKAGE / "attention/layer.py") == []


def test_a_function_outside_the_package_adds_its_own_file(tmp_path: Path) -> None:
    codes = []
    for content in ("def measure(p): return 1\n", "def measure(p): return 2\n"):
        path = tmp_path / "own.py"
        path.write_text(content)
        names: dict[str, object] = {}
        exec(compile(content, str(path), "exec"), names)
        codes.append(code_of(names["measure"]))  # type: ignore[arg-type]
    assert len({codes[0], codes[1], code_of(attention_entropy)}) == 3
    assert code_of(partial(attention_entropy)) == code_of(attention_entropy)
