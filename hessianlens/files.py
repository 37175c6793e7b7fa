"""Files that are written whole or not at all, and text that a spreadsheet takes for text."""

from __future__ import annotations

import os
from pathlib import Path

from hessianlens.errors import InputError, expect

_BEGINS_A_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file under another name first, then rename it; nothing is left of it if that fails.

    What is no regular file, such as a pipe, and what lies in a folder that takes no new file, is written in place.

    Raises:
        OSError: As `open` and `os.replace` raise it; what was at `path` before is still there.
    """
    content = content.encode(errors="replace") if isinstance(content, str) else content  # a path may be no text
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        target.write_bytes(content)
        return
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def check_directory(directory: Path, option: str = "out") -> None:
    """Raise `InputError` if nothing could be written there, before anything is computed; `option` named it."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"{option}: cannot write to {directory}: {existing} is a file; give a directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"{option}: cannot write to {directory}: no permission to write in {existing}; give another one."
        )


def check_writable(path: Path, option: str = "csv") -> Path:
    """A file that can be written; `option` named it."""
    folder = path.parent
    expect(
        folder.is_dir() and not path.is_dir() and os.access(path if path.exists() else folder, os.W_OK),
        f"{option}: cannot write '{path}'; expected a file in a folder that exists.",
    )
    return path


def spreadsheet_text(value: object) -> object:
    """A field of a CSV file: text that a spreadsheet would run as a formula gets an apostrophe in front.

    >>> [spreadsheet_text(value) for value in ("=A1", "-1+1", "layer0.attn.q", "-0.5", -0.5, None)]
    ["'=A1", "'-1+1", 'layer0.attn.q', '-0.5', -0.5, None]
    """
    if isinstance(value, str) and value.lstrip(" \n").startswith(_BEGINS_A_FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
