"""What studies found, as it is recorded beside the claims that it decides, and how an interval decides one."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessianlab.claims.finding import Check, Finding, at_least
from hessianlab.results import Chart
from hessianlens.errors import InputError

RECORD = Path(__file__).parent / "topics" / "training.json"
"""Results of studies by name, written by ``hessianlens study NAME --record``: intervals, sentences, a chart each."""

PRACTICE = 512
"""Width of the smallest model in use that the documents have in mind: the first Transformer's."""


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
    """Record what one study found; what is recorded of others stays."""
    kept = {**read_record(path), study: numbers}
    text = json.dumps({name: kept[name] for name in sorted(kept)}, indent=1, ensure_ascii=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); record from a checkout you own.") from error
    read_record.cache_clear()
    return path


@dataclass(frozen=True)
class Effect:
    """A mean over seeds with its interval, and the range in which a claim says it lies.

    Attributes:
        what: The measured quantity.
        mean: None if it was not.
        low: Lower end of the 95 % interval.
        high: Upper end.
        seeds: Number of seeds.
        detectable: The smallest effect that would have been found four times out of five.
        least: The claim's range begins here.
        most: It ends here.
    """

    what: str
    mean: float | None
    low: float
    high: float
    seeds: int
    detectable: float
    least: float = -math.inf
    most: float = math.inf

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
        what = f"{self.what}, mean and 95 % interval over {self.seeds} seeds"
        return Check(what, self.shown, " ".join(filter(None, ends)), self.state is True)


_FIELDS = ("mean", "low", "high", "seeds", "detectable")


class StudyRecord:
    """What is recorded of one study.

    >>> scaling = StudyRecord("study_scaling")
    >>> scaling.sentences[0].startswith("On a character language model"), scaling.chart.x_label
    (True, 'steps')
    """

    def __init__(self, study: str, path: Path = RECORD) -> None:
        self.study = study
        self._found: Mapping[str, Any] = read_record(path).get(study, {})

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, the most important first; none if the study is not recorded."""
        return tuple(self._found.get("sentences", ()))

    @property
    def chart(self) -> Chart | None:
        """What the study asks about, in numbers."""
        kept = self._found.get("chart")
        return Chart.of(kept) if kept else None

    def effect(self, name: str, what: str, least: float = -math.inf, most: float = math.inf) -> Effect:
        """An interval by its name, with what a claim says of it."""
        found = self._found.get("intervals", {}).get(name)
        if found is None:
            return Effect(what, None, math.nan, math.nan, 0, math.nan, least, most)
        return Effect(what, **{field: found[field] for field in _FIELDS}, least=least, most=most)

    def mean(self, name: str) -> float:
        """The mean alone; not a number if it is not recorded."""
        return float(self._found.get("intervals", {}).get(name, {}).get("mean", math.nan))

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
        return int(self._found.get("config", {}).get("seeds", 0))

    @property
    def width(self) -> int:
        """Of the models that were trained."""
        return int(self._found.get("config", {}).get("d_model", 0))

    @property
    def models(self) -> str:
        """What was trained, in words."""
        if not self._found:
            return f"nothing yet: {self.study} is not recorded"
        config = self._found["config"]
        layers = config.get("layers", 1)
        blocks = "1 block" if layers == 1 else f"{layers} blocks"
        taken = f"{config['steps']} steps" if "steps" in config else "before training"
        return f"{blocks} of width {config['d_model']}, {taken}, preset {self._found['preset']}"


def number_or_missing(value: float) -> str:
    """Three digits, or that it was not measured.

    >>> number_or_missing(2.0), number_or_missing(math.nan)
    ('2', '(not measured)')
    """
    return "(not measured)" if math.isnan(value) else f"{value:.3g}"


def decided(
    recorded: StudyRecord, effects: Sequence[Effect], numbers: Mapping[str, str | float], needed: int | None = None
) -> Finding:
    """The finding of a claim about trained models from its effects.

    It fails if so many effects lie outside the claimed ranges that it cannot be true; it holds, for models as small as
    those that were trained, if enough of them lie inside; otherwise the seeds do not decide.

    Args:
        recorded: The study.
        effects: What the claim says, one by one.
        numbers: Numbers that the text names.
        needed: How many of them must be so; all if not given.
    """
    wanted = len(effects) if needed is None else needed
    inside = sum(effect.state is True for effect in effects)
    outside = sum(effect.state is False for effect in effects)
    possible = len(effects) - outside >= wanted
    missing = [effect for effect in effects if effect.state is None]
    reasons = "; ".join(_reason(effect) for effect in missing)
    return Finding(
        checks=(
            *(effect.check() for effect in effects),
            at_least("width of the models that were trained", recorded.width, PRACTICE),
        ),
        conditional=tuple(effect.check() for effect in effects if inside < wanted or effect.state is True),
        example="; ".join(f"{effect.what}: {effect.shown}" for effect in effects),
        numbers=numbers,
        undecided=reasons if possible and inside < wanted else "",
    )


def _reason(effect: Effect) -> str:
    if effect.mean is None:
        return f"{effect.what} was not measured"
    return (
        f"{effect.what}: the interval {effect.shown} reaches across the claimed range; {effect.seeds} seeds would have "
        f"told an effect of {effect.detectable:.2g} from none with probability 80 %"
    )
