"""`hessianlens doctor`: what is installed, and whether it works on a device."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes
from hessianlens.cli.options import AsJson
from hessianlens.cli.status_line import waiting

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens doctor[/cyan]    versions, memory, devices, extras, and a check on the CPU

[cyan]hessianlens doctor --gpu --json[/cyan]    the same on the first GPU, for a bug report"""


@app.command(name="doctor", epilog=_EXAMPLES)
def check_installation(
    gpu: Annotated[bool, typer.Option("--gpu", help="Check the first GPU instead of the CPU.")] = False,
    device: Annotated[str, typer.Option(help="Check this device, e.g. cuda:1.", metavar="DEVICE")] = "",
    as_json: AsJson = False,
) -> None:
    """Show what is installed, what works here, and how to get what is missing."""
    with errors_as_exit_codes("nothing was checked."):
        with waiting("Loading the libraries"):
            from hessianlens.errors import expect
            from hessianlens.self_check import device_check, devices, extras, resources, versions
        present = devices()
        expect(not gpu or len(present) > 1, "gpu: PyTorch finds none here, expected a build of PyTorch with a driver.")
        chosen = device or (present[1] if gpu else "cpu")
        with waiting(f"Checking {chosen}"):
            rows = device_check(chosen)
    if as_json:
        known = {"versions": versions(), "extras": extras(), "resources": resources(), "devices": present}
        typer.echo(json.dumps({**known, "device": chosen, "rows": rows}, indent=2))
    else:
        _print({**versions(), **resources(), "devices": ", ".join(present), "checked": chosen}, extras(), rows)
    if not all(row.get("ok", True) for row in rows):
        raise typer.Exit(FINDING)


def _print(known: dict[str, str], extras: dict[str, dict[str, str]], rows: list[dict[str, Any]]) -> None:
    for name, value in known.items():
        typer.echo(f"{name:24}{value}")
    typer.echo("")
    for extra in extras.values():
        missing = f"missing: {extra['install']}" if "install" in extra else ""
        typer.echo(f"{extra['for']:52}{'; '.join(filter(None, (extra['installed'], missing)))}")
    typer.echo("")
    for row in rows:
        if "ok" in row:
            state = "agrees with the CPU" if row["ok"] else "DIFFERS from the CPU" if "difference" in row else "FAILED"
            detail = row.get("error") or f"by {row['difference']:.1g}"
            typer.echo(f"{row['what']:44}{state}, {detail}")
        elif "milliseconds" in row:
            typer.echo(f"{row['what']:44}{row['milliseconds']:.2f} ms")
        else:
            typer.echo(f"{row['what']:44}{row['gradients']:.2f} gradients")
