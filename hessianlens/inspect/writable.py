"""Whether a file can be written, asked before any work is done for it."""

from __future__ import annotations

import os
from pathlib import Path

from hessianlens.errors import expect


def check_writable(path: Path, option: str = "csv") -> Path:
    """A file that can be written; `option` named it."""
    folder = path.parent
    expect(
        folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK),
        f"{option}: cannot write '{path}'; expected a file in a folder that exists.",
    )
    return path
