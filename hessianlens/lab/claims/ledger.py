"""Test claims, in parallel, and keep what was found."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from hessianlens.errors import expect
from hessianlens.lab.claims.definition import Claim
from hessianlens.lab.claims.entry import Entry


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


def run(claims: Sequence[Claim], jobs: int = 1, on_entry: Callable[[Entry], None] = lambda entry: None) -> Ledger:
    """Test every claim, each on one thread.

    Args:
        claims: What to test.
        jobs: Processes; with 1 everything runs here.
        on_entry: Called with every entry as it is finished, in any order.

    >>> from hessianlens.lab.claims.registry import find
    >>> [str(entry.verdict) for entry in run(find(["C8", "C9"]))]
    ['holds', 'holds']
    """
    expect(jobs >= 1, f"jobs: got {jobs}, expected at least 1 process.")
    finished: dict[str, Entry] = {}
    with warnings.catch_warnings():
        # joblib renews a process that has grown; nothing is lost.
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
        for entry in _entries(claims, min(jobs, sum(claim.test is not None for claim in claims))):
            finished[entry.claim.id] = entry
            on_entry(entry)
    return Ledger(tuple(finished[claim.id] for claim in claims))


def _entries(claims: Sequence[Claim], jobs: int) -> Iterable[Entry]:
    if jobs <= 1:
        return map(examine, claims)
    # Imported here: a single process does without it, and it takes a moment.
    from joblib import Parallel, delayed

    work = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    found: Iterable[Entry] = work(delayed(examine)(claim) for claim in claims)
    return found


def examine(claim: Claim) -> Entry:
    """The entry of one claim; an exception in its test becomes the entry's error."""
    if claim.test is None:
        return Entry(claim)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        finding = claim.test()
        return Entry(claim, finding, seconds=time.perf_counter() - start)
    except Exception as error:  # a broken test must not stop the others
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} (at {where.filename}:{where.lineno})"
        return Entry(claim, error=text, seconds=time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
