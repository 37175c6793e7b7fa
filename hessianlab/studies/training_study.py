"""A training study: sizes and budget, arms, comparisons among them, and the statement that is made beforehand."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hessianlab.experiments.experiment import Experiment, check_config
from hessianlab.results import Measurement, Parameters, Scalar
from hessianlab.wording import several
from hessianlens.errors import InputError, check_choice, expect
from hessianlens.models.arguments import QUERY_KEY, check_norm, head_width
from hessianlens.notation import ACTIVATION_NAMES
from hessianlens.sizes import number_of

TASKS = {
    "addition": "addition of two numbers",
    "characters": "a character language model",
    "recall": "associative recall",
}
"""What can be learned, and its name for readers."""

LEAST_SEEDS = 5


@dataclass(frozen=True)
class TrialConfig:
    """Sizes, budget and tuning range; every arm of a study gets the same.

    Attributes:
        tasks: What is learned: "addition", "characters", "recall".
        steps: Steps of every training; there is no other stopping rule.
        batch: Sequences a step.
        rates: Learning rates tried for every arm, evenly spaced in the logarithm.
        adam_low: Smallest learning rate of Adam, as a power of ten.
        adam_high: Largest.
        sgd_low: Smallest learning rate of SGD, as a power of ten.
        sgd_high: Largest.
        tuning_seeds: Seeds that choose the rate, and are used for nothing else.
        seeds: Seeds that are trained at the chosen rate and reported.
        checkpoints: How often loss, accuracy and entropy are noted along a training.
        curvatures: How often the norms of the Hessian's blocks are, from the beginning to the end; 1: at the beginning.
        growth: Whether it is also measured how the blocks of attention grow with the embeddings, whenever norms are.
        validation: Sequences that losses and accuracies are measured on.
        digits: Of the numbers that are added.
        length: Characters of a window of text.
        text: A file to learn the characters of; "documentation" for the text that comes with the package, a generated
            text if empty.
        pairs: Pairs to recall from.
        warm_up: Share of the steps in which the learning rate rises from 0.
        decay: Whether it then falls to 0 along half a cosine; it stays if not.
        momentum: Of SGD.
        query_key_scale: Factor of the initial W_Q and W_K.
        embedding_scale: Factor of the initial embeddings.
        query_key_rates: Rates of W_Q and W_K that are tried beside every rate of the other weights, a factor of ten
            apart and around it; 1: the same rate.
        conditions: Which of the study's conditions are tried beside the settings above; "all", or their names.
        seed: The first seed.
    """

    tasks: tuple[str, ...] = ("addition",)
    layers: int = 1
    d_model: int = 16
    heads: int = 1
    steps: int = 300
    batch: int = 16
    rates: int = 5
    adam_low: float = -3.0
    adam_high: float = -1.0
    sgd_low: float = -2.0
    sgd_high: float = 0.5
    tuning_seeds: int = 2
    seeds: int = 6
    checkpoints: int = 10
    curvatures: int = 0
    growth: bool = False
    validation: int = 256
    digits: int = 2
    length: int = 16
    text: str = ""
    pairs: int = 4
    warm_up: float = 0.1
    decay: bool = True
    momentum: float = 0.9
    query_key_scale: float = 1.0
    embedding_scale: float = 1.0
    query_key_rates: int = 1
    conditions: tuple[str, ...] = ("none",)
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"curvatures": 0, "rates": 2, "steps": 2, "length": 2}, {"tasks": TASKS})
        for name, least in (("seeds", LEAST_SEEDS), ("tuning_seeds", 1)):
            expect(getattr(self, name) >= least, f"{name}: got {getattr(self, name)}, expected at least {least}.")
        for name in ("adam", "sgd"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            expect(low < high, f"{name}_low, {name}_high: got {low:g} and {high:g}, expected the lower one first.")
        expect(self.checkpoints <= self.steps, f"checkpoints: got {self.checkpoints}, expected at most steps.")
        for name in ("query_key_scale", "embedding_scale"):
            expect(getattr(self, name) > 0, f"{name}: got {getattr(self, name):g}, expected a positive number.")
        for name in ("warm_up", "momentum"):
            expect(0 <= getattr(self, name) < 1, f"{name}: got {getattr(self, name):g}, expected from 0 to below 1.")
        expect(self.query_key_rates % 2 == 1, f"query_key_rates: got {self.query_key_rates}, expected an odd number.")
        head_width(self.d_model, self.heads)
        text_digest(self.text)

    @property
    def trainings(self) -> int:
        """Trainings of every arm on every task."""
        return self.rates * self.tuning_seeds + self.seeds

    def parameters(self) -> dict[str, Scalar]:
        """As part of a cell's parameters; a text is known by its digest too."""
        left_out = ("tasks", "conditions")
        shared = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        return {**shared, "text_digest": text_digest(self.text)}


