"""Leases: which cells a run has taken in hand, so that runs on one store share the work instead of doing it twice."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from hessianlab.store.database import clear_errors, connect
from hessianlab.store.store import Store
from hessianlens.errors import InputError

BEAT_SECONDS = 5.0
"""How often a run says that it goes on."""

SILENCE_SECONDS = 60.0
"""A run that has said nothing for so long is over, or stopped; others do its cells."""


@dataclass
class Lease:
    """What there is to do.

    Attributes:
        key: Of the cell that is now this run's to measure; None if there is none at the moment.
        finished: Keys that were found to be measured.
        elsewhere: How many are in the hands of other runs.
    """

    key: str | None = None
    finished: list[str] = field(default_factory=list)
    elsewhere: int = 0


class Leases:
    """The cells of one run; made by `taking_part`.

    A lease ends when its cell is kept, when it is given back, and when its run is over: ended, killed, or silent.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.owner = uuid.uuid4().hex
        self._swept = -SILENCE_SECONDS

    def take(self, keys: Iterable[str]) -> Lease:
        """The first cell that is neither finished nor in the hands of another run, and what was passed on the way."""
        taken = Lease()
        with self._store.transaction():
            self._sweep()
            for key in keys:
                if self._store.query("SELECT 1 FROM cells WHERE key = ?", (key,)):
                    taken.finished.append(key)
                elif self._store.query("SELECT 1 FROM leases WHERE key = ?", (key,)):
                    taken.elsewhere += 1
                else:
                    self._enter()
                    self._store.query("INSERT INTO leases (key, owner) VALUES (?, ?)", (key, self.owner))
                    taken.key = key
                    break
        return taken

    def give_back(self, key: str) -> None:
        """A cell that this run could not measure."""
        with self._store.transaction():
            self._store.query("DELETE FROM leases WHERE key = ? AND owner = ?", (key, self.owner))

    def end(self) -> None:
        """Give everything back."""
        with self._store.transaction():
            self._store.query("DELETE FROM owners WHERE id = ?", (self.owner,))

    def _enter(self) -> None:
        """Say who this run is, again if others believed it to be over."""
        born, now = psutil.Process().create_time(), time.time()
        self._store.query(
            "INSERT OR IGNORE INTO owners (id, host, pid, born, seen) VALUES (?, ?, ?, ?, ?)",
            (self.owner, socket.gethostname(), os.getpid(), born, now),
        )

    def _sweep(self) -> None:
        """Forget the leases of runs that are over; not more than once in a while."""
        if time.monotonic() - self._swept < 0.5:
            return
        self._swept = time.monotonic()
        for owner, *fields in self._store.query("SELECT id, host, pid, born, seen FROM owners"):
            if owner != self.owner and not _goes_on(*fields):
                self._store.query("DELETE FROM owners WHERE id = ?", (owner,))


def _goes_on(host: object, pid: object, born: object, seen: object) -> bool:
    """Whether a run is still there; on this machine the system knows, elsewhere only its last sign of life."""
    if not (isinstance(pid, int) and isinstance(born, float) and isinstance(seen, float)):
        return False
    if abs(time.time() - seen) > SILENCE_SECONDS:
        return False
    if host != socket.gethostname():
        return True
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - born) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


@contextmanager
def taking_part(store: Store) -> Iterator[Leases]:
    """Take part in the work on a store: other runs see that this one goes on, until the context ends."""
    leases, over = Leases(store), threading.Event()
    beats = threading.Thread(target=_renew, args=(store, leases.owner, over), daemon=True)
    beats.start()
    try:
        yield leases
    finally:
        over.set()
        beats.join()
        with suppress(InputError):  # they run out by themselves
            leases.end()


def _renew(store: Store, owner: str, over: threading.Event) -> None:
    """From a thread with a connection of its own: the run itself may be busy with one cell for hours."""
    while not over.wait(BEAT_SECONDS):
        with suppress(InputError):  # whatever it is, the run itself meets it, too
            connection = connect(store.path, readonly=False)
            try:
                with clear_errors(store.path):
                    connection.execute("UPDATE owners SET seen = ? WHERE id = ?", (time.time(), owner))
            finally:
                connection.close()
