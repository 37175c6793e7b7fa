"""The digest follows every file that can change a number, and no other."""

from functools import partial
from pathlib import Path

import pytest

from hessianlab.claims.ledger import examine
from hessianlab.store.code import LABORATORY, LIBRARY, _own_files, code_of, measuring_files, package_digest
from hessianlens.attention import attention_entropy

FILES = (
    "hessianlens/__init__.py",
    "hessianlens/attention/layer.py",
    "hessianlab/figures/block_entries.py",
    "hessianlab/figures/presentation/block_entries.py",
    "hessianlab/growth/series.py",
    "hessianlab/experiments/registry.py",
    "hessianlab/plots/style.py",
    "hessianlab/store/code.py",
    "hessianlens/cli/group.py",
    "hessianlens/explorer/standalone.py",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    return tmp_path


def digest(root: Path) -> str:
    return package_digest.__wrapped__((root / "hessianlens", root / "hessianlab"))


@pytest.mark.parametrize(
    "name", ["hessianlens/__init__.py", "hessianlens/attention/layer.py", "hessianlab/figures/block_entries.py"]
)
def test_a_file_that_measures_changes_the_digest(root: Path, name: str) -> None:
    before = digest(root)
    (root / name).write_text("x = 2\n")
    assert digest(root) != before


@pytest.mark.parametrize(
    "name",
    [
        "hessianlab/plots/style.py",
        "hessianlab/store/code.py",
        "hessianlens/cli/group.py",
        "hessianlens/explorer/standalone.py",
        "hessianlab/experiments/registry.py",
        "hessianlab/figures/presentation/block_entries.py",
        "hessianlab/growth/series.py",
    ],
)
def test_a_file_that_only_draws_or_keeps_does_not(root: Path, name: str) -> None:
    before = digest(root)
    (root / name).write_text("x = 2\n")
    assert digest(root) == before


def test_a_new_and_a_renamed_file_change_the_digest(root: Path) -> None:
    digests = {digest(root)}
    (root / "hessianlens/attention/new.py").write_text("x = 1\n")
    digests.add(digest(root))
    (root / "hessianlens/attention/new.py").rename(root / "hessianlens/attention/other.py")
    digests.add(digest(root))
    assert len(digests) == 3


def test_every_excluded_part_that_exists_is_spelled_right() -> None:
    measuring = {
        path.relative_to(package.parent).as_posix()
        for package in (LIBRARY, LABORATORY)
        for path in measuring_files(package)
    }
    assert {"hessianlens/attention/layer.py", "hessianlab/experiments/experiment.py"} <= measuring
    folders = ("plots", "store", "runner", "figures/presentation")
    left_out = ("hessianlens/cli/", *(f"hessianlab/{folder}/" for folder in folders))
    assert not [name for name in measuring if name.startswith(left_out)]


def test_a_function_in_a_part_that_is_left_out_takes_it_in() -> None:
    claim = code_of(examine)
    assert claim.digest != code_of(attention_entropy).digest
    files = {path.relative_to(LABORATORY).as_posix() for path in _own_files(LABORATORY / "claims/ledger.py")}
    assert {"claims/ledger.py", "claims/finding.py"} <= files
    assert _own_files(LIBRARY / "attention/layer.py") == []


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
