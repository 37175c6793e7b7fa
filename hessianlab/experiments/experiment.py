"""What an experiment is: named configurations, the cells of a configuration, and the measurement of one cell.

An experiment measures and never draws; it knows nothing of stores, processes or pages. What a measurement needs is
imported when it begins: to list experiments and to refuse a setting takes no torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from hessianlab.results import FinishedCell, Measurement, Parameters, Result, collect
from hessianlens.errors import InputError, check_choice, expect, needs_extra


def check_config(
    config: Any, least: Mapping[str, int] | None = None, choices: Mapping[str, Iterable[str]] | None = None
) -> None:
    """Every list holds something, every whole number but a seed is large enough, every name is known.

    A configuration with fields `low` and `high` must have them in this order.

    Args:
        config: A dataclass.
        least: The smallest values of fields; 1 if not given.
        choices: The names that fields may hold.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     repeats: int = 0
    >>> check_config(Config())
    Traceback (most recent call last):
    ...
    hessianlens.errors.InputError: repeats: got 0, expected at least 1.
    """
    for field in dataclasses.fields(config):
        given = getattr(config, field.name)
        values = given if isinstance(given, tuple) else (given,)
        expect(len(values) > 0, f"{field.name}: got no value, expected one or more.")
        for value in values:
            if "int" in str(field.type) and "seed" not in field.name:
                smallest = (least or {}).get(field.name, 1)
                expect(value >= smallest, f"{field.name}: got {value}, expected at least {smallest}.")
            if field.name in (choices or {}):
                check_choice(field.name, value, (choices or {})[field.name])
    if hasattr(config, "low") and hasattr(config, "high"):
        ends = f"{config.low:g} and {config.high:g}"
        expect(config.low < config.high, f"low, high: got {ends}, expected the lower end first.")


class CheckedConfig:
    """A configuration that is refused when it is made, before the first cell, if `check_config` finds fault with it.

    A subclass gives `least` and `choices` of `check_config` as keywords of its definition.
    """

    _limits: ClassVar[tuple[Mapping[str, int], Mapping[str, Iterable[str]]]]

    def __init_subclass__(
        cls, least: Mapping[str, int] | None = None, choices: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        cls._limits = least or {}, choices or {}

    def __post_init__(self) -> None:
        check_config(self, *self._limits)


def grid_cells(keys: Sequence[str], axes: Mapping[str, str] | None = None) -> Callable[[Any], list[dict[str, Any]]]:
    """Cells of a configuration: every combination of some fields' values, each with ``repeats`` seeds from ``seed`` on.

    Args:
        keys: Parameters of a cell, in this order: "seed", those in `axes`, and fields of the configuration.
        axes: Parameters that run over the values of a field, the outermost first, and the names of these fields.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     widths: tuple[int, ...] = (3, 5)
    ...     repeats: int = 1
    ...     seed: int = 7
    >>> grid_cells(("seed", "width", "repeats"), {"width": "widths"})(Config())
    [{'seed': 7, 'width': 3, 'repeats': 1}, {'seed': 7, 'width': 5, 'repeats': 1}]
    """

    def cells(config: Any) -> list[dict[str, Any]]:
        ranges: dict[str, Iterable[Any]] = {key: getattr(config, field) for key, field in (axes or {}).items()}
        ranges["seed"] = range(config.seed, config.seed + config.repeats)
        shared = {key: getattr(config, key) for key in keys if key not in ranges}
        points = (dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values()))
        return [{key: shared[key] if key in shared else point[key] for key in keys} for point in points]

    return cells


Config = TypeVar("Config")


@dataclass(frozen=True)
class Experiment(Generic[Config]):
    """One figure or table.

    Attributes:
        name: Short name, e.g. "fig3a".
        title: Name for readers.
        source: Where it is in the literature.
        question: What it asks, in one sentence.
        presets: "quick" and "paper": frozen dataclasses of one type.
        cells: The units of work of a configuration. Each holds everything that decides its numbers.
        measure: The numbers of one cell; runs on one thread and draws only from seeds among its parameters.
    """

    name: str
    title: str
    source: str
    question: str
    presets: Mapping[str, Config]
    cells: Callable[[Config], Sequence[Parameters]]
    measure: Callable[[Parameters], Measurement]

    def preset(self, name: str, overrides: Mapping[str, Any] | None = None) -> Config:
        """A named configuration, with some fields replaced."""
        check_choice("preset", name, self.presets)
        config: Any = self.presets[name]
        known = [field.name for field in dataclasses.fields(config)]
        for key in overrides or {}:
            if key not in known:
                raise InputError(f"{self.name}: got the unknown setting {key!r}, expected one of {', '.join(known)}.")
        replaced: Config = dataclasses.replace(config, **(overrides or {}))
        return replaced

    def statement(self, config: Config) -> list[str]:
        """What is said before the first run; nothing of an experiment that reproduces one."""
        return []

    def finish(self, parameters: Parameters) -> FinishedCell:
        """Measure one cell on one thread, whatever the surrounding process uses."""
        from hessianlens.state_guard import ThreadCount, restores_state

        with needs_extra("", "an experiment"):
            from threadpoolctl import threadpool_limits

        @restores_state
        def on_one_thread() -> Measurement:
            # Torch's own setting leaves NumPy's and SciPy's linear algebra alone, whose sums depend on it, too.
            with ThreadCount(1), threadpool_limits(limits=1):
                return self.measure(parameters)

        start = time.process_time()
        measurement = on_one_thread()
        return FinishedCell(dict(parameters), measurement, time.process_time() - start)

    def result(self, config: Config, cells: Sequence[FinishedCell], preset: str = "custom") -> Result:
        """Finished cells as the result of this experiment."""
        settings: Any = config
        return Result(self.name, preset, dataclasses.asdict(settings), tuple(cells), collect())

    def run(self, config: Config) -> Result:
        """Measure every cell here and now; `hessianlab.runner` does it in parallel and durably."""
        return self.result(config, [self.finish(parameters) for parameters in self.cells(config)])
