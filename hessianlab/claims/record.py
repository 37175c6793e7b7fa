"""The recorded verdicts: what was found when they were last written down, and what differs now."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessianlab.claims.ledger import Entry
from hessianlens.errors import InputError

RECORD = Path(__file__).parent / "recorded.json"
"""Verdict and figures of every claim, kept beside the code."""


@dataclass(frozen=True)
class Difference:
    """A verdict that is not the recorded one; None where there is no verdict."""

    id: str
    recorded: str | None
    found: str | None

    def __str__(self) -> str:
        if self.recorded is None:
            return f"{self.id}: {self.found}, not recorded yet"
        return f"{self.id}: recorded as {self.recorded!r}, now {self.found or 'an error'!r}"


def read(path: Path) -> dict[str, Any]:
    """What is recorded of every claim, by id; empty before the first record."""
    if not path.exists():
        return {}
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: expected JSON, got an error ({error}); write it anew with --record.") from error
    if not isinstance(recorded, dict):
        raise InputError(
            f"{path}: got {type(recorded).__name__}, expected an object by id; write it anew with --record."
        )
    return recorded


def differences(entries: Iterable[Entry], recorded: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Entries whose verdict is not the recorded one. Figures may differ in their last digits between machines.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> [str(difference) for difference in differences(run(find(["C8"])), {"C8": {"verdict": "fails"}})]
    ["C8: recorded as 'fails', now 'holds'"]
    """
    found = []
    for entry in entries:
        before = recorded.get(entry.claim.id, {}).get("verdict")
        now = str(entry.verdict) if entry.verdict else None
        if before != now:
            found.append(Difference(entry.claim.id, before, now))
    return tuple(found)


def write(entries: Iterable[Entry], known: Iterable[str], path: Path) -> None:
    """Record these entries; others stay as they are, and ids that are not among `known` go."""
    recorded = read(path)
    for entry in entries:
        if entry.verdict is None:
            raise InputError(
                f"claim {entry.claim.id}: got an error ({entry.error}), expected a verdict; nothing recorded."
            )
        recorded[entry.claim.id] = {"verdict": str(entry.verdict), "figures": list(entry.figures)}
    kept = {id: recorded[id] for id in known if id in recorded}
    try:
        path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); record from a checkout you own.") from error
