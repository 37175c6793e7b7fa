"""A product whose data two processes share, one thread each, against the same product in one process.

The processes are started anew and stay for all rounds; in every round one of them makes the product with all of the
data while the other waits, and then both make it together. Time of work is that of the busier process: it is what
processes with a core of their own would need, whatever else runs on the machine. Time on the wall stands beside it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import distributed

import hessianlens as hl
from benchmarks import provenance
from benchmarks.harness import Options, Tick, spread
from benchmarks.last_layer import gpt2, text
from benchmarks.results import OURS, PEER, SET_UP, Result, Timing
from benchmarks.wording import times
from hessianlens.problems import Problem, narrow_batch
from hessianlens.sizes import readable

NAME, TITLE = "ranks_product", "A product with a block whose data two processes share, one thread each"
BOTH, ALONE, GRADIENT = "two processes", "one process", "a gradient in one process"
GOAL = 1.6
_WARM = 3
"""Products before the first round: a tape is made by then."""


@dataclass(frozen=True)
class Size:
    """Sizes of a model and of its data."""

    layers: int = 4
    width: int = 256
    words: int = 1000
    batch: int = 16
    length: int = 256
    block: str = "layer0.attn.q"
    processes: int = 2
    rounds: int = 7


TINY = Size(layers=1, width=8, words=12, batch=3, length=6, rounds=1)


def measured(size: Size) -> list[dict[str, Any]]:
    """What every process has found, in processes of their own."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size.processes)}
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ranks_product", json.dumps(asdict(size))],
            env={**os.environ, **shared, **threads, "RANK": str(rank)},
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size.processes)
    ]
    told = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError(f"a process of {NAME} has failed; its message is above")
    return [json.loads(one.splitlines()[-1]) for one in told]


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of work of this process, and on the wall; all processes begin at the same time."""
    distributed.barrier()
    work, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - work, time.perf_counter() - wall


def work(size: Size) -> dict[str, object]:
    """All rounds, in one of the processes."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = gpt2(size.layers, size.width, size.words, size.length)
    words = text(size.words, size.batch, size.length, seed=1)
    bounds = [size.batch * k // size.processes for k in (rank, rank + 1)]
    batch = {"input_ids": words, "labels": words}
    shared = hl.problem(model, narrow_batch(batch, *bounds), process_group=distributed.group.WORLD)
    alone = hl.problem(model, batch)
    together, single = (hl.hessian(p, size.block, method="hvp") for p in (shared, alone))
    v = torch.randn(together.shape[1], generator=torch.Generator().manual_seed(3))
    runs: dict[str, Callable[[], object]] = {
        BOTH: lambda: together @ v,
        ALONE: lambda: single @ v if rank == 0 else None,
        GRADIENT: lambda: _gradient(alone) if rank == 0 else None,
    }
    outcome = {name: [run() for _ in range(_WARM)][-1] for name, run in runs.items()}
    apart = float((outcome[BOTH] - outcome[ALONE]).norm() / outcome[ALONE].norm()) if rank == 0 else 0.0
    traffic, before = shared.ranks.traffic, asdict(shared.ranks.traffic)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for number in range(size.rounds):
        for name in list(runs)[:: 1 if number % 2 else -1]:
            seconds[name].append(_timed(runs[name]))
    sent = {name: (value - before[name]) / size.rounds for name, value in asdict(traffic).items()}
    why = together.why
    distributed.destroy_process_group()
    return {"seconds": seconds, "apart": apart, "traffic": sent, "why": why, "entries": v.numel()}


def _gradient(problem: Problem) -> object:
    leaves = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in problem.params.items()}
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    return torch.autograd.grad(problem.total_loss(leaves), wanted, allow_unused=True)


def result(size: Size, found: list[dict[str, Any]]) -> Result:
    """Times of the busier process, and how many times as many products two of them make."""
    work: dict[str, list[float]] = {}
    wall: dict[str, list[float]] = {}
    for name in (BOTH, ALONE, GRADIENT):
        by_process = [one["seconds"][name] for one in found]
        work[name], wall[name] = ([max(one[r][k] for one in by_process) for r in range(size.rounds)] for k in (0, 1))
    timings = []
    for name, role in ((BOTH, OURS), (ALONE, PEER), (GRADIENT, SET_UP)):
        ratios = [own / both for own, both in zip(work[name], work[BOTH], strict=True)]
        timings.append(Timing(name, role, spread(work[name]), spread(ratios), work[name][0], median(wall[name])))
    on_wall = spread([own / both for own, both in zip(wall[ALONE], wall[BOTH], strict=True)])
    traffic: dict[str, float] = found[0]["traffic"]
    gradients = median(work[ALONE]) / median(work[GRADIENT])
    notes = [
        f"On the wall two processes make {times(on_wall.median)} ({on_wall.low:.2f} - {on_wall.high:.2f}) as many "
        f"products as one, by the time of work of the busier one {times(timings[1].ratio.median)}; where other work "
        "shares the cores, as it did here if the two differ, the second is what a free core would give.",
        f"A product sends {readable(traffic['bytes'])} into a sum that takes {1e3 * traffic['seconds']:.2f} ms, after "
        f"a roll call of {1e3 * traffic['waited']:.2f} ms that waits for the slower process; between processes of one "
        "machine, with gloo.",
        f"A product of one process takes {gradients:.2f} gradients of the loss by all parameters.",
        f"The products differ by {found[0]['apart']:.1g} of their length.",
    ]
    details = {"wall": asdict(on_wall), "traffic": traffic, "gradients": gradients, **{"why": found[0]["why"]}}
    setting = {"dtype": "float32", "layers": size.layers, "d": size.width, "B": size.batch, "L": size.length}
    return Result(
        name=NAME,
        title=TITLE,
        setting={**setting, "block": size.block, "entries": found[0]["entries"]},
        target=GOAL,
        against=ALONE,
        rounds=size.rounds,
        timings=tuple(timings),
        details=details,
        notes=tuple(notes),
        provenance=provenance.collect(),
    )


def run(options: Options, tick: Tick) -> Result:
    """Measure and write the result."""
    size = Size(rounds=3) if options.quick else Size()
    found = result(size, measured(size))
    tick("all rounds")
    found.save()
    return found


if __name__ == "__main__":
    print(json.dumps(work(Size(**json.loads(sys.argv[1])))))
