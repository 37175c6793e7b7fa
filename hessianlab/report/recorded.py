"""Recorded studies on the page: what was asked, what came out, a picture, and the command that runs it again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from hessianlab.claims.trained import StudyRecord, read_record
from hessianlab.experiments.registry import STUDIES, STUDY
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.report.argument import ANSWERING
from hessianlab.report.references import linked_source
from hessianlab.results import Chart
from hessianlab.studies.presentation.drawing import draw_chart
from hessianlab.wording import ACTIVATIONS, duration

SHOWN_PANELS = 4
"""Of a chart: the first ones say what the study is about."""

_LONGEST = 640
"""Letters of a sentence; longer ones list every comparison."""


@dataclass(frozen=True)
class RecordedStudy:
    """What the page says about a recorded study."""

    name: str
    title: str
    source: Markup
    question: str
    models: str
    sentences: tuple[str, ...]
    svgs: tuple[Markup, ...]
    caption: str
    condition_svgs: tuple[Markup, ...]
    condition_caption: str
    protocol: tuple[str, ...]
    command: str
    created: str
    seconds: str
    again: tuple[tuple[str, str], ...]


def recorded_studies() -> list[RecordedStudy]:
    """Every recorded study that this version knows: the one that answers the chapter's question first, then by name."""
    found = read_record()
    return [
        _recorded_study(name, found[name])
        for name in sorted(found, key=lambda n: (n != ANSWERING, n))
        if name in STUDIES
    ]


def _recorded_study(name: str, found: Mapping[str, Any]) -> RecordedStudy:
    study, chart = STUDIES[name], Chart.of(found["chart"])
    by_condition = Chart.of(found["condition_chart"]) if "condition_chart" in found else None
    return RecordedStudy(
        name=name,
        title=study.title,
        source=linked_source(study.source),
        question=study.question,
        models=StudyRecord(name).models if "steps" in found["config"] else "",
        sentences=_first(found["sentences"]),
        svgs=_drawn(chart, f"recorded-{name}", " ".join((f"{study.title}.", *_first(found["sentences"])[:1]))),
        caption=chart.caption,
        condition_svgs=_drawn(by_condition, f"conditions-{name}", study.title) if by_condition else (),
        condition_caption=by_condition.caption if by_condition else "",
        protocol=tuple(found.get("protocol", ())),
        command=_command(name, found["preset"], found["config"]),
        created=found["created"],
        seconds=duration(found["seconds"]),
        again=tuple(
            (other.changed, _command(name, run["preset"], run["config"], "again"))
            for other, run in zip(StudyRecord(name).replications(), found.get("replications", ()), strict=True)
        ),
    )


def _command(name: str, preset: str, config: Mapping[str, Any], how: str = "record") -> str:
    """What records it anew; settings of its own are described by how they differ from the full size."""
    own = ""
    if preset not in STUDIES[name].presets:
        preset, full = "full", asdict(STUDIES[name].presets["full"])
        listed = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
        changed = {key: _plain(value) for key, value in listed.items() if value != full.get(key)}
        own = "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in changed.items())
    return f"hessianlens study {name.removeprefix(STUDY)} --preset {preset}{own} --{how}"


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _drawn(chart: Chart, name: str, title: str) -> tuple[Markup, ...]:
    figure = draw_chart(replace(chart, panels=chart.panels[:SHOWN_PANELS]))
    return tuple(map(Markup, panel_svgs(figure, name, str(escape(title)))))


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first two that are no long lists, which the picture has, nor the sizes, which the page says anyway."""
    brief = [sentence for sentence in sentences if len(sentence) <= _LONGEST and not sentence.startswith("Models of")]
    return tuple(_named(sentence) for sentence in brief[:2])


def _named(sentence: str) -> str:
    """Activations by the names that the page gives them."""
    names = {written: words for name, words in ACTIVATIONS.items() for written in (name, name.replace("_", " "))}
    names |= {words: words for words in ACTIVATIONS.values()}
    any_name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"\b({any_name})\b", lambda found: names[found[0]], sentence)