DOCUMENTATION = "documentation"
"""Name of the natural text that comes with the package: this project's documentation, in English."""


def text_digest(path: str) -> str:
    """Of a user's text; empty where there is none."""
    if path in ("", DOCUMENTATION):
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"text: cannot read {path!r} ({error.strerror}); expected a text file in UTF-8.") from error


FULL = TrialConfig(d_model=32, heads=4, steps=1000, seeds=10, checkpoints=20)
"""What presets called "full" begin with: large enough that two numbers of two digits are added, in some more steps."""


OPTIMISER_FAMILY = {"sgd": "sgd", "adam": "adam", "adam_blocks": "adam"}
"""Those that `make_optimiser` of `studies.ensemble` makes, and in whose range of learning rates they are tuned."""

REDUNDANT = ("none", "temperature", "value gain")
"""A parameter more a head that adds no function: a temperature of the scores, or a factor of the values."""

BLOCK_RATES = ("one", "measured", "searched")
"""One learning rate for all blocks, one a block from measured curvature, or one a block found by search."""


@dataclass(frozen=True)
class Arm:
    """One way to build and train.

    Attributes:
        name: For readers, unique within a study.
        attention: Attention activation.
        norm: None, "pre" or "post".
        optimiser: "sgd", "adam", or "adam_blocks": Adam with one second moment per matrix, bias or gain.
        query_key: "dual", or "single" for one matrix that begins as the product of the two.
        scaled: Whether scores are divided by the square root of the head's width.
        temperature: Divides the scores; "length" stands for the number of tokens of a sequence.
        redundant: A parameter more a head, see `REDUNDANT`.
        block_rates: See `BLOCK_RATES`.
    """

    name: str
    attention: str = "softmax"
    norm: str | None = "pre"
    optimiser: str = "adam"
    query_key: str = "dual"
    scaled: bool = True
    temperature: str = ""
    redundant: str = "none"
    block_rates: str = "one"

    def __post_init__(self) -> None:
        """Names that are known."""
        check_choice("attention", self.attention, ACTIVATION_NAMES)
        check_norm(self.norm)
        check_choice("optimiser", self.optimiser, tuple(OPTIMISER_FAMILY))
        check_choice("query_key", self.query_key, QUERY_KEY)
        check_choice("temperature", self.temperature, ("", "length"))
        check_choice("redundant", self.redundant, REDUNDANT)
        check_choice("block_rates", self.block_rates, BLOCK_RATES)

    def parameters(self) -> dict[str, Scalar]:
        """As part of a cell's parameters; the name is "arm" there."""
        fields = asdict(self)
        return {"arm": fields.pop("name"), **fields}


@dataclass(frozen=True)
class Contrast:
    """Arms that are compared, seed by seed: ``sum_arm w_arm x_arm``.

    Attributes:
        name: For readers.
        weights: Arm and weight: 1 and -1 for a difference, four of them for a difference of differences.
    """

    name: str
    weights: tuple[tuple[str, float], ...]

    @property
    def arms(self) -> tuple[str, ...]:
        """What is compared."""
        return tuple(arm for arm, _ in self.weights)


def minus(arm: str, against: str) -> Contrast:
    """``arm - against``."""
    return Contrast(f"{arm} minus {against}", ((arm, 1.0), (against, -1.0)))


