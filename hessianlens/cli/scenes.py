"""`hessianlens explore`: the page of interactive scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import errors_as_exit_codes

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens explore[/cyan]    write explore.html and open it

[cyan]hessianlens explore --scene activation --scene matrices --html two.html --no-open[/cyan]"""


@app.command(name="explore", epilog=_EXAMPLES)
def write_scenes(
    html: Annotated[Path, typer.Option(help="The file to write.")] = Path("explore.html"),
    scene: Annotated[
        list[str] | None,
        typer.Option(help="Only this scene; may be repeated.", autocompletion=completion.scene_names),
    ] = None,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the file in a browser.")] = True,
) -> None:
    """Open interactive pictures of a small layer's exact Hessian in the browser.

    One self-contained file: it computes in the browser and loads nothing from the network.
    """
    with errors_as_exit_codes("no page was written."):
        from hessianlens.explorer import SCENES, page
        from hessianlens.files import check_writable, write_whole

        target = check_writable(html, "html")
        write_whole(target, page(scene or SCENES))
        typer.echo(f"Page: {html}")
        if opens and not _opened(target):
            typer.echo("No browser was found; open the file in one.", err=True)


def _opened(path: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False
