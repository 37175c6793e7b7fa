"""Many trainings at once are the trainings one by one; what one member does is nothing to the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hessianlab.studies.ensemble import Adam, Ensemble, Schedule, TrainingData, make_optimiser, train
from hessianlens.errors import InputError
from hessianlens.models import Transformer
from hessianlens.tasks import Addition, AssociativeRecall, Characters

TASK = Addition(digits=1)
STEPS = 6
TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr),
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
}


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    return TASK.cross_entropy(model(tokens), tokens)


def draw(size: int, seed: int) -> Tensor:
    return TASK.batch(size, seed)["tokens"]


def model(seed: int, **changes: Any) -> Transformer:
    sizes = {"vocab": TASK.vocab, "context": TASK.context, "attention_bias": False, "dtype": torch.float64}
    return Transformer(1, 4, d_mlp=8, seed=seed, **{**sizes, **changes})


def flat(of: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in of.parameters()])


def by_hand(seed: int, rate: float, optimiser: str, **changes: Any) -> Tensor:
    own, data = model(seed, **changes), TrainingData(draw, [seed], 3)
    moving = TORCH[optimiser](own.parameters(), rate)
    for step in range(STEPS):
        moving.param_groups[0]["lr"] = rate * Schedule(STEPS).factor(step)
        moving.zero_grad()
        loss(own, data.at(step)[0]).backward()
        moving.step()
    return flat(own)


@pytest.mark.parametrize("optimiser", TORCH)
@pytest.mark.parametrize("changes", [{}, {"attention": "sigmoid", "norm": "pre"}, {"query_key": "single", "heads": 2}])
def test_at_once_and_one_by_one_are_the_same(optimiser: str, changes: dict[str, Any]) -> None:
    seeds, rates = [0, 1, 0], [0.01, 0.02, 0.05]
    ensemble = Ensemble([model(seed, **changes) for seed in seeds])
    before = ensemble.weights.clone()
    train(
        ensemble,
        TrainingData(draw, seeds, 3),
        loss,
        make_optimiser(optimiser, ensemble.columns()),
        torch.tensor(rates, dtype=torch.float64)[:, None],
        Schedule(STEPS),
    )
    wanted = torch.stack([by_hand(s, r, optimiser, **changes) for s, r in zip(seeds, rates, strict=True)])
    torch.testing.assert_close(ensemble.weights, wanted, rtol=1e-8, atol=1e-9)
    assert float((ensemble.weights - before).abs().max()) > 1e-3
    assert not torch.allclose(ensemble.weights[0], ensemble.weights[2])


def test_a_member_that_diverges_stops_and_leaves_the_others_alone() -> None:
    calm = Ensemble([model(0)])
    train(
        calm,
        TrainingData(draw, [0], 3),
        loss,
        make_optimiser("sgd", calm.columns()),
        torch.full((1, 1), 0.01, dtype=torch.float64),
        Schedule(STEPS),
    )
    both = Ensemble([model(0), model(1)])
    rates = torch.tensor([[0.01], [1e4]], dtype=torch.float64)
    course = train(
        both, TrainingData(draw, [0, 1], 3), loss, make_optimiser("sgd", both.columns()), rates, Schedule(STEPS)
    )
    assert course.diverged[0] == -1 and 0 < int(course.diverged[1]) < STEPS
    torch.testing.assert_close(both.weights[0], calm.weights[0], rtol=1e-9, atol=1e-11)


def test_one_second_moment_per_matrix() -> None:
    ensemble, own, data = Ensemble([model(0), model(1)]), model(1), TrainingData(draw, [0, 1], 3)
    rate = torch.full((2, 1), 0.01, dtype=torch.float64)
    chosen = make_optimiser("adam_blocks", ensemble.columns())
    train(ensemble, data, loss, chosen, rate, Schedule(STEPS))
    first = {name: torch.zeros_like(p) for name, p in own.named_parameters()}
    second = dict.fromkeys(first, torch.zeros((), dtype=torch.float64))
    for step in range(STEPS):
        own.zero_grad()
        loss(own, data.at(step)[1]).backward()
        for name, parameter in own.named_parameters():
            gradient = parameter.grad
            assert gradient is not None
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient.square().mean()
            size = (second[name] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
            with torch.no_grad():
                parameter.sub_(0.01 * Schedule(STEPS).factor(step) * first[name] / (1 - 0.9 ** (step + 1)) / size)
    torch.testing.assert_close(ensemble.weights[1], flat(own), rtol=1e-8, atol=1e-9)


def test_rates_of_single_weights() -> None:
    ensemble = Ensemble([model(0)])
    before = ensemble.weights.clone()
    rates = torch.zeros_like(before)
    columns = ensemble.columns()["blocks.0.attention.W_V"]
    rates[:, columns] = 0.1
    train(ensemble, TrainingData(draw, [0], 3), loss, Adam(), rates, Schedule(2))
    moved = (ensemble.weights != before)[0]
    assert bool(moved[columns].all()) and int(moved.sum()) == columns.stop - columns.start


def test_watching_sees_the_beginning_and_the_end() -> None:
    ensemble, seen = Ensemble([model(0)]), {}
    train(
        ensemble,
        TrainingData(draw, [0], 3),
        loss,
        Adam(),
        torch.full((1, 1), 0.01, dtype=torch.float64),
        Schedule(STEPS),
        lambda step: seen.update({step: ensemble.weights.clone()}),
        (0, 3, STEPS),
    )
    assert list(seen) == [0, 3, STEPS]
    assert torch.equal(seen[0][0], flat(model(0))) and torch.equal(seen[STEPS], ensemble.weights)


def test_loading_a_member_gives_its_function() -> None:
    ensemble, tokens = Ensemble([model(0), model(1)]), draw(2, 5)
    assert torch.equal(ensemble.load(1, model(7))(tokens), model(1)(tokens))


def test_models_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="models: got different parameters"):
        Ensemble([model(0), model(0, heads=2, d_head=4)])


def test_data_is_the_same_whoever_else_learns() -> None:
    alone, among = TrainingData(draw, [3], 2), TrainingData(draw, [1, 3], 2)
    for step in (0, 1, 51):
        assert torch.equal(alone.at(step)[0], among.at(step)[1])
    assert not torch.equal(alone.at(0), alone.at(51))


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_recall_is_answered_by_the_pair_of_the_key() -> None:
    for joined in (True, False):
        task = AssociativeRecall(pairs=4, queries=2, keys=6, values=5, joined=joined)
        tokens = task.batch(64, seed=0)["tokens"]
        assert tokens.shape == (64, task.context) and int(tokens.max()) < task.vocab
        words = [" ".join(map(task._symbol, row)).replace("v", " v").split() for row in tokens.tolist()]
        for row in words:
            told = dict(zip(row[0:8:2], row[1:8:2], strict=True))
            assert len(told) == 4
            assert all(told[key] == value for key, value in zip(row[8::2], row[9::2], strict=True))


def test_a_perfect_and_a_guessing_model_of_recall() -> None:
    task = AssociativeRecall(pairs=3, queries=2, keys=4, values=4)
    tokens = task.batch(16, seed=1)["tokens"]
    perfect = torch.nn.functional.one_hot(tokens.roll(-1, -1), task.vocab).double() * 50
    assert task.accuracy(perfect, tokens) == 1 and float(task.cross_entropy(perfect, tokens)) < 1e-9
    assert task.accuracy(perfect.roll(1, -1), tokens) == 0
    with pytest.raises(InputError, match="pairs: got 5"):
        AssociativeRecall(pairs=5, keys=4)


def test_validation_is_kept_apart_from_training(tmp_path: Any) -> None:
    file = tmp_path / "text.txt"
    file.write_text("ab" * 450 + "XY" * 50, encoding="utf-8")
    task = Characters.from_file(file, length=10)
    assert task.symbols == ("X", "Y", "a", "b")
    assert not any("X" in text for text in task.decode(task.batch(200, 0)))
    assert all(set(text) == {"X", "Y"} for text in task.decode(task.batch(200, 0, "validation")))
    with pytest.raises(InputError, match="text: got 3 characters"):
        Characters("abc", 2)
    with pytest.raises(InputError, match="text: cannot read"):
        Characters.from_file(tmp_path / "nosuch.txt")


def test_a_generated_text_depends_on_its_seed_alone() -> None:
    one, same, other = (Characters.generated(seed, length=8, characters=2000) for seed in (0, 0, 1))
    assert one.text == same.text != other.text and len(one.text) == 2000
    uniform = torch.zeros(2, 8, one.vocab)
    assert float(one.cross_entropy(uniform, one.batch(2, 0))) == pytest.approx(torch.tensor(one.vocab).log())
