"""A trial tunes, reports other seeds, and begins every arm where it should."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import hessianlens as hl
from hessianlab.studies.curvature import GROUPS, Watcher, attention_facts, candidates, group_index, group_of
from hessianlab.studies.ensemble import Ensemble
from hessianlab.studies.models import TaskData, WithGain, build
from hessianlab.studies.training_study import DOCUMENTATION, Arm, TrialConfig, minus, study, under
from hessianlens.attention import attention_entropy, first_moment, second_moment
from hessianlens.errors import InputError
from hessianlens.tasks import Characters
from tests.hessianlab.studies.tiny import TINY, cell


def test_rows_of_a_trial() -> None:
    asked = cell(Arm("a"), curvatures=2)
    found = study_of(Arm("a")).finish(asked).measurement.rows
    stages = {str(row["stage"]) for row in found}
    assert stages == {"tuning", "final", "curvature"}
    tuning = [row for row in found if row["stage"] == "tuning"]
    assert len(tuning) == TINY.rates * TINY.tuning_seeds
    means = {
        rate: np.mean([float(str(r["loss"])) for r in tuning if r["rate"] == rate])
        for rate in {r["rate"] for r in tuning}
    }
    final = [row for row in found if row["stage"] == "final"]
    assert {row["rate"] for row in final} == {min(means, key=means.__getitem__)}
    assert {row["step"] for row in final} == {0, 3, 6}
    assert {row["seed"] for row in final}.isdisjoint(row["seed"] for row in tuning)
    assert len({row["seed"] for row in final}) == TINY.seeds
    looked = [row for row in found if row["stage"] == "curvature"]
    assert {row["step"] for row in looked} == {0, 6} and all(float(str(row["rms"])) > 0 for row in looked)


def study_of(*arms: Arm) -> Any:
    return study("study_test", "t", "q?", "h", arms, [], TINY, TINY)


def test_a_trial_is_the_same_every_time_and_needs_no_global_generator() -> None:
    asked, own = cell(Arm("a", optimiser="sgd")), study_of(Arm("a"))
    before = torch.get_rng_state()
    one, two = own.finish(asked).measurement.rows, own.finish(asked).measurement.rows
    assert json.dumps(one) == json.dumps(two)
    assert torch.equal(torch.get_rng_state(), before)


def test_rates_that_diverge_are_not_chosen() -> None:
    asked = cell(Arm("a", optimiser="sgd"), sgd_low=-2.0, sgd_high=8.0)
    rows = study_of(Arm("a")).finish(asked).measurement.rows
    assert any(row["diverged"] for row in rows if row["stage"] == "tuning")
    (rate,) = {row["rate"] for row in rows if row["stage"] == "final"}
    assert rate == pytest.approx(0.01)


# --- arms ------------------------------------------------------------------------------------------------------------

SAME = [
    Arm("single", query_key="single"),
    Arm("temperature", redundant="temperature"),
    Arm("gain", redundant="value gain"),
    Arm("unscaled single", query_key="single", scaled=False),
]


@pytest.mark.parametrize("arm", SAME, ids=lambda arm: arm.name)
def test_arms_begin_as_the_same_function(arm: Arm) -> None:
    plain = cell(replace(arm, query_key="dual", redundant="none"), heads=2)
    other = cell(arm, heads=2)
    learned = TaskData(plain)
    logits = [build(asked, learned, 3)(learned.validation) for asked in (plain, other)]
    torch.testing.assert_close(*logits)


def test_a_learned_temperature_is_a_temperature() -> None:
    asked = cell(Arm("a", redundant="temperature"))
    learned = TaskData(asked)
    model = build(asked, learned, 0)
    assert isinstance(model, WithGain)
    with torch.no_grad():
        model.log_gain.fill_(np.log(2.0))
    warm = build(cell(Arm("b")), learned, 0)
    warm.blocks[0].attention.temperature = 2.0
    torch.testing.assert_close(model(learned.validation), warm(learned.validation))
    torch.testing.assert_close(attention_facts(model, learned.validation), attention_facts(warm, learned.validation))


def test_relu_over_the_length() -> None:
    learned = TaskData(cell(Arm("a")))
    X = torch.randn(1, 5, TINY.d_model, generator=torch.Generator().manual_seed(0))
    plain, divided = (
        build(cell(Arm("a", attention="relu", temperature=given)), learned, 0).blocks[0].attention.weights(X)
        for given in ("", "length")
    )
    torch.testing.assert_close(divided, plain / learned.task.context)


def test_initial_scales_change_the_draw_by_a_factor_alone() -> None:
    learned = TaskData(cell(Arm("a")))
    plain, larger = (
        dict(build(cell(Arm("a"), **changes), learned, 0).named_parameters())
        for changes in ({}, {"query_key_scale": 2.0, "embedding_scale": 0.1})
    )
    factors = {name: 2.0 if name.endswith(("W_Q", "W_K")) else 0.1 if "embedding" in name else 1.0 for name in plain}
    for name, factor in factors.items():
        torch.testing.assert_close(larger[name], factor * plain[name])
    assert set(factors.values()) == {2.0, 0.1, 1.0}


def test_rates_of_queries_and_keys_apart() -> None:
    tied, apart = (candidates(cell(Arm("a"), query_key_rates=count)) for count in (1, 3))
    assert len(apart) == 3 * len(tied)
    own = GROUPS.index("query and key")
    ratios = np.log10(apart[:, own] / apart[:, 0]).round(6)
    assert sorted(ratios[:3]) == [-1, 0, 1] and np.allclose(np.delete(apart[1], own), np.delete(tied[0], own))


def test_unscaled_scores_are_larger() -> None:
    learned = TaskData(cell(Arm("a")))
    X = torch.randn(1, 5, TINY.d_model, generator=torch.Generator().manual_seed(0))
    scaled, unscaled = (
        build(cell(Arm("a", scaled=s)), learned, 0).blocks[0].attention.scores(X) for s in (True, False)
    )
    torch.testing.assert_close(unscaled, TINY.d_model**0.5 * scaled)


def test_facts_of_attention_are_those_of_the_library() -> None:
    asked = cell(Arm("a"), layers=2)
    learned = TaskData(asked)
    model: Any = build(asked, learned, 1).double()
    tokens = learned.validation
    X = model.attention_input(tokens, 1)
    A = model.blocks[1].attention.weights(X)[:, 0]
    entropy = attention_entropy(A).mean() / torch.arange(1, A.shape[-1] + 1).double().log().mean()
    first = first_moment(A, X).norm(dim=-1).mean()
    second = second_moment(A, X).diagonal(dim1=-2, dim2=-1).sum(-1).mean()
    torch.testing.assert_close(attention_facts(model, tokens)[1], torch.stack([entropy, first, second]))


def test_entropies_along_training_are_those_of_the_monitor_for_users() -> None:
    asked = cell(Arm("a"), layers=2, heads=2)
    learned = TaskData(asked)
    model: Any = build(asked, learned, 1).double()
    known = hl.problem(model, {"tokens": learned.validation}, learned.task.cross_entropy)
    found = hl.Monitor(known, quantities=("entropy",), overhead=None).measure(0).numbers
    shares = [found[f"layer{layer}.attn"]["entropy_share"].value for layer in range(2)]
    torch.testing.assert_close(attention_facts(model, learned.validation)[:, 0], torch.tensor(shares).double())


def test_members_are_watched_together_and_a_lost_one_harms_none() -> None:
    asked = cell(Arm("a"))
    learned = TaskData(asked)
    ensemble = Ensemble([build(asked, learned, seed) for seed in range(3)])
    ensemble.weights[1] = torch.inf
    found = Watcher(learned).note(ensemble)["attention"]
    assert bool(found[1].isnan().all())
    for seed in (0, 2):
        torch.testing.assert_close(found[seed], attention_facts(build(asked, learned, seed), learned.validation))
    assert "attention" not in Watcher(learned, attention=False).note(ensemble)


# --- rates -----------------------------------------------------------------------------------------------------------


def test_every_weight_has_a_block() -> None:
    asked = cell(Arm("a"), layers=2)
    ensemble = Ensemble([build(asked, TaskData(asked), 0)])
    assert set(group_index(ensemble).tolist()) == set(range(len(GROUPS)))
    assert {GROUPS[group_of(f"blocks.0.attention.W_{n}")] for n in ("Q", "K", "QK")} == {"query and key"}
    assert GROUPS[group_of("W_U")] == "unembedding" and GROUPS[group_of("blocks.1.mlp.W_in")] == "mlp"


def test_a_search_has_the_budget_of_a_grid() -> None:
    grid, searched = (candidates(cell(Arm("a", block_rates=kind))) for kind in ("one", "searched"))
    assert grid.shape == searched.shape == (TINY.rates, len(GROUPS))
    assert (grid == grid[:, :1]).all()
    assert any(len(set(row)) > 1 for row in searched) and any(len(set(row)) == 1 for row in searched)


def test_measured_rates_differ_between_blocks_and_train() -> None:
    rows = study_of(Arm("a")).finish(cell(Arm("a", optimiser="sgd", block_rates="measured"))).measurement.rows
    assert any(row["stage"] == "final" and row.get("loss") for row in rows)


# --- configurations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 4}, "seeds: got 4, expected at least 5"),
        ({"tasks": ("chess",)}, "tasks: got 'chess'"),
        ({"adam_low": 1.0}, "adam_low, adam_high"),
        ({"heads": 3}, "heads: got 3"),
        ({"checkpoints": 99}, "checkpoints: got 99"),
        ({"text": "nosuch.txt"}, "text: cannot read"),
    ],
)
def test_what_cannot_be_measured_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(TINY, **changes)


def test_studies_know_their_arms() -> None:
    with pytest.raises(InputError, match="different names"):
        study_of(Arm("a"), Arm("a"))
    with pytest.raises(InputError, match="names an arm that is none"):
        study("study_test", "t", "q?", "h", [Arm("a")], [minus("a", "b")], TINY, TINY)
    with pytest.raises(InputError, match="attention: got 'hardmax'"):
        Arm("a", attention="hardmax")


def test_a_text_of_the_users_is_known_by_its_contents(tmp_path: Any) -> None:
    file = tmp_path / "text.txt"
    file.write_text("hello world. " * 50, encoding="utf-8")
    config = replace(TINY, tasks=("characters",), text=str(file))
    (asked,) = study_of(Arm("a")).cells(config)
    assert TaskData(asked).task.vocab == len(set("hello world. "))
    file.write_text("other words. " * 50, encoding="utf-8")
    with pytest.raises(InputError, match="changed since the run began"):
        TaskData(asked)
    assert replace(config).parameters()["text_digest"] != asked["text_digest"]


def test_a_condition_trains_some_of_the_arms_on_some_of_the_tasks() -> None:
    conditions = (under("few", ("recall",), ("a",), steps=3), under("all of them", steps=5))
    config = replace(TINY, tasks=("addition", "recall"), conditions=("all",))
    made = study("study_test", "t", "q?", "h", [Arm("a"), Arm("b")], [], TINY, config, conditions=conditions)
    tried = [(cell["condition"], cell["task"], cell["arm"], cell["steps"]) for cell in made.cells(config)]
    assert [cell for cell in tried if cell[0] == "few"] == [("few", "recall", "a", 3)]
    assert sum(cell[0] == "all of them" for cell in tried) == 4
    assert "few (on associative recall, 1 of the arms); all of them." in " ".join(made.statement(config))
    with pytest.raises(InputError, match="condition: few names"):
        study("study_test", "t", "q?", "h", [Arm("b")], [], TINY, config, conditions=conditions)


def test_the_statement_says_what_a_text_is() -> None:
    text = Characters.generated()
    config = TrialConfig(tasks=("characters",))
    both = study_of(Arm("a"), Arm("b", norm=None))
    assert 55 <= len(set(text.text.replace(".", "").split())) <= 61  # the last word may be cut
    assert f"60 made-up words and {text.vocab} different characters, windows of 16" in " ".join(both.statement(config))
    assert "this project's documentation" in " ".join(both.statement(replace(config, text=DOCUMENTATION)))
    assert "pre-norm and no norm as the arms say" in " ".join(both.statement(config))


def test_the_statement_says_everything_beforehand() -> None:
    config = TrialConfig(tasks=("addition", "recall"))
    said = " ".join(study_of(Arm("a"), Arm("b", optimiser="sgd")).statement(config))
    for part in (
        "Hypothesis: h",
        "Arms: a; b. Each on addition of two numbers and associative recall.",
        "1 head, pre-norm; 16 sequences",
        "addition of two numbers of 2 digits",
        "Stopping rule: 300 steps",
        "5 learning rates",
        "10^-3 to 10^-1",
        "SGD",
        "Power: 6 seeds tell a difference of 1.4 standard deviations",
    ):
        assert part in said
    assert f"{2 * 2 * config.trainings} together" in said
