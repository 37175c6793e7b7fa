"""Names that are known without torch are those of the things they stand for."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

import hessianlens as hl
from hessianlens.inspect.toy import ToyOptions, check_toy
from hessianlens.lab.claims.index import claim_topics
from hessianlens.lab.claims.registry import all_claims
from hessianlens.lab.experiments.registry import EXPERIMENTS
from hessianlens.models.arguments import MLP_ACTIVATION_NAMES
from hessianlens.models.mlp import MLP_ACTIVATIONS
from hessianlens.notation import ACTIVATION_NAMES


def test_activations() -> None:
    assert tuple(hl.activations.ACTIVATIONS) == ACTIVATION_NAMES
    assert tuple(MLP_ACTIVATIONS) == MLP_ACTIVATION_NAMES


def test_claims() -> None:
    assert list(claim_topics().items()) == [(claim.id, claim.topic) for claim in all_claims()]


def test_presets_are_the_same_of_every_experiment() -> None:
    assert {tuple(experiment.presets) for experiment in EXPERIMENTS.values()} == {("quick", "paper")}


def test_a_toy_has_the_options_of_the_model() -> None:
    model = {name: found.default for name, found in inspect.signature(hl.models.Transformer).parameters.items()}
    toy = {field.name: field.default for field in fields(ToyOptions)}
    assert toy.keys() - model.keys() == {"digits"} and model.keys() - toy.keys() == {"dtype"}
    assert {name for name in toy.keys() & model.keys() if toy[name] != model[name]} == {"vocab", "context"}
    assert toy["vocab"] is toy["context"] is None and toy["digits"] == hl.tasks.Addition().digits


BAD: list[dict[str, Any]] = [
    *({name: 0} for name in ("layers", "d_model", "heads", "d_mlp", "vocab", "context", "d_head", "temperature")),
    *({name: 1.5} for name in ("layers", "d_model", "heads", "d_mlp", "vocab", "context", "d_head", "seed")),
    *({name: -1} for name in ("seed", "init_scale", "embedding_std")),
    *({name: "x"} for name in ("residual_scale", "temperature", "attention", "norm", "query_key", "mlp_activation")),
    {"d_model": 8, "heads": 3},
    {"heads": 3},
    {"layers": True},
    {"temperature": float("inf")},
]

GOOD: list[dict[str, Any]] = [
    {},
    {"d_model": 8, "heads": 3, "d_head": 2},
    {"norm": "post", "query_key": "single", "attention": "row_sum", "mlp_activation": "silu"},
    {"embedding_std": 0, "init_scale": 0.0, "residual_scale": -1.0, "mlp": False, "causal": False},
    {"vocab": 12, "context": 18, "seed": 2**63 - 1, "d_mlp": 1},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_a_toy_is_refused_where_the_model_is(options: dict[str, Any]) -> None:
    with pytest.raises(hl.InputError) as of_the_model:
        hl.models.Transformer(**options)
    with pytest.raises(hl.InputError) as of_the_toy:
        check_toy(options)
    given = str(of_the_model.value).split(", expected")[0]
    assert str(of_the_toy.value).split(", expected")[0].endswith(given.removeprefix("activation: "))


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_a_toy_is_taken_where_the_model_is(options: dict[str, Any]) -> None:
    check_toy(options)
    hl.models.Transformer(**options)


@pytest.mark.parametrize("name", ["causal", "mlp", "attention_bias"])
def test_a_toys_flags_are_true_or_false(name: str) -> None:
    with pytest.raises(hl.InputError, match=f"{name}: got 'no', expected true or false"):
        check_toy({name: "no"})
