"""Names of the laboratory that the shell may complete, known without torch, each looked up when it is asked for."""

from __future__ import annotations

import typer


def experiments(ctx: typer.Context) -> list[str]:
    """Experiments that are not named yet."""
    from hessianlab.experiments.registry import EXPERIMENTS

    return [name for name in EXPERIMENTS if name not in (ctx.params.get("names") or ())]


def studies(ctx: typer.Context) -> list[str]:
    """Studies that are not named yet."""
    from hessianlab.experiments.registry import STUDIES, STUDY

    return [short for name in STUDIES if (short := name.removeprefix(STUDY)) not in (ctx.params.get("names") or ())]


def study_presets() -> list[str]:
    """Presets, which are the same of every study."""
    from hessianlab.experiments.registry import STUDIES

    return list(next(iter(STUDIES.values())).presets)


def presets() -> list[str]:
    """Presets, which are the same of every experiment."""
    from hessianlab.experiments.registry import EXPERIMENTS

    return list(next(iter(EXPERIMENTS.values())).presets)


def settings() -> list[str]:
    """Settings that some experiment has."""
    from hessianlab.experiments.registry import EXPERIMENTS
    from hessianlab.runner.settings import field_names

    configs = [config for experiment in EXPERIMENTS.values() for config in experiment.presets.values()]
    return sorted({f"{field}=" for config in configs for field in field_names(config)})


def backends() -> list[str]:
    """Where cells can run."""
    from hessianlab.runner import BACKENDS

    return list(BACKENDS)


def formats() -> list[str]:
    """Files that an export can write."""
    from hessianlab.store.export import FORMATS

    return list(FORMATS)


def claim_ids(ctx: typer.Context) -> list[str]:
    """Ids of claims that are not named yet."""
    from hessianlab.claims.catalogue import claim_topics

    return [id for id in claim_topics() if id not in (ctx.params.get("ids") or ())]


def documents() -> list[tuple[str, str]]:
    """Letters of the documents, and what they stand for."""
    from hessianlab.claims.definition import DOCUMENTS

    return list(DOCUMENTS.items())


def topics() -> list[str]:
    """Topics of claims, as one word each."""
    from hessianlab.claims.catalogue import claim_topics

    return sorted({topic.replace(" ", "_") for topic in claim_topics().values()})


def verdicts() -> list[str]:
    """Verdicts, as one word each."""
    from hessianlab.claims.finding import Verdict

    return [str(verdict).replace(" ", "-") for verdict in Verdict]
