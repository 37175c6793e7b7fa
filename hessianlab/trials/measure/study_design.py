"""A training study: an experiment with arms, comparisons among them, and a statement that is made beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters
from hessianlab.trials.measure.arms import Arm
from hessianlab.trials.measure.config import TASKS, TrialConfig
from hessianlab.wording import count, several
from hessianlens.errors import expect


@dataclass(frozen=True)
class Comparison:
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


def minus(arm: str, against: str) -> Comparison:
    """``arm - against``."""
    return Comparison(f"{arm} minus {against}", ((arm, 1.0), (against, -1.0)))


@dataclass(frozen=True)
class Study(Experiment[TrialConfig]):
    """An experiment that trains.

    Attributes:
        hypothesis: What is expected, before it is measured.
        arms: What is compared.
        comparisons: Which of them with which; decided before the first run, too.
    """

    hypothesis: str = ""
    arms: tuple[Arm, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        """Arms have different names, and comparisons know them."""
        names = [arm.name for arm in self.arms]
        expect(len(set(names)) == len(names), f"arms: got {names}, expected different names.")
        for comparison in self.comparisons:
            expect(set(comparison.arms) <= set(names), f"comparison: {comparison.name} names an arm that is none.")

    def statement(self, config: TrialConfig) -> list[str]:
        """What is said before the first run: hypothesis, arms, budget, tuning range and stopping rule."""
        from hessianlab.experiments.common.means import detectable  # Student's law: scipy

        tasks = several([TASKS[task] for task in config.tasks])
        ranges = {"adam": (config.adam_low, config.adam_high), "sgd": (config.sgd_low, config.sgd_high)}
        reach = detectable(config.seeds)
        used = [name for name in ranges if any(arm.optimiser == name for arm in self.arms)]
        tuned = several([f"{_OPTIMISERS[n]} 10^{ranges[n][0]:g} to 10^{ranges[n][1]:g}" for n in used])
        return [
            f"Hypothesis: {self.hypothesis}",
            f"Arms: {', '.join(arm.name for arm in self.arms)}; on {tasks}.",
            f"Model: {count(config.layers, 'block')}, width {config.d_model}, {count(config.heads, 'head')}; "
            f"{config.batch} sequences a step.",
            f"Tuning, the same for every arm: {config.rates} learning rates ({tuned}), each with "
            f"{count(config.tuning_seeds, 'seed')}; the rate with the smallest mean loss on validation data is taken.",
            f"Reported: {config.seeds} other seeds at that rate, paired between arms: one seed is one draw of the "
            "weights and one stream of data in all of them.",
            f"Stopping rule: {config.steps} steps, always; a training diverges if its loss is not finite or exceeds "
            "three times its first.",
            f"Power: {config.seeds} seeds tell a difference of {reach:.2g} standard deviations (of the paired "
            "differences) from none with probability 80 %, by a two-sided test at 5 %.",
            f"Budget: {config.trainings} trainings an arm and task, "
            f"{config.trainings * len(self.arms) * len(config.tasks)} together.",
        ]


_OPTIMISERS = {"adam": "Adam", "sgd": "SGD"}


def study(
    name: str,
    title: str,
    question: str,
    hypothesis: str,
    arms: Sequence[Arm],
    comparisons: Sequence[Comparison],
    quick: TrialConfig,
    full: TrialConfig,
    source: str = "Suggested by the documents; measured here",
) -> Study:
    """A study whose cells are trials: one a task and arm, all rates and seeds of it at once."""
    chosen = tuple(arms)

    def cells(config: TrialConfig) -> list[dict[str, Any]]:
        shared = config.parameters()
        return [{"task": task, **arm.parameters(), **shared} for task in config.tasks for arm in chosen]

    return Study(
        name=name,
        title=title,
        source=source,
        question=question,
        presets={"quick": quick, "full": full},
        cells=cells,
        measure=measure,
        hypothesis=hypothesis,
        arms=chosen,
        comparisons=tuple(comparisons),
    )


def measure(parameters: Parameters) -> Measurement:
    """The trial of one cell."""
    from hessianlab.trials.measure.trial import measure_trial

    return measure_trial(parameters)
