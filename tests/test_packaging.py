"""What a release says of itself: one version, no dependency that brings torchvision, every extra explained."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import hessianlens as hl

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_the_same_everywhere() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == hl.__version__
    assert f"version = {{{hl.__version__}}}" in (ROOT / "docs/start/cite.md").read_text()
    assert f"## [{hl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def test_no_dependency_brings_torchvision() -> None:
    """Through their metadata, as pip follows them, down to torch."""
    waiting, seen = names(PROJECT["project"]["dependencies"]), set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name == "torch":  # its own are CUDA's
            continue
        required = importlib.metadata.requires(name) or []
        waiting |= names([line for line in required if "extra ==" not in line and "platform" not in line]) - seen
    assert not seen & {"torchvision", "curvlinops-for-pytorch", "backpack-for-pytorch", "pandas", "transformers"}
    assert len(seen) < 40


def test_every_extra_is_on_the_page_about_installing() -> None:
    page = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    assert [extra for extra in PROJECT["project"]["optional-dependencies"] if f"| `{extra}` |" not in page] == ["lab"]


def test_the_package_is_used_without_curvlinops() -> None:
    imports = [
        file.name
        for package in ("hessianlens", "hessianlab")
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"^\s*(from|import) curvlinops", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert imports == ["curvlinops_bridge.py"]
