"""Runs every case in several processes that are forked from one, so that the libraries are imported once.

`python -m tests.distributed.driver FOLDER` writes what became of each case, by process, and what the command printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

import hessianlens.inspect.inspection  # before processes are forked
import hessianlens.inspect.preparation  # noqa: F401
from hessianlens.cli import app
from tests.distributed.cases import CASES, Place

SIZE = 3
LIMIT = 240.0
"""Seconds after which processes that hang are ended, and the tests say so."""


def work(rank: int, folder: Path, port: str) -> None:
    """All cases, in one process: the last one is the end of the process with the highest number."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    pair = distributed.new_group([0, 1])
    place = Place(rank, distributed.group.WORLD, pair if rank < 2 else None, folder)
    outcomes: dict[str, str] = {}
    for name, case in CASES.items():
        try:
            case(place)
            outcomes[name] = ""
        except Exception:
            outcomes[name] = traceback.format_exc()
        (folder / f"rank{rank}.json").write_text(json.dumps(outcomes))


def command(arguments: list[str], folder: Path, name: str) -> Callable[[int, str], None]:
    """The command line in a process that is one of several, as `torchrun` starts it."""

    def run(rank: int, port: str) -> None:
        if port:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        torch.set_num_threads(1)
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{name}{rank}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        code = 1
        try:
            code = app(arguments, prog_name="hessianlens", standalone_mode=False) or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        (folder / f"{name}{rank}.code").write_text(str(code))

    return run


def documented(folder: Path) -> Callable[[int, str], None]:
    """The script of docs/how-to/distributed.md in one of two processes."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "distributed.md").read_text()
    script = text.partition("```python\n")[2].partition("```")[0]

    def run(rank: int, port: str) -> None:
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
        torch.set_num_threads(1)
        os.dup2(os.open(folder / f"documented{rank}.out", os.O_WRONLY | os.O_CREAT), 1)
        exec(compile(script, "docs/how-to/distributed.md", "exec"), {})
        sys.stdout.flush()

    return run


def forked(number: int, run: Callable[[int], None]) -> list[int]:
    """So many processes that do something and end."""
    pids = []
    for rank in range(number):
        pid = os.fork()
        if pid == 0:
            try:
                run(rank)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        pids.append(pid)
    return pids


def wait_for(pids: list[int], until: float) -> None:
    """Until they have ended; what has not by then is ended."""
    left = list(pids)
    while left and time.monotonic() < until:
        left = [pid for pid in left if os.waitpid(pid, os.WNOHANG) == (0, 0)]
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def free_port() -> str:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


ASKED = ["inspect", "toy:d_model=4,layers=2", "--sequences", "5", "--probes", "3", "--json", "--seed", "1"]


def main(folder: Path) -> None:
    until, port = time.monotonic() + LIMIT, free_port()
    wait_for(forked(SIZE, lambda rank: work(rank, folder, port)), until)
    table, wrong, port, other = str(folder / "table.csv"), str(folder / "nothing.pt"), free_port(), free_port()
    blocks = ["--blocks", "layer*.attn.[qv]", "--blocks", "embed"]
    alone = command([*ASKED, *blocks], folder, "alone")
    shared = command([*ASKED, *blocks, "--out", table], folder, "shared")
    refused = command(["inspect", "toy", "--data", wrong], folder, "refused")
    wait_for(forked(1, lambda rank: alone(rank, "")), until)
    wait_for(forked(2, lambda rank: shared(rank, port)), until)
    wait_for(forked(2, lambda rank: refused(rank, other)), until)
    softmax, script, last = command(["softmax", "1", "2"], folder, "softmax"), documented(folder), free_port()
    wait_for(forked(2, lambda rank: softmax(rank, port)), until)
    wait_for(forked(2, lambda rank: script(rank, last)), until)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
