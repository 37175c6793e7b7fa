"""Options that several commands of the laboratory have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hessianlab.cli import completion

Experiments = Annotated[
    list[str] | None,
    typer.Argument(help="Experiments, e.g. fig1 fig3a; all if none.", autocompletion=completion.experiments),
]

Preset = Annotated[
    str, typer.Option(help="quick (laptop size) or paper (published size).", autocompletion=completion.presets)
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting; tuples as 2,3,4.", autocompletion=completion.settings
    ),
]

Jobs = Annotated[int | None, typer.Option(help="Processes; as many as there are cores if not given.")]

Backend = Annotated[
    str,
    typer.Option(help="local or dask.", autocompletion=completion.backends),
]

Address = Annotated[str | None, typer.Option(help="The cluster's scheduler, e.g. tcp://host:8786.")]

StoreFile = Annotated[Path, typer.Option(help="The file that keeps every finished cell.")]

PublishedMeans = Annotated[
    Path | None, typer.Option(help="Published means to compare with, a growth.csv; looked for if not given.")
]