@dataclass(frozen=True)
class Condition:
    """Settings that all arms share and on which the answer may depend; everything is tuned and trained anew.

    Attributes:
        name: For readers, behind "with" or "on": "300 steps"; empty for the study's own settings.
        changes: Parameters of its cells that differ from the study's own.
        tasks: On which of the study's tasks it is tried; on all if empty.
        arms: Which of the study's arms are trained; all if empty.

    >>> under("300 steps", steps=300).changes
    (('steps', 300),)
    """

    name: str = ""
    changes: tuple[tuple[str, Scalar], ...] = ()
    tasks: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()

    def on(self, task: str) -> bool:
        """Whether it is tried on a task."""
        return not self.tasks or task in self.tasks

    def of(self, arm: str) -> bool:
        """Whether an arm is trained under it."""
        return not self.arms or arm in self.arms

    def __str__(self) -> str:
        """Its name, with the tasks and the number of arms where those are not all."""
        limits = [f"on {several([TASKS[task] for task in self.tasks])}"] if self.tasks else []
        limits += [f"{len(self.arms)} of the arms"] if self.arms else []
        return f"{self.name} ({', '.join(limits)})" if limits else self.name


def under(name: str, tasks: tuple[str, ...] = (), arms: tuple[str, ...] = (), **changes: Scalar) -> Condition:
    """A condition by its changes."""
    return Condition(name, tuple(changes.items()), tasks, arms)


