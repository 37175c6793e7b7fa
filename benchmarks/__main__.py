"""``python -m benchmarks [names] [--quick] [--list]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import summary
from benchmarks.harness import Options
from benchmarks.registry import RUNNERS
from benchmarks.results import RESULTS, Result
from benchmarks.tables import rendered


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Exact Hessians against autograd.")
    parser.add_argument("names", nargs="*", metavar="name", help="benchmarks to run (default: all of them)")
    parser.add_argument("--quick", action="store_true", help="few rounds, no memory")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (default: 2)")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and stop")
    parsed = parser.parse_args(given)
    unknown = [name for name in parsed.names if name not in RUNNERS]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(RUNNERS)}")
    return parsed


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("[dim]{task.fields[step]}"), console=console, transient=True)


def run(names: Sequence[str], options: Options, console: Console) -> list[Result]:
    """Run benchmarks one after the other; each prints its table when it is done."""
    results = []
    for name in names:
        results.append(_run_one(name, options, console))
        console.print(rendered(results[-1]))
    return results


def _run_one(name: str, options: Options, console: Console) -> Result:
    runner = RUNNERS[name]
    with _progress(console) as progress:
        task = progress.add_task(name, total=runner.steps(options), step="")
        return runner.run(options, lambda step: progress.update(task, advance=1, step=step))


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parsed = _arguments(given)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    if parsed.list:
        width = 2 + max(map(len, RUNNERS))
        for name, runner in RUNNERS.items():
            console.print(f"[bold]{name:{width}}[/bold]{runner.title}", highlight=False, soft_wrap=True)
        return 0
    results = run(parsed.names or list(RUNNERS), Options(parsed.quick, parsed.threads), console)
    summary.save(list(RUNNERS))
    made = results[-1].provenance
    console.print(
        f"[dim]{made['cpu']}, {made['threads']} threads, torch {made['libraries']['torch']}, commit {made['commit']}; "
        f"written to {RESULTS}[/dim]",
        highlight=False,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
