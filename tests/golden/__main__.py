"""Compare today's numbers with the recorded ones, or record them anew.

python -m tests.golden [CASE ...]             every difference; exit code 1 if there is one
python -m tests.golden --record [CASE ...]    the same, then write today's numbers to golden.json

A case is named by the beginning of its name, such as "layer" or "norms: GPT-2".
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.golden.cases import CASES
from tests.golden.comparison import differences
from tests.golden.file import GOLDEN, read, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="beginnings of names; default: all")
    parser.add_argument("--record", action="store_true", help="write today's numbers")
    asked = parser.parse_args()
    chosen = [name for name in CASES if not asked.cases or name.startswith(tuple(asked.cases))]
    if not chosen:
        parser.error(f"no case begins with {', '.join(asked.cases)}; there are {', '.join(CASES)}")
    recorded = read()
    # What has no case any more goes, unless only some cases were asked for.
    found = {name: record for name, record in recorded.items() if name in CASES}
    gone = [f"{name}: recorded, but no longer a case" for name in recorded if name not in CASES]
    start, lines = time.process_time(), [] if asked.cases else gone
    for name in chosen:
        make, rtol = CASES[name]
        found[name] = make()
        if name not in recorded:
            lines.append(f"{name}: not recorded")
        else:
            lines += differences(recorded[name], found[name], rtol, name)
    print("\n".join(lines) or "no differences")
    print(f"{len(chosen)} cases, {len(lines)} differences, {time.process_time() - start:.0f} s of one core")
    if asked.record:
        write(found)
        print(f"{GOLDEN}: {GOLDEN.stat().st_size / 1e3:.0f} kB")
        return 0
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