@dataclass(frozen=True)
class Study(Experiment[TrialConfig]):
    """An experiment that trains.

    Attributes:
        hypothesis: What is expected, before it is measured.
        arms: What is compared.
        comparisons: Which of them with which; decided before the first run, too.
        conditions: Other settings under which everything is compared again.
    """

    hypothesis: str = ""
    arms: tuple[Arm, ...] = ()
    comparisons: tuple[Contrast, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __post_init__(self) -> None:
        """Arms have different names, and comparisons know them."""
        names = [arm.name for arm in self.arms]
        expect(len(set(names)) == len(names), f"arms: got {names}, expected different names.")
        for comparison in self.comparisons:
            expect(set(comparison.arms) <= set(names), f"comparison: {comparison.name} names an arm that is none.")
        for preset in self.presets.values():
            chosen_conditions(preset, self.conditions)
        for condition in self.conditions:
            unknown = set(condition.arms) - set(names)
            expect("," not in condition.name, f"condition: got {condition.name!r}, expected a name without a comma.")
            expect(not unknown, f"condition: {condition.name} names {sorted(unknown)}, expected arms of the study.")

    def statement(self, config: TrialConfig) -> list[str]:
        """What is said before the first run: hypothesis, arms, budget, tuning range and stopping rule."""
        from hessianlab.experiments.statistics import detectable  # Student's law: scipy

        tasks = several([TASKS[task] for task in config.tasks])
        ranges = {"adam": (config.adam_low, config.adam_high), "sgd": (config.sgd_low, config.sgd_high)}
        reach = detectable(config.seeds)
        used = [name for name in ranges if any(OPTIMISER_FAMILY[arm.optimiser] == name for arm in self.arms)]
        others = chosen_conditions(config, self.conditions)[1:]
        tuned = several([f"{_OPTIMISERS[n]} 10^{ranges[n][0]:g} to 10^{ranges[n][1]:g}" for n in used])
        return [
            f"Hypothesis: {self.hypothesis}",
            f"Arms: {'; '.join(arm.name for arm in self.arms)}. Each on {tasks}.",
            f"Model: {number_of(config.layers, 'block')}, width {config.d_model}, {number_of(config.heads, 'head')}, "
            f"{_norms(self.arms, config)}; {config.batch} sequences per step.",
            *(f"Data: {_described(task, config)}." for task in config.tasks),
            f"Tuning, the same for every arm: {config.rates} learning rates ({tuned}), each with "
            f"{number_of(config.tuning_seeds, 'seed')}; the rate with the smallest mean loss on validation data is "
            "taken.",
            f"Reported: {config.seeds} other seeds at that rate, paired between arms: one seed is one draw of the "
            "weights and one stream of data in all of them.",
            f"Schedule: {_schedule(config)}. SGD has momentum {config.momentum:g}, Adam betas 0.9 and 0.999; no "
            "weight decay, no dropout.",
            f"Stopping rule: {config.steps} steps, always; a training diverges if its loss is not finite or exceeds "
            "three times its first.",
            f"Power: {config.seeds} seeds tell a difference of {reach:.2g} standard deviations (of the paired "
            "differences) from none with probability 80 %, by a two-sided test at 5 %.",
            *([f"Conditions tried beside these: {'; '.join(map(str, others))}."] if others else []),
            f"Budget: {config.trainings} trainings per arm, task and condition, "
            f"{config.trainings * len(self.cells(config))} together.",
        ]


_OPTIMISERS = {"adam": "Adam", "sgd": "SGD"}
_NORMS = {None: "no norm", "pre": "pre-norm", "post": "post-norm"}


def _norms(arms: Sequence[Arm], config: TrialConfig) -> str:
    """The norm of all arms, or that it is a part of what is compared."""
    norms = list(dict.fromkeys(arm.norm for arm in arms))
    if len(norms) == 1:
        return _NORMS[norms[0]]
    return f"{several([_NORMS[norm] for norm in norms])} as the arms say"


def _described(task: str, config: TrialConfig) -> str:
    """Of what a task consists: sizes, and for a text what it is."""
    if task == "addition":
        return f"addition of two numbers of {config.digits} digits, digit by digit"
    if task == "recall":
        return f"associative recall of values that came with {config.pairs} keys"
    window = f"windows of {config.length} characters"
    if not config.text:
        return f"a generated text of 60 made-up words and 20 different characters, {window}"
    if config.text == DOCUMENTATION:
        return f"a natural text in English, this project's documentation, {window}"
    return f"the text of {config.text}, {window}"


def _schedule(config: TrialConfig) -> str:
    rise = f"the rate rises linearly over the first {config.warm_up:.0%} of the steps" if config.warm_up else ""
    fall = "falls to 0 along half a cosine" if config.decay else "stays"
    return f"{rise}, then {fall}" if rise else f"no warm-up; the rate {fall}"


def chosen_conditions(config: TrialConfig, known: Sequence[Condition]) -> list[Condition]:
    """The study's own settings, and those of its conditions that a configuration asks for."""
    names = {condition.name: condition for condition in known}
    if config.conditions == ("none",):
        return [Condition()]
    wanted = tuple(names) if config.conditions == ("all",) else config.conditions
    for name in wanted:
        check_choice("conditions", name, ("none", "all", *names))
    return [Condition(), *(names[name] for name in wanted)]


def study(
    name: str,
    title: str,
    question: str,
    hypothesis: str,
    arms: Sequence[Arm],
    comparisons: Sequence[Contrast],
    quick: TrialConfig,
    full: TrialConfig,
    source: str = "Suggested by the documents; measured here",
    conditions: Sequence[Condition] = (),
) -> Study:
    """A study whose cells are trials: one per task, condition and arm, all rates and seeds of it at once."""
    chosen = tuple(arms)

    def cells(config: TrialConfig) -> list[dict[str, Any]]:
        shared = config.parameters()
        return [
            {"task": task, "condition": condition.name, **arm.parameters(), **shared, **dict(condition.changes)}
            for condition in chosen_conditions(config, conditions)
            for task in config.tasks
            if condition.on(task)
            for arm in chosen
            if condition.of(arm.name)
        ]

    return Study(
        name=name,
        title=title,
        source=source,
        question=question,
        presets={"quick": quick, "full": full},
        cells=cells,
        measure=measure_study_cell,
        hypothesis=hypothesis,
        arms=chosen,
        comparisons=tuple(comparisons),
        conditions=tuple(conditions),
    )


def measure_study_cell(parameters: Parameters) -> Measurement:
    """The trial of one cell."""
    from hessianlab.studies.trial import measure_trial

    return measure_trial(parameters)
