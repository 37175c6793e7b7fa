"""Options that several commands of the laboratory have, and names that the shell may complete, known without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_experiments(ctx: typer.Context) -> list[str]:
    """Experiments that are not named yet."""
    from hessianlab.experiments.registry import EXPERIMENTS

    return [name for name in EXPERIMENTS if name not in (ctx.params.get("names") or ())]


def complete_studies(ctx: typer.Context) -> list[str]:
    """Studies that are not named yet."""
    from hessianlab.experiments.registry import STUDIES, STUDY

    return [short for name in STUDIES if (short := name.removeprefix(STUDY)) not in (ctx.params.get("names") or ())]


def complete_study_presets() -> list[str]:
    """Presets, which are the same of every study."""
    from hessianlab.experiments.registry import STUDIES

    return list(next(iter(STUDIES.values())).presets)


def complete_presets() -> list[str]:
    """Presets, which are the same of every experiment."""
    from hessianlab.experiments.registry import EXPERIMENTS

    return list(next(iter(EXPERIMENTS.values())).presets)


def complete_settings() -> list[str]:
    """Settings that some experiment has."""
    from hessianlab.experiments.registry import EXPERIMENTS
    from hessianlab.runner.settings import field_names

    configs = [config for experiment in EXPERIMENTS.values() for config in experiment.presets.values()]
    return sorted({f"{field}=" for config in configs for field in field_names(config)})


def complete_backends() -> list[str]:
    """Where cells can run."""
    from hessianlab.runner import BACKENDS

    return list(BACKENDS)


def complete_formats() -> list[str]:
    """Files that an export can write."""
    from hessianlab.store.export import FORMATS

    return list(FORMATS)


def complete_claim_ids(ctx: typer.Context) -> list[str]:
    """Ids of claims that are not named yet."""
    from hessianlab.claims.catalogue import claim_topics

    return [id for id in claim_topics() if id not in (ctx.params.get("ids") or ())]


def complete_documents() -> list[tuple[str, str]]:
    """Letters of the documents, and what they stand for."""
    from hessianlab.claims.definition import DOCUMENTS

    return list(DOCUMENTS.items())


def complete_topics() -> list[str]:
    """Topics of claims, as one word each."""
    from hessianlab.claims.catalogue import claim_topics

    return sorted({topic.replace(" ", "_") for topic in claim_topics().values()})


def complete_verdicts() -> list[str]:
    """Verdicts, as one word each."""
    from hessianlab.claims.finding import Verdict

    return [str(verdict).replace(" ", "-") for verdict in Verdict]


Experiments = Annotated[
    list[str] | None,
    typer.Argument(help="Experiments, e.g. fig1 fig3a; all if none.", autocompletion=complete_experiments),
]

Preset = Annotated[
    str, typer.Option(help="quick (laptop size) or paper (published size).", autocompletion=complete_presets)
]

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="Change a setting; tuples as 2,3,4.", autocompletion=complete_settings
    ),
]

Jobs = Annotated[int | None, typer.Option(help="Number of processes. Default: one per core.")]

Backend = Annotated[
    str,
    typer.Option(help="local or dask.", autocompletion=complete_backends),
]

Address = Annotated[str | None, typer.Option(help="The cluster's scheduler, e.g. tcp://host:8786.")]

StoreFile = Annotated[Path, typer.Option(help="The file with every finished cell.")]

PublishedMeans = Annotated[
    Path | None, typer.Option(help="A growth.csv with published means to compare with; searched for by default.")
]
