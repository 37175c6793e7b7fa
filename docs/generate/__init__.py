"""Pages that are written from the program and its recorded results each time the site is built."""

from __future__ import annotations

import shutil
from pathlib import Path

from generate import commands, laboratory, measurements, names, scenes, vocabulary

FOLDERS = ("reference/generated", "laboratory/generated", "_static/generated")
"""What is generated stands in these alone, and git ignores them."""


def write_pages(docs: Path) -> None:
    """Write all generated pages below `docs`, in place of those of an earlier build."""
    for folder in FOLDERS:
        shutil.rmtree(docs / folder, ignore_errors=True)
        (docs / folder).mkdir(parents=True)
    reference, results, static = (docs / folder for folder in FOLDERS)
    names.write(reference)
    commands.write(reference)
    vocabulary.write(reference)
    laboratory.write(results)
    measurements.write(results)
    scenes.write(static)
