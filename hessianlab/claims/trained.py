"""What studies found, as it is recorded beside the claims that it decides, and how an interval decides one."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hessianlab.claims.finding import Check, Finding, equal
from hessianlab.results import Chart
from hessianlab.wording import several
from hessianlens.errors import InputError

RECORD = Path(__file__).parent / "topics" / "training.json"
"""Results of studies by name, written by ``hessianlens study NAME --record``: intervals, sentences, a chart each."""

_NUMBERS = re.compile(r"\[[-+\d.eE,\s]*(?:null|NaN|Infinity)?[-+\d.eE,\s]*\]")
"""A list of numbers, which takes one line of a file."""


@functools.cache
def read_record(path: Path = RECORD) -> Mapping[str, Any]:
    """All that is recorded; nothing before the first record."""
    if not path.exists():
        return {}
    try:
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: expected JSON, got an error ({error}); record the studies anew.") from error
    return found


def write_record(study: str, numbers: Mapping[str, Any], path: Path = RECORD) -> Path:
    """Record what one study found; what is recorded of others stays, and so do runs beside it with other settings."""
    before = read_record(path).get(study, {})
    same = "config" in before and not changed_settings(before["config"], numbers.get("config", {}))
    beside = {name: before[name] for name in ("replications",) if same and name in before}
    kept = {**read_record(path), study: {**beside, **numbers}}
    text = json.dumps({name: kept[name] for name in sorted(kept)}, indent=1, ensure_ascii=False)
    try:
        path.write_text(_NUMBERS.sub(lambda row: " ".join(row[0].split()), text) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); record from a checkout you own.") from error
    read_record.cache_clear()
    return path


_OF_ONE_RUN = ("preset", "config", "created", "commit", "seconds", "diverged", "intervals", "conditions")


def write_replication(study: str, numbers: Mapping[str, Any], path: Path = RECORD) -> Path:
    """Record a run of a study beside the recorded one: other seeds and another setting, for the same verdicts."""
    main = read_record(path).get(study)
    if not main:
        raise InputError(f"{study}: got a run to compare with, expected a recorded one first; record the study itself.")
    changed = changed_settings(main["config"], numbers["config"])
    if not changed:
        raise InputError(
            f"{study}: got the recorded settings, expected others; set another seed, e.g. --set seed=5000."
        )
    one = {name: numbers[name] for name in _OF_ONE_RUN}
    others = [o for o in main.get("replications", ()) if changed_settings(main["config"], o["config"]) != changed]
    return write_record(study, {**main, "replications": [*others, one]}, path)


def changed_settings(config: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that differ, but for those that say what is compared and how often curvature is measured beside it.

    >>> changed_settings({"seed": 0, "batch": 16, "tasks": ["recall"]}, {"seed": 7, "batch": 16, "tasks": []})
    {'seed': 7}
    """
    compared = ("tasks", "conditions", "curvatures")
    return {name: value for name, value in other.items() if name not in compared and config.get(name) != value}


@dataclass(frozen=True)
class Effect:
    """A mean over seeds with its interval, and the range in which a claim says it lies.

    Attributes:
        what: The measured quantity.
        mean: None if it was not.
        low: Lower end of the 95 % interval.
        high: Upper end.
        seeds: Number of seeds, or of what else the interval is over.
        detectable: The smallest effect that would have been found four times out of five.
        least: The claim's range begins here.
        most: It ends here.
        over: What the interval is over.
    """

    what: str
    mean: float | None
    low: float
    high: float
    seeds: int
    detectable: float
    least: float = -math.inf
    most: float = math.inf
    over: str = "seeds"

    @property
    def state(self) -> bool | None:
        """Whether the whole interval is in the claimed range; None if it reaches across an end of it."""
        if self.mean is None or math.isnan(self.low + self.high):
            return None
        if self.least <= self.low and self.high <= self.most:
            return True
        return False if self.high < self.least or self.low > self.most else None

    @property
    def shown(self) -> str:
        """With its interval."""
        if self.mean is None:
            return "not measured"
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"

    def check(self) -> Check:
        """Passes if the interval is in the range."""
        ends = [f"from {self.least:.3g}" if math.isfinite(self.least) else ""]
        ends += [f"to {self.most:.3g}" if math.isfinite(self.most) else ""]
        what = f"{self.what}, mean and 95 % interval over {self.seeds} {self.over}"
        return Check(what, self.shown, " ".join(filter(None, ends)), self.state is True)


