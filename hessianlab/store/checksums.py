"""Checksums of rows, and the seal over all rows of a table: they tell a damaged or shortened store from a whole one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

_MODULUS = 2**256


def checksum(*fields: Any) -> str:
    """SHA-256 of a row's fields, each with its type and length, whatever a damaged file makes of them.

    >>> checksum("a", "bc") == checksum("ab", "c"), checksum(1) == checksum(1.0), checksum(None, 0.5, b"x")[:8]
    (False, False, 'f7396f27')
    """
    digest = hashlib.sha256()
    for field in fields:
        content = field if isinstance(field, bytes) else str(field).encode("utf-8", "surrogatepass")
        digest.update(f"{type(field).__name__} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def seal(checksums: Iterable[str], count: int = 0, total: str = "0") -> tuple[int, str]:
    """How many rows there are, and the sum of their checksums; begins with those that were sealed before.

    A sum, so that a row is added without a look at the others and in whatever order runs add theirs.

    >>> seal(["ff", "1"]) == seal(["ff"], *seal(["1"])) == (2, "100")
    True
    """
    added = [int(row, 16) for row in checksums]
    return count + len(added), f"{(int(total, 16) + sum(added)) % _MODULUS:x}"
