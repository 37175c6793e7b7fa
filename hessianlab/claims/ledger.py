"""The ledger: one entry per claim with its verdict; selections, counts, an order, and the recorded verdicts."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessianlab.claims.catalogue import claim_topics, known_ids, order
from hessianlab.claims.definition import DOCUMENTS, Claim, claim_files
from hessianlab.claims.finding import Finding, Verdict
from hessianlens.errors import InputError, check_choice

_FOLDER = Path(__file__).parent

_SENTENCE_END = re.compile(r"(?<=[.])(?<!\bal[.])(?<!\bEq[.])(?<!\be[.]g[.])\s+")
"""Between a sentence and the next; an abbreviation ends none."""


@dataclass(frozen=True)
class Entry:
    """A claim with its verdict.

    Attributes:
        claim: What was tested.
        finding: What the test found; absent for a claim without a test and after an error.
        error: What the test raised, if it did.
        seconds: How long the test took.
    """

    claim: Claim
    finding: Finding | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """From the finding, or the claim's own if it has no test; None after an error."""
        return self.finding.verdict if self.finding else self.claim.unmeasured if not self.error else None

    @property
    def sound(self) -> bool:
        """Whether there is a verdict and what is said about it is itself supported."""
        return self.verdict is not None and (self.finding is None or self.finding.confirmed)

    @property
    def correction(self) -> str:
        """What is true instead, with its numbers; of a claim without a test as its text has it."""
        return self.finding.correction if self.finding else self.claim.correction

    @property
    def reason(self) -> str:
        """Why it has no test, or why what was measured does not decide it."""
        return self.claim.reason or (self.finding.undecided if self.finding else "")

    @property
    def gist(self) -> str:
        """The first sentence of the correction, or of the reason for having no test."""
        return _SENTENCE_END.split(self.correction or self.reason, maxsplit=1)[0]

    @property
    def location(self) -> str:
        """File and line of the test, or of the text of a claim without one, as ``hessianlens/.../topic.py:12``."""
        if self.claim.id in claim_files():
            return _place(claim_files()[self.claim.id], f'@claim("{self.claim.id}")')
        return _place(_FOLDER / "texts" / f"{self.claim.topic.replace(' ', '_')}.ini", f"[{self.claim.id}]")

    @property
    def figures(self) -> tuple[str, ...]:
        """Every check as one line; one that serves twice is listed once."""
        if self.finding is None:
            return ()
        checks = (*self.finding.checks, *self.finding.conditional, *self.finding.support)
        return tuple(dict.fromkeys(map(str, checks)))

    def to_dict(self) -> dict[str, Any]:
        """Everything a machine may want, as JSON values."""
        claim, finding = self.claim, self.finding
        entry: dict[str, Any] = {
            "id": claim.id,
            "document": claim.document,
            "topic": claim.topic,
            "chapter": claim.chapter or None,
            "repeats": claim.repeats or None,
            "central": claim.central,
            "source": claim.source,
            "statement": claim.statement,
            "method": claim.method,
            "verdict": str(self.verdict) if self.verdict else None,
            "reason": self.reason,
            "correction": self.correction,
            "gist": self.gist,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "location": self.location,
        }
        if finding is None:
            return entry
        parts = {
            name: [vars(check) for check in getattr(finding, name)] for name in ("checks", "conditional", "support")
        }
        words = {name: getattr(finding, name) for name in ("condition", "example", "confirmed")}
        return {**entry, **parts, **words, "curves": finding.curves and dataclasses.asdict(finding.curves)}


def _place(file: Path, wanted: str) -> str:
    shown = (Path("hessianlab/claims") / file.relative_to(_FOLDER)).as_posix()
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    line = next((number for number, text in enumerate(lines, 1) if text == wanted), None)
    return f"{shown}:{line}" if line else shown


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

    >>> from hessianlab.claims.catalogue import find
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


def selected_ids(ids: Sequence[str] = (), document: str | None = None, topic: str | None = None) -> list[str]:
    """These ids (all without any), of one document, of one topic.

    >>> selected_ids(document="c", topic="softmax_division")
    ['C8', 'C9', 'C10', 'C26', 'C27']
    """
    topics = claim_topics()
    chosen = known_ids(ids, topics) if ids else list(topics)
    if document is not None:
        check_choice("document", document.upper(), DOCUMENTS)
        chosen = [id for id in chosen if id[0] == document.upper()]
    if topic is not None:
        name = topic.lower().replace("_", " ")
        _check_topic(name, set(topics.values()))
        chosen = [id for id in chosen if topics[id] == name]
    if not chosen:
        raise InputError("claims: got filters that leave none; expected at least one claim. Drop a filter.")
    return chosen


