"""Peak memory, in a fresh process for every competitor: ``python -m benchmarks.memory <benchmark> <competitor>``.

The process runs the competitor on a tiny problem first, so that every library is loaded, builds the inputs, notes its
resident size, and then reports by how much the peak of the resident size exceeds it. The result itself counts.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import re
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.harness import Benchmark
from benchmarks.results import Memory

_ROOT = Path(__file__).resolve().parents[1]
_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""glibc: give freed tensors back to the system at once, so that a peak is not hidden in memory freed before."""


class PeakMeter:
    """The growth of the peak resident size since it was made.

    Where ``/proc/self/clear_refs`` can be written the kernel's mark is reset first; elsewhere an earlier, higher peak
    of the process hides smaller ones.
    """

    def __init__(self) -> None:
        gc.collect()
        _return_freed_memory()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.start = _resident()

    def growth(self) -> int:
        """Bytes by which the peak exceeds the resident size at the start."""
        return max(0, _peak() - self.start)

    def kept(self) -> int:
        """Bytes by which the resident size now exceeds that at the start."""
        gc.collect()
        _return_freed_memory()
        return max(0, _resident() - self.start)


def _status(field: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    return None if found is None else 1024 * int(found.group(1))


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status("VmHWM") or unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _resident() -> int:
    return _status("VmRSS") or _peak()


def _return_freed_memory() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def measure_here(benchmark: Benchmark, name: str, threads: int, tiny: bool = False) -> Memory:
    """Run one competitor once in this process."""
    torch.set_num_threads(threads)
    competitor = benchmark.competitor(name)
    competitor.prepare(benchmark.make(benchmark.tiny))()
    problem = benchmark.make(benchmark.tiny if tiny else benchmark.size)
    preparing = PeakMeter()
    run = competitor.prepare(problem)
    set_up, kept = preparing.growth(), preparing.kept()
    running = PeakMeter()
    run()
    return Memory(set_up, kept, running.growth())


class Named(Protocol):
    """A benchmark as the command line knows it."""

    @property
    def name(self) -> str:
        """Its name."""


def measure_apart(benchmark: Named, name: str, threads: int, tiny: bool = False) -> Memory:
    """Run one competitor once in a process of its own."""
    options = ["--threads", str(threads), *(["--tiny"] if tiny else [])]
    command = [sys.executable, "-m", "benchmarks.memory", benchmark.name, name, *options]
    environment = os.environ | _ALLOCATOR
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return Memory(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure the competitor named on the command line and print the result as JSON."""
    from benchmarks.network import NETWORKS
    from benchmarks.registry import BENCHMARKS

    networks = {b.name: b for b in NETWORKS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=main.__doc__)
    parser.add_argument("benchmark", choices=[*BENCHMARKS, *networks])
    parser.add_argument("competitor")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="measure the small problem of the tests")
    given = parser.parse_args()
    if given.benchmark in networks:
        found = networks[given.benchmark].memory_here(given.competitor, given.threads, given.tiny)
    else:
        found = measure_here(BENCHMARKS[given.benchmark], given.competitor, given.threads, given.tiny)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
