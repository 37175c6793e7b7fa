"""The interactive scenes, as the one file that `hessianlens explore --html` writes; the first page frames it."""

from __future__ import annotations

from pathlib import Path

from hessianlens.explorer import page


def write(folder: Path) -> None:
    """Write the scene of the first page, and all of them."""
    (folder / "first-scene.html").write_text(page(["activation"]), encoding="utf-8")
    (folder / "scenes.html").write_text(page(), encoding="utf-8")
