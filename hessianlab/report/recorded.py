"""Recorded studies on the page: what was asked, what came out, a picture, and the command that runs it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup, escape

from hessianlab.claims.trained import StudyRecord, read_record
from hessianlab.experiments.registry import STUDIES, STUDY
from hessianlab.plots.charts import IntervalRow, draw_intervals
from hessianlab.plots.single_panels import panel_svgs
from hessianlab.report.references import linked_source
from hessianlab.report.story import ANSWERING
from hessianlab.results import Chart
from hessianlab.studies.presentation.drawing import draw_chart
from hessianlab.wording import ACTIVATIONS, activation_in_words, duration

_MOST = 12
"""Rows of a picture; a study that compares more shows its first."""


_PANELS = 2
"""Of a chart: the first ones say what the study is about."""

_LONGEST = 640
"""Letters of a sentence; longer ones list every comparison."""

_CAPTION = (
    "Differences of the loss after training, paired over {seeds} seeds: means with 95 % intervals. Red squares lie "
    "above zero, blue dots below, and yellow diamonds decide nothing."
)


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
    command: str
    created: str
    seconds: str


def recorded_studies() -> list[RecordedStudy]:
    """Every recorded study that this version knows: the one that answers the chapter's question first, then by name."""
    found = read_record()
    return [
        _recorded_study(name, found[name])
        for name in sorted(found, key=lambda n: (n != ANSWERING, n))
        if name in STUDIES
    ]


def _recorded_study(name: str, found: Mapping[str, Any]) -> RecordedStudy:
    study, task, rows = STUDIES[name], *_differences(found)
    words = str(escape(study.title))
    if rows:
        drawn = draw_intervals(rows, f"Validation loss: {task}", "difference of the loss (nats)")
        caption = _CAPTION.format(seeds=found["config"]["seeds"])
    else:
        chart = Chart.of(found["chart"])
        drawn, caption = draw_chart(replace(chart, panels=chart.panels[:_PANELS])), chart.caption
    return RecordedStudy(
        name=name,
        title=study.title,
        source=linked_source(study.source),
        question=study.question,
        models=StudyRecord(name).models if rows else "",
        sentences=_first(found["sentences"]),
        svgs=tuple(map(Markup, panel_svgs(drawn, f"recorded-{name}", words))),
        caption=caption,
        command=f"hessianlens study {name.removeprefix(STUDY)} --preset {found['preset']} --record",
        created=found["created"],
        seconds=duration(found["seconds"]),
    )


def _first(sentences: Sequence[str]) -> tuple[str, ...]:
    """The first two that are no long lists, which the picture has, nor the sizes, which the page says anyway."""
    brief = [sentence for sentence in sentences if len(sentence) <= _LONGEST and not sentence.startswith("Models of")]
    return tuple(_named(sentence) for sentence in brief[:2])


def _named(sentence: str) -> str:
    """Activations by the names that the page gives them."""
    for name, words in ACTIVATIONS.items():
        sentence = sentence.replace(name.replace("_", " "), words)
    return sentence


def _differences(found: Mapping[str, Any]) -> tuple[str, list[IntervalRow]]:
    """The compared losses of the first task: ``task: loss, comparison``."""
    marked = [key.partition(": loss, ") for key in found["intervals"] if ": loss, " in key]
    task = next((before for before, _, _ in marked), "")
    rows = []
    for before, sign, comparison in marked:
        if before == task:
            value = found["intervals"][f"{before}{sign}{comparison}"]
            rows.append(IntervalRow(_worded(comparison), value["mean"], value["low"], value["high"]))
    return task, rows[:_MOST]


def _worded(comparison: str) -> str:
    """The name of a comparison; what both sides share is said once.

    >>> _worded("softmax, no norm, SGD minus softmax, no norm, Adam"), _worded("row_sum minus softmax")
    ('SGD minus Adam: softmax, no norm', 'linear / sum minus softmax')
    """
    left, sign, right = comparison.partition(" minus ")
    ours, theirs = ([activation_in_words(word) for word in side.split(", ")] for side in (left, right))
    shared = [word for word in ours if word in theirs]
    if not sign or not shared or len(shared) in (len(ours), len(theirs)):
        return f"{', '.join(ours)}{sign}{', '.join(theirs)}"
    apart = (", ".join(word for word in side if word not in shared) for side in (ours, theirs))
    return f"{sign.join(apart)}: {', '.join(shared)}"
