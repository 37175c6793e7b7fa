"""Mutants of the package: does a test fail when the code is wrong?

python -m tests.mutants                      run every mutant against the quick tests of its kind, write kills.json
python -m tests.mutants "interval" "probe"   those whose names or kinds hold one of these texts
python -m tests.mutants --survivors          those that survived the last time
python -m tests.mutants --survivors --tier short    the same against the whole short tier of tests
python -m tests.mutants --check              only look for the snippets

Mutants run one at a time on a copy of the package, stop at the first test that fails, and have a limit of time. Exit
code 1 if a mutant survived, 2 if a snippet was not found exactly once: the code has changed, and so must the mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.mutants.mutants import MUTANTS, TESTS, Mutant
from tests.mutants.running import Copy, Outcome

KILLS = Path(__file__).resolve().with_name("kills.json")
ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = {"quick": 150, "short": 1500}
"""Of one core, by tier."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="in names or kinds of mutants; default: all")
    parser.add_argument("--survivors", action="store_true", help="those that no test has killed yet")
    parser.add_argument("--tier", choices=tuple(SECONDS), default="quick", help="which tests are run")
    parser.add_argument("--check", action="store_true", help="only look for the snippets")
    asked = parser.parse_args()
    kills: dict[str, Any] = json.loads(KILLS.read_text(encoding="utf-8")) if KILLS.exists() else {}
    chosen = [mutant for mutant in MUTANTS if _is_asked(mutant, asked.texts)]
    if asked.survivors:
        chosen = [mutant for mutant in chosen if kills.get(mutant.name, {}).get("killed by") is None]
    if not chosen:
        parser.error(f"no mutant has {', '.join(map(repr, asked.texts))} in its name or kind")
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(ROOT, Path(folder))
        stale = {mutant.name for mutant in chosen if not _found(copy, mutant)}
        if not asked.check:
            living = [mutant for mutant in chosen if mutant.name not in stale]

            def told(mutant: Mutant, outcome: Outcome) -> None:
                _say(mutant, outcome)
                kills[mutant.name] = {"kind": mutant.kind, "killed by": outcome.killer, "tier": asked.tier}
                _write(kills)

            copy.run(living, lambda mutant: _tests(mutant, asked.tier), SECONDS[asked.tier], told)
            os.chdir(ROOT)
    print(f"{len(chosen)} mutants, {len(stale)} out of date")
    if asked.check or stale:
        return 2 if stale else 0
    survived = [mutant.name for mutant in chosen if kills[mutant.name]["killed by"] is None]
    print("\n".join([f"{len(survived)} survived", *survived]))
    return int(bool(survived))


def _is_asked(mutant: Mutant, texts: Sequence[str]) -> bool:
    return not texts or any(text in mutant.name or text in mutant.kind for text in texts)


def _found(copy: Copy, mutant: Mutant) -> bool:
    places = copy.places(mutant.code)
    if len(places) != 1:
        where = ", ".join(str(place) for place in places) or "no file"
        print(f"out of date: {mutant.name}: its snippet is in {where}, expected exactly one place", file=sys.stderr)
    return len(places) == 1


def _tests(mutant: Mutant, tier: str) -> tuple[str, ...]:
    return tuple(f"tests/{file}" for file in TESTS[mutant.kind]) if tier == "quick" else ("tests", "hessianlens")


def _say(mutant: Mutant, outcome: Outcome) -> None:
    what = f"killed by {outcome.killer}" if outcome.killer else "SURVIVED"
    print(f"{mutant.name}: {what} ({outcome.seconds:.0f} s)", flush=True)


def _write(kills: dict[str, Any]) -> None:
    """In the order of the mutants; those that are no more are left out."""
    known = {mutant.name: kills[mutant.name] for mutant in MUTANTS if mutant.name in kills}
    KILLS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
