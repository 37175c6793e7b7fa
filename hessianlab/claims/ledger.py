"""Test claims here and now, and what was found; `hessianlab.claims.stored` is for many, kept and in parallel."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hessianlab.claims.definition import Claim
from hessianlab.claims.entry import Entry


@dataclass(frozen=True)
class Ledger:
    """Entries in the order of the claims they were asked for."""

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, id: str) -> Entry:
        return next(entry for entry in self.entries if entry.claim.id == id)

    @property
    def errors(self) -> tuple[Entry, ...]:
        """Entries whose test raised."""
        return tuple(entry for entry in self.entries if entry.error)

    @property
    def unsupported(self) -> tuple[Entry, ...]:
        """Entries whose condition or correction did not pass its own checks."""
        return tuple(entry for entry in self.entries if not entry.error and not entry.sound)


def run(claims: Sequence[Claim], first_seed: int = 0) -> Ledger:
    """Test every claim in this process, on draws from this seed on.

    >>> from hessianlab.claims.registry import find
    >>> [str(entry.verdict) for entry in run(find(["C8", "C9"]))]
    ['holds', 'holds']
    """
    return Ledger(tuple(examine(claim, first_seed) for claim in claims))


def examine(claim: Claim, first_seed: int = 0) -> Entry:
    """The entry of one claim; an exception in its test becomes the entry's error."""
    if claim.test is None:
        return Entry(claim)
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        finding = claim.examine(first_seed)
        return Entry(claim, finding, seconds=time.perf_counter() - start)
    except Exception as error:  # a broken test must not stop the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} (at {where.filename}:{where.lineno})"
        return Entry(claim, error=text, seconds=time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