def with_verdict(entries: Iterable[Entry], verdict: str | None) -> tuple[Entry, ...]:
    """The entries with this verdict, or all.

    >>> with_verdict((), "fails")
    ()
    """
    if verdict is None:
        return tuple(entries)
    name = verdict.lower().replace("_", " ").replace("-", " ")
    check_choice("verdict", name, [str(known) for known in Verdict])
    return tuple(entry for entry in entries if str(entry.verdict) == name)


def _check_topic(name: str, topics: Iterable[str]) -> None:
    known = sorted(topics)
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known
        raise InputError(f"topic: got {name!r}, expected one such as {', '.join(map(repr, near))}.")


_WEIGHT = {
    Verdict.FAILS: 4,
    Verdict.HOLDS_IF: 3,
    Verdict.NOT_SEEN: 2,
    Verdict.MISPRINT: 1,
    Verdict.HOLDS: 1,
    Verdict.OPEN: 0,
}


def counts(entries: Iterable[Entry]) -> dict[str, Counter[Verdict | None]]:
    """How many entries of each document have each verdict; None counts errors.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> {str(verdict): number for verdict, number in counts(run(find(["C8", "C9", "C10"])))["C"].items()}
    {'holds': 2, 'fails': 1}
    """
    by_document: dict[str, Counter[Verdict | None]] = {letter: Counter() for letter in DOCUMENTS}
    for entry in entries:
        by_document[entry.claim.document][entry.verdict] += 1
    return by_document


def distinct(entries: Iterable[Entry]) -> list[Entry]:
    """One entry per fact: without those that repeat another entry among them.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> [entry.claim.id for entry in distinct(run(find(["P5", "A8", "B16"])))]
    ['P5', 'B16']
    """
    kept = list(entries)
    present = {entry.claim.id for entry in kept}
    return [entry for entry in kept if entry.claim.repeats not in present]


def computed(entries: Iterable[Entry]) -> list[Entry]:
    """Those whose test decided; one that leaves a claim open has measured something, and is not among them.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> [entry.claim.id for entry in computed(run(find(["C8", "P66"])))]
    ['C8']
    """
    return [entry for entry in entries if entry.finding is not None and entry.verdict is not Verdict.OPEN]


def surprise(entry: Entry) -> int:
    """How much a reader of the documents learns: a central claim that fails counts most, and an error more than all."""
    if entry.verdict is None:
        return 10
    return _WEIGHT[entry.verdict] * (2 if entry.claim.central else 1)


def most_surprising_first(entries: Iterable[Entry]) -> list[Entry]:
    """Sorted by `surprise`; equals in the order of the documents.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> [entry.claim.id for entry in most_surprising_first(run(find(["C8", "C5", "C10"])))]
    ['C10', 'C5', 'C8']
    """
    return sorted(entries, key=lambda entry: (-surprise(entry), order(entry.claim.id)))


RECORDED_VERDICTS = Path(__file__).parent / "recorded.json"
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


def read_verdicts(path: Path) -> dict[str, Any]:
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


def changed_verdicts(entries: Iterable[Entry], recorded: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Entries whose verdict is not the recorded one. Figures may differ in their last digits between machines.

    >>> from hessianlab.claims.ledger import run
    >>> from hessianlab.claims.catalogue import find
    >>> [str(difference) for difference in changed_verdicts(run(find(["C8"])), {"C8": {"verdict": "fails"}})]
    ["C8: recorded as 'fails', now 'holds'"]
    """
    found = []
    for entry in entries:
        before = recorded.get(entry.claim.id, {}).get("verdict")
        now = str(entry.verdict) if entry.verdict else None
        if before != now:
            found.append(Difference(entry.claim.id, before, now))
    return tuple(found)


def write_verdicts(entries: Iterable[Entry], known: Iterable[str], path: Path) -> None:
    """Record these entries; others stay as they are, and ids that are not among `known` go."""
    recorded = read_verdicts(path)
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
