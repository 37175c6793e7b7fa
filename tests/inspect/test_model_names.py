"""Names of models: what they mean, and what is said about those that mean nothing."""

from __future__ import annotations

import pytest

from hessianlens.errors import InputError
from hessianlens.inspect.model_names import Specification, check_options, parse_specification

MEANING = {
    "toy": Specification("toy", ""),
    "toy:": Specification("toy", ""),
    "toy:layers=2,norm=pre,temperature=0.5,mlp=false,embedding_std=none": Specification(
        "toy", "", {"layers": 2, "norm": "pre", "temperature": 0.5, "mlp": False, "embedding_std": None}
    ),
    "config:gpt2": Specification("config", "gpt2"),
    "config:gpt2?n_layer=2&layer_norm_epsilon=1e-3": Specification(
        "config", "gpt2", {"n_layer": 2, "layer_norm_epsilon": 1e-3}
    ),
    "config:a/config.json?n_layer=1": Specification("config", "a/config.json", {"n_layer": 1}),
    "a/config.json": Specification("config", "a/config.json"),
    "owner/name": Specification("saved", "owner/name"),
    "./folder": Specification("saved", "./folder"),
}


@pytest.mark.parametrize("text", MEANING)
def test_what_a_name_means(text: str) -> None:
    assert parse_specification(text) == MEANING[text]


def test_numbers_keep_their_kind() -> None:
    options = parse_specification("toy:a=2,b=2.0,c=True").options
    assert [type(value) for value in options.values()] == [int, float, bool]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (" ", "model: got an empty name"),
        ("config:", "expected a type or file behind 'config:'"),
        ("toy:layers", "model: got the option 'layers', expected name=value"),
        ("toy:=2", "model: got the option '=2'"),
    ],
)
def test_names_that_mean_nothing(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_specification(text)


def test_an_option_that_is_close_is_suggested() -> None:
    with pytest.raises(InputError, match="toy has no option 'layer'; did you mean layers"):
        check_options("toy", ["layers", "layer"], ["layers", "heads"])
    with pytest.raises(InputError, match="toy has no option 'xyz'; expected one of heads, layers"):
        check_options("toy", ["xyz"], ["layers", "heads"])
