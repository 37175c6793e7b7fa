"""Records in a file, a line each, that survives the end of the process at any moment."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from hessianlens.errors import InputError, check_path
from hessianlens.monitor.record import Record

FORMAT = "hessianlens watch, 1"


class RecordFile:
    """A file of records that is only ever added to.

    Every line holds a record and a checksum, and is on the disk before the run goes on. What was cut off when a process
    was killed is left out when the file is read, and ended before the next line is written. A record at a step takes
    the place of those at this step and behind it: a run that goes on from an earlier checkpoint writes its own history.

    Args:
        path: The file; made with the first record.

    >>> import tempfile
    >>> file = RecordFile(os.path.join(tempfile.mkdtemp(), "run.jsonl"))
    >>> for step in (10, 20, 30, 20):
    ...     file.add(Record(step, {}))
    >>> [record.step for record in file.read()]
    [10, 20]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_path("store", path, "the name of a file")
        if self.path.is_dir() or not self.path.absolute().parent.is_dir():
            raise InputError(f"store: {str(self.path)!r} cannot be written; name a file in a folder that is there.")

    def read(self) -> list[Record]:
        """The records that hold, in order of their steps."""
        if not self.path.exists() or not self.path.stat().st_size:
            return []
        lines = list(self._lines())
        if not lines or lines[0].get("format") != FORMAT:
            raise InputError(
                f"store: {str(self.path)!r} is no file of a watched run; name another one, or one to be made."
            )
        found: list[Record] = []
        for line in lines[1:]:
            record = Record.from_dict(line["record"])
            found = [earlier for earlier in found if earlier.step < record.step]
            found.append(record)
        return found

    def add(self, record: Record) -> None:
        """Write a record; it is kept when this returns."""
        with self.path.open("ab+") as file:
            end = file.seek(0, os.SEEK_END)
            begin = b""
            if end == 0:
                begin = _line({"format": FORMAT})
            else:
                file.seek(end - 1)
                begin = b"" if file.read(1) == b"\n" else b"\n"
            file.write(begin + _line({"record": record.to_dict()}))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Every line that is whole."""
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise InputError(f"store: {str(self.path)!r} cannot be read ({error.strerror}).") from error
        for line in content.split(b"\n"):
            checksum, _, text = line.partition(b" ")
            if len(checksum) == 8 and checksum == b"%08x" % zlib.crc32(text):
                yield json.loads(text)


def _line(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)
