"""Files that are written whole or not at all, files that are only added to, text that a spreadsheet takes for text."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hessianlens.errors import InputError, check_path, expect

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


class JsonLines:
    """A file of JSON objects, one per line, that is only ever added to.

    The first line says what the file holds. Every line has a checksum and is on the disk when `append` returns. What
    was cut off when a process was killed, or changed since, is left out when the file is read.

    Args:
        path: The file; made with the first line.
        argument: Names it in messages.
        header: The first line, with a "format".
        contents: What the file holds, for messages.

    >>> import tempfile
    >>> file = JsonLines(Path(tempfile.mkdtemp()) / "x.jsonl", "store", {"format": "numbers, 1"}, "numbers")
    >>> file.append({"number": 1})
    >>> file.read()
    [{'format': 'numbers, 1'}, {'number': 1}]
    """

    def __init__(self, path: str | os.PathLike[str], argument: str, header: Mapping[str, Any], contents: str) -> None:
        self.path, self.argument = check_path(argument, path, "the name of a file"), argument
        self.header, self.contents = dict(header), contents
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            raise InputError(f"{argument}: {self.path} cannot be written; name a file in a folder that is there.")

    def read(self) -> list[dict[str, Any]]:
        """The header and every line that is whole; nothing where there is no file yet."""
        if not self.path.exists() or not self.path.stat().st_size:
            return []
        lines = list(self._whole_lines())
        if not lines or lines[0].get("format") != self.header["format"]:
            raise InputError(
                f"{self.argument}: {self.path} is not a file of {self.contents}; give another name, or one that does "
                "not exist yet."
            )
        return lines

    def append(self, content: Mapping[str, Any]) -> None:
        """Write a line; it is kept when this returns."""
        with self.path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            begin = _line(self.header) if end == 0 else b""
            if end:
                file.seek(end - 1)
                begin = b"" if file.read(1) == b"\n" else b"\n"
            file.write(begin + _line(content))
            file.flush()
            os.fsync(file.fileno())

    def _whole_lines(self) -> Iterator[dict[str, Any]]:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"{self.argument}: {self.path} cannot be read ({error.strerror}).") from error
        for line in content.split(b"\n"):
            checksum, _, text = line.partition(b" ")  # of earlier versions: in front of the line, or none at all
            old = len(checksum) == 8 and checksum == b"%08x" % zlib.crc32(text)
            try:
                found = json.loads(text if old else line)
            except ValueError:
                continue
            if isinstance(found, dict) and found.pop("crc", None) in (None, _checksum(found)):
                yield found


def _checksum(content: Mapping[str, Any]) -> str:
    without = {name: value for name, value in content.items() if name != "crc"}
    return f"{zlib.crc32(_plain_json(without)):08x}"


def _line(content: Mapping[str, Any]) -> bytes:
    return _plain_json({**content, "crc": _checksum(content)}) + b"\n"


def _plain_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


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