TASK_NAMES = {"characters": "text", "addition": "addition", "recall": "associative recall"}

FIELDS = ("mean", "low", "high", "seeds", "detectable")
"""Columns of a recorded interval; a sixth is the effect size of a comparison."""

Numbers = Mapping[str, str | float]
"""Numbers that the text of a claim names."""


class StudyRecord:
    """What is recorded of one study, under one of its conditions.

    Args:
        study: Its name.
        path: The file.
        condition: One of `conditions`; empty for the study's own settings.
        replication: Which of the runs that are recorded beside it; None for the recorded one itself.

    >>> scaling = StudyRecord("study_scaling")
    >>> scaling.sentences[0].startswith("On a character language model"), scaling.chart.x_label
    (True, 'steps')
    """

    def __init__(self, study: str, path: Path = RECORD, condition: str = "", replication: int | None = None) -> None:
        self.study, self.condition, self._path, self._replication = study, condition, path, replication
        self._main: Mapping[str, Any] = read_record(path).get(study, {})
        self._whole = self._main if replication is None else self._main["replications"][replication]
        self._found = self._whole.get("conditions", {}).get(condition, {}) if condition else self._whole

    def conditions(self) -> Iterator[StudyRecord]:
        """The study's own settings, and then every condition that was tried beside them."""
        for name in ("", *self._whole.get("conditions", ())):
            yield StudyRecord(self.study, self._path, name, self._replication)

    def replications(self) -> Iterator[StudyRecord]:
        """The runs with other seeds and settings that are recorded beside it."""
        for place in range(len(self._main.get("replications", ()))):
            yield StudyRecord(self.study, self._path, replication=place)

    @property
    def changed(self) -> str:
        """What a replication sets otherwise, in words."""
        found = changed_settings(self._main.get("config", {}), self._whole.get("config", {}))
        return ", ".join(f"{name} {value}" for name, value in found.items())

    def where(self, task: str) -> str:
        """Task and condition, for a list.

        >>> StudyRecord("study_scaling").where("characters")
        'on text'
        """
        return _where(task, self.condition)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, the most important first; none if the study is not recorded."""
        return tuple(self._whole.get("sentences", ()))

    @property
    def chart(self) -> Chart | None:
        """What the study asks about, in numbers."""
        kept = self._whole.get("chart")
        return Chart.of(kept) if kept else None

    def effect(self, name: str, what: str, least: float = -math.inf, most: float = math.inf) -> Effect:
        """An interval by its name, with what a claim says of it."""
        found = self._found.get("intervals", {}).get(name)
        if found is None:
            return Effect(what, None, math.nan, math.nan, 0, math.nan, least, most)
        return Effect(what, **dict(zip(FIELDS, found, strict=False)), least=least, most=most)

    def mean(self, name: str) -> float:
        """The mean alone; not a number if it is not recorded."""
        return float(self._found.get("intervals", {}).get(name, (math.nan,))[0])

    def formatted(self, name: str, factor: float = 1.0) -> str:
        """The mean for a sentence."""
        return number_or_missing(factor * self.mean(name))

    def relative(
        self, quantity: str, task: str, arm: str, what: str, least: float = -math.inf, most: float = math.inf
    ) -> Effect:
        """Loss or accuracy over that of softmax, minus 1; as bad as can be if all runs, or all but one, diverged."""
        found = self.effect(f"{task}: relative {quantity}, {arm} over softmax", what, least, most)
        lost, seeds = self._found.get("diverged", {}).get(f"{task}: {arm}", 0), self._seeds
        if found.mean is None and lost and lost >= seeds - 1:
            worst = math.inf if quantity == "loss" else -1.0
            return Effect(f"{what} ({lost} of {seeds} runs diverged)", worst, worst, worst, seeds, 0.0, least, most)
        return found

    @property
    def _seeds(self) -> int:
        """Of the study, unless the condition has fewer or more."""
        return int({**self._whole.get("config", {}), **self._found.get("changes", {})}.get("seeds", 0))

    def names(self) -> tuple[str, ...]:
        """Names of all intervals."""
        return tuple(self._found.get("intervals", ()))

    @property
    def model(self) -> str:
        """What a study of one model looked at."""
        return str(self._whole.get("config", {}).get("model", "(not recorded)"))

    @property
    def models(self) -> str:
        """What was trained, as text."""
        if not self._whole:
            return f"nothing yet: {self.study} is not recorded"
        config = self._whole["config"]
        if "model" in config:
            return f"{config['model']}, {several(config['weights'])} weights, preset {self._whole['preset']}"
        layers = config.get("layers", 1)
        blocks = "1 block" if layers == 1 else f"{layers} blocks"
        taken = f"{config['steps']} steps" if "steps" in config else "before training"
        return f"{blocks} of width {config['d_model']}, {taken}, preset {self._whole['preset']}"


def protocols_of(method: str) -> list[str]:
    """What was stated before the runs of the studies that a method names, line by line.

    >>> protocols_of("study_scaling, on text: quotient of the perplexities at the end")[2].startswith("Model: 1 block")
    True
    """
    names = dict.fromkeys(re.findall(r"\bstudy_[a-z_]+", method))
    return [line for name in names for line in read_record().get(name, {}).get("protocol", ())]


def number_or_missing(value: float) -> str:
    """Three digits, or that it was not measured.

    >>> number_or_missing(2.0), number_or_missing(math.nan)
    ('2', '(not measured)')
    """
    return "(not measured)" if math.isnan(value) else f"{value + 0.0:.3g}"  # + 0.0 makes -0 a plain 0


def _where(task: str, condition: str, case: str = "") -> str:
    details = ", ".join(filter(None, (case, condition)))
    return f"on {TASK_NAMES[task]}{f' with {details}' if details else ''}"


@dataclass(frozen=True)
class ConditionOutcome:
    """What a claim's effects say of one task and one case under one condition.

    Attributes:
        task: What was learned.
        condition: Empty for the study's own settings.
        effects: The measured effects.
        state: True if all of them lie inside the ranges that the claim states, False if one lies outside, None if the
            seeds do not decide.
        case: Which of several arms that the claim speaks of; empty if it speaks of one.
    """

    task: str
    condition: str
    effects: tuple[Effect, ...]
    state: bool | None
    case: str = ""

    @property
    def where(self) -> str:
        """Task, case and condition, for a list.

        >>> ConditionOutcome("characters", "300 steps", (), None, "no norm").where
        'on text with no norm, 300 steps'
        """
        return _where(self.task, self.condition, self.case)

    @property
    def shown(self) -> str:
        """The effects with their intervals."""
        return "; ".join(f"{effect.what} {effect.shown}" for effect in self.effects)


def outcome_of(task: str, condition: str, effects: Sequence[Effect], case: str = "") -> ConditionOutcome:
    """Of the effects under one condition, all of which must be as the claim says."""
    states = [effect.state for effect in effects]
    state = False if False in states else None if None in states else True
    return ConditionOutcome(task, condition, tuple(effects), state, case)


Cases = Mapping[str, Sequence[Effect]]
"""Effects by the case that they are of; the only case of a claim is called ""."""


def decided(
    record: StudyRecord,
    effects: Callable[[StudyRecord, str], Cases],
    numbers: Numbers,
    tasks: Sequence[str] = ("characters",),
    universal: bool = False,
) -> Finding:
    """The finding of a claim about trained models from its effects under every condition that was tried.

    It holds if it is borne out under the study's own settings (or the first condition, if nothing was measured under
    these) and contradicted nowhere; it holds if a condition is met where it is borne out under some conditions, or in
    some cases, and contradicted in others, and the text lists both; where it is contradicted and never borne out, a
    statement without a condition fails, and one about models in use is not seen at this size. Otherwise the seeds do
    not decide. What a run with other seeds and settings decides where this one does not counts as a condition more.

    Args:
        record: The study.
        effects: What the claim says, one by one, under a condition and on a task, by case.
        numbers: Numbers that the text names, beside ``models`` and ``where``, which it always does.
        tasks: Those that the claim speaks of, the first one first.
        universal: Whether it is said of all models, so that one that contradicts it is a counterexample.
    """
    outcomes = _outcomes(record, effects, tasks)
    again = {one.changed: _outcomes(one, effects, tasks) for one in record.replications()}
    counted = [*outcomes, *_decided_again(outcomes, again)]
    own = [one for one in outcomes if (one.task, one.condition) == (outcomes[0].task, outcomes[0].condition)]
    states = [outcome.state for outcome in counted]
    supported, contradicted = True in states, False in states
    silent = all(outcome.state is None for outcome in own)
    undecided = (not supported and not contradicted) or (supported is not contradicted and silent)
    reasons = dict.fromkeys(_reason(effect) for one in own for effect in one.effects if effect.state is None)
    said = (where_it_holds(outcomes), *(f"Run again with {name}: {where_it_holds(o)}" for name, o in again.items()))
    return Finding(
        checks=tuple(check for outcome in counted for check in _checks(outcome) if outcome.state is not None),
        conditional=tuple(check for outcome in counted for check in _checks(outcome) if outcome.state is True),
        example="; ".join(f"{one.where}: {one.shown}" for one in own),
        support=tuple(_agreement(name, outcomes, others) for name, others in again.items()),
        numbers={**numbers, "models": record.models, "where": ". ".join(said)},
        undecided="; ".join(reasons) if undecided else "",
        not_seen=not universal,
    )


def _outcomes(
    record: StudyRecord, effects: Callable[[StudyRecord, str], Cases], tasks: Sequence[str]
) -> list[ConditionOutcome]:
    """By condition, task and case; those without a measurement are left out, unless there is none at all."""
    found = [
        outcome_of(task, one.condition, of_case, case)
        for one in record.conditions()
        for task in tasks
        for case, of_case in effects(one, task).items()
    ]
    measured = [one for one in found if any(effect.mean is not None for effect in one.effects)]
    return measured or found[:1]


def _decided_again(
    outcomes: Sequence[ConditionOutcome], again: Mapping[str, Sequence[ConditionOutcome]]
) -> list[ConditionOutcome]:
    """Outcomes that a run with other seeds and settings decides where the recorded one does not."""
    known = {(one.task, one.case, one.condition) for one in outcomes if one.state is not None}
    return [
        replace(one, condition=f"{one.condition or 'as set'}, run again with {name}")
        for name, others in again.items()
        for one in others
        if one.state is not None and (one.task, one.case, one.condition) not in known
    ]


def _agreement(name: str, outcomes: Sequence[ConditionOutcome], others: Sequence[ConditionOutcome]) -> Check:
    """Whether a run with other seeds and settings contradicts none of the outcomes that both decide."""
    known = {(one.task, one.case, one.condition): one.state for one in outcomes if one.state is not None}
    both = [(known.get((o.task, o.case, o.condition)), o.state) for o in others if o.state is not None]
    decided_twice = [pair for pair in both if pair[0] is not None]
    opposite = sum(here is not there for here, there in decided_twice)
    return equal(f"run again with {name}: of {len(decided_twice)} outcomes decided twice, opposite", opposite, 0)


def where_it_holds(outcomes: Sequence[ConditionOutcome]) -> str:
    """The conditions by what they say, task by task and case by case.

    >>> tried = (("characters", "", False), ("characters", "300 steps", True), ("addition", "", True))
    >>> where_it_holds([ConditionOutcome(task, condition, (), state) for task, condition, state in tried])
    'borne out on text (300 steps) and on addition (as set); contradicted on text (as set)'
    """
    words = {True: "borne out", False: "contradicted", None: "undecided"}
    places = dict.fromkeys((one.task, one.case) for one in outcomes)

    def listed(state: bool | None) -> list[str]:
        by_place = {
            place: [
                one.condition or "as set" for one in outcomes if (one.task, one.case) == place and one.state is state
            ]
            for place in places
        }
        return [
            f"{_where(task, '', case)} ({', '.join(by_place[task, case])})"
            for task, case in places
            if by_place[task, case]
        ]

    return "; ".join(f"{word} {several(found)}" for state, word in words.items() if (found := listed(state)))


def _checks(outcome: ConditionOutcome) -> list[Check]:
    checks = [effect.check() for effect in outcome.effects]
    return [replace(check, what=f"{outcome.where}: {check.what}") for check in checks]


def _reason(effect: Effect) -> str:
    if effect.mean is None:
        return f"{effect.what} was not measured"
    return (
        f"{effect.what}: the interval {effect.shown} reaches across the claimed range; {effect.seeds} seeds would have "
        f"distinguished an effect of {effect.detectable:.2g} from none with probability 80 %"
    )
