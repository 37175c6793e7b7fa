"""`hessianlens export`: what a store holds, as files for other programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlab.cli import options
from hessianlab.cli.running import STORE
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import errors_as_exit_codes

if TYPE_CHECKING:
    from hessianlab.store import Run

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens export --out tables[/cyan]    every experiment as CSV, with its provenance beside it

[cyan]hessianlens export fig3a fig6 --format parquet --out tables[/cyan]

[cyan]hessianlens export --store paper.sqlite --format json --out tables[/cyan]"""


@app.command(name="export", epilog=_EXAMPLES)
def export_runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments; all in the store if none.", autocompletion=options.complete_experiments),
    ] = None,
    store: Annotated[Path, typer.Option(help="The file that `hessianlens reproduce` wrote.")] = STORE,
    form: Annotated[
        str, typer.Option("--format", help="csv, parquet or json.", autocompletion=options.complete_formats)
    ] = "csv",
    out: Annotated[Path, typer.Option(help="Output directory; created if missing.")] = Path("export"),
) -> None:
    """Write the last complete run of each experiment as a table; arrays go to an npz file beside it.

    Prints the name of every file written.
    """
    with errors_as_exit_codes("every file that was printed is complete."):
        from hessianlab.store import last_complete_runs, open_store
        from hessianlab.store.export import FORMATS, export_run
        from hessianlens.errors import check_choice, expect
        from hessianlens.files import check_directory

        check_choice("format", form, FORMATS)
        check_directory(out)
        with open_store(store, readonly=True) as opened:
            runs = last_complete_runs(opened)
            expect(bool(runs), f"store: got {store}, which has no complete run; run `hessianlens reproduce` first.")
            for name in names or []:
                _check_has_run(name, runs, store)
            for name in dict.fromkeys(names or runs):
                for path in export_run(opened, runs[name], form, out):
                    typer.echo(path)


def _check_has_run(name: str, runs: Mapping[str, Run], store: Path) -> None:
    """Refuse what is not in the store: with the command that measures it, if there is such an experiment."""
    from hessianlab.claims.stored import EXPERIMENT
    from hessianlab.experiments.registry import EXPERIMENTS, STUDIES, STUDY, registry_of
    from hessianlens.errors import check_choice, expect

    if registry_of(name) is not None or name == EXPERIMENT.name:
        studied = f"study {name.removeprefix(STUDY)}" if name in STUDIES else "claims"
        command = f"reproduce {name}" if name in EXPERIMENTS else studied
        option = "" if store == STORE else f" --store {store}"
        expect(
            name in runs,
            f"experiment: got {name!r}, which has no complete run in {store}; "
            f"`hessianlens {command}{option}` makes one.",
        )
    check_choice("experiment", name, runs)
