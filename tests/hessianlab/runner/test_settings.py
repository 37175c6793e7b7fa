"""Settings from text: typed, applied where they belong, refused where they do not."""

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from hessianlab.experiments.experiment import Experiment
from hessianlab.experiments.registry import STUDIES
from hessianlab.results import Measurement
from hessianlab.runner import configure
from hessianlab.runner.settings import parse
from hessianlens.errors import InputError
from tests.hessianlab.runner.toys import SPECTRUM


@dataclass(frozen=True)
class Grid:
    low: float = 0.1
    points: int = 5


@dataclass(frozen=True)
class Typed:
    repeats: int = 1
    causal: bool = False
    norm: str | None = "post"
    limit: int | None = 3
    kind: Literal["a", "b"] = "a"
    layers: tuple[int, ...] = (1,)
    ends: tuple[float, float] = (0.0, 1.0)
    grid: Grid = field(default_factory=Grid)
    odd: dict[str, int] = field(default_factory=dict)


OTHER = Experiment("other", "", "", "", {"quick": Typed()}, lambda config: [], lambda parameters: Measurement())


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("repeats=7", "repeats", 7),
        ("causal=Yes", "causal", True),
        ("norm=pre", "norm", "pre"),
        ("norm=none", "norm", None),
        ("limit=none", "limit", None),
        ("limit=4", "limit", 4),
        ("kind=b", "kind", "b"),
        ("layers=2,3,4", "layers", (2, 3, 4)),
        ("layers=2", "layers", (2,)),
        ("ends=1e-2, 3", "ends", (0.01, 3.0)),
        ("grid.points=9", "grid", Grid(points=9)),
    ],
)
def test_values(setting: str, name: str, value: Any) -> None:
    (plan,) = configure([OTHER], "quick", [setting])
    got = getattr(plan.config, name)
    assert got == value and type(got) is type(value)
    assert plan.preset == "custom"


def test_a_setting_goes_to_every_experiment_that_has_it() -> None:
    toy, other = configure([SPECTRUM, OTHER], "quick", ["repeats=9", "sizes=5"])
    assert (toy.config.repeats, toy.config.sizes, other.config.repeats) == (9, (5,), 9)


@pytest.mark.parametrize("order", [("steps=4", "checkpoints=2"), ("checkpoints=2", "steps=4")])
def test_settings_that_are_valid_together_alone_come_in_any_order(order: tuple[str, str]) -> None:
    (plan,) = configure([STUDIES["study_query_key"]], "quick", order)
    assert (plan.config.steps, plan.config.checkpoints) == (4, 2)
    with pytest.raises(InputError, match="expected at most steps"):
        configure([STUDIES["study_query_key"]], "quick", ["steps=4"])


def test_a_preset_that_is_not_changed_keeps_its_name() -> None:
    assert [plan.preset for plan in configure([SPECTRUM, OTHER], "quick", ["causal=true"])] == ["quick", "custom"]
    assert configure([SPECTRUM], "paper")[0].preset == "paper"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("repeats", r"got 'repeats', expected name=value"),
        ("=3", r"got '=3', expected name=value"),
        ("width=3", r"got 'width', which no chosen experiment has, expected one of .*grid.low, grid.points"),
        ("repeats=many", r"repeats: got 'many', expected a whole number"),
        ("repeats=1.5", r"repeats: got '1.5', expected a whole number"),
        ("causal=perhaps", r"causal: got 'perhaps', expected true or false"),
        ("ends=1", r"ends: got '1', expected 2 values"),
        ("layers=1,x", r"layers: got 'x', expected a whole number"),
        ("kind=c", r"kind: got 'c', expected one of a, b"),
        ("limit=x", r"limit: got 'x', expected a whole number"),
        ("odd=3", r"cannot be set from text"),
    ],
)
def test_refusals(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        configure([OTHER], "quick", [setting])


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(InputError, match=r"preset: got 'huge', expected one of 'quick', 'paper'"):
        configure([SPECTRUM], "huge")


def test_a_number_in_a_float_field_is_a_float() -> None:
    assert repr(parse("sigma", "1", float)) == "1.0"
