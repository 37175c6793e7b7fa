"""Run every command of an installed hessianlens once, small: `python .ci/smoke.py PATH/TO/hessianlens`.

It needs nothing but the standard library and no network. The program may live in an environment of its own, such as
one into which only the wheel was installed: `make wheel` makes it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINY = ["--set", "d_model=4", "--set", "d_ks=1,2", "--set", "lengths=6", "--set", "repeats=2"]
RUNS: list[tuple[int, list[str]]] = [
    (0, ["--version"]),
    (0, ["doctor"]),
    (0, ["softmax", "2.8", "1.2", "0.5"]),
    (0, ["layer", "--out", "layer"]),
    (0, ["explore", "--html", "scenes.html"]),
    (0, ["inspect", "toy:layers=1,d_model=8", "--sequences", "2", "--budget", "5s", "--out", "model.html"]),
    (0, ["compare", "toy:layers=1,d_model=8", "toy:layers=1,d_model=8,norm=pre", "--sequences", "2", "--json"]),
    (0, ["claims", "A12"]),
    (0, ["reproduce", "rank_fraction", *TINY, "--store", "cells.sqlite", "--jobs", "1"]),
    (0, ["export", "--store", "cells.sqlite", "--out", "tables"]),
    (0, ["report", "rank_fraction", *TINY, "--store", "cells.sqlite", "--jobs", "1", "--no-claims", "--out", "report"]),
    (0, ["study", "scaling", "--dry-run"]),
    (2, ["watch", "no-such-checkpoint"]),
]
"""Expected exit codes and arguments."""
WRITTEN = ("layer/index.html", "scenes.html", "model.html", "tables", "report/index.html", "report/labbook.html")


def run(program: list[str], words: list[str], folder: str) -> subprocess.CompletedProcess[str]:
    """One command, without the folders of a clone on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or keeps_path()}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "BROWSER": "true"}
    return subprocess.run(
        [*program, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def keeps_path() -> bool:
    """Whether the program is that of a clone, as in the project's own tests."""
    return os.environ.get("HESSIANLENS_SMOKE") == "clone"


def main() -> int:
    """Run all of them; 1 if one did not end as expected, or a command was left out."""
    program = [str(Path(word).absolute()) if os.sep in word else word for word in sys.argv[1:]] or ["hessianlens"]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        commands = set(re.findall(r"^│ ([a-z]+)\s", run(program, ["--help"], folder).stdout, re.MULTILINE))
        left_out = commands - {words[0] for _, words in RUNS}
        if left_out or not commands:
            failed += 1
            print(f"not run: {', '.join(sorted(left_out)) or 'all, since --help lists no command'}")
        for expected, words in RUNS:
            began = time.monotonic()
            done = run(program, words, folder)
            good = done.returncode == expected and "Traceback" not in done.stderr
            if good and "--json" in words:
                json.loads(done.stdout)
            failed += not good
            print(
                f"{'ok    ' if good else 'FAILED'} {time.monotonic() - began:5.1f} s  hessianlens {' '.join(words)}",
                flush=True,
            )
            if not good:
                print(f"exit code {done.returncode}, expected {expected}\n{done.stdout[-800:]}\n{done.stderr[-2000:]}")
        missing = [name for name in WRITTEN if not (Path(folder) / name).exists()]
        if missing:
            print("not written:", ", ".join(missing))
    return int(bool(failed or missing))


if __name__ == "__main__":
    sys.exit(main())
