"""Addition: the data, its carries and its losses."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.models import Transformer
from hessianlens.tasks import Addition


def random_logits(batch: int = 4, length: int = 18, vocab: int = 12) -> Tensor:
    return torch.randn(batch, length, vocab, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def perfect_logits(tokens: Tensor) -> Tensor:
    """Each position is sure of the token that follows."""
    return 10.0 * torch.nn.functional.one_hot(tokens.roll(-1, 1), 12).double()


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [1, 2, 5, 9])
def test_every_line_is_a_sum(digits: int) -> None:
    task = Addition(digits)
    batch = task.batch(50, seed=1)
    assert batch["tokens"].shape == (50, task.context) and batch["tokens"].dtype == torch.int64
    for line in task.decode(batch):
        question, answer = line.split("=")
        x, y = question.split("+")
        assert len(x) == len(y) == digits and len(answer) == digits + 1
        assert int(x) + int(y) == int(answer)


def test_carries_run_on() -> None:
    task = Addition(5)
    assert task.decode(task.encode([99999], [1])) == ["99999+00001=100000"]
    assert task.decode(task.encode([99999], [99999])) == ["99999+99999=199998"]
    assert task.decode(task.encode([12345], [54321])) == ["12345+54321=066666"]
    assert task.decode(task.encode([45], [55])["tokens"][0]) == "00045+00055=000100"


def test_tokens_stand_where_they_should() -> None:
    task = Addition(5)
    row = task.encode([12345], [67890])["tokens"][0]
    assert [row[list(p)].tolist() for p in (task.x_positions, task.y_positions)] == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 0]]
    assert row[5] == 10 and row[11] == 11
    assert row[list(task.answer_positions)].tolist() == [0, 8, 0, 2, 3, 5]
    assert list(task.loss_positions) == [11, 12, 13, 14, 15, 16]
    assert task.vocab == len(task.vocabulary) == 12 and task.context == 18


PUBLISHED_ROWS = ["51656+73891=125547", "42559+34481=077040", "31423+51697=083120", "26822+42490=069312"]


def test_the_published_batch_is_the_plain_one() -> None:
    task = Addition(5)
    plain = task.batch(64, seed=1234, carries="none")
    assert task.decode(plain)[:4] == PUBLISHED_ROWS
    assert torch.equal(task.batch(64, seed=1234)["tokens"], plain["tokens"]), "it is what one gets without asking"
    for other in ("chains", "mixed"):
        assert task.decode(task.batch(64, seed=1234, carries=other))[:4] != PUBLISHED_ROWS


def test_batches_of_a_stream_are_plain_or_chained_one_by_one() -> None:
    """A chain changes the digits that the plain stream's first batch has; every fifth of its pairs, no other."""
    task = Addition(5)
    plain, chained = (task.batch(64, seed=7, carries=kind)["tokens"] for kind in ("none", "chains"))
    x, y = list(task.x_positions), list(task.y_positions)
    moved = (plain[:, x] != chained[:, x]) | (plain[:, y] != chained[:, y])
    assert 0 < int(moved.sum()) <= 64 and bool((chained[:, x] + chained[:, y] == 9)[moved].all())


def sum_nine_counts(batches: int, carries: str) -> Tensor:
    task = Addition(5)
    tokens = torch.stack([b["tokens"] for b in task.batches(batches, 64, seed=3, carries=carries)])
    pairs = tokens[..., list(task.x_positions)] + tokens[..., list(task.y_positions)]
    return (pairs == 9).sum((1, 2))


def test_one_batch_in_five_has_more_pairs_that_sum_to_nine() -> None:
    """10 % of 320 pairs by chance, 20 % + 80 % of 10 % where pairs were changed: 32 +- 5 and 90 +- 5."""
    counts = sum_nine_counts(400, "mixed").double()
    changed = counts > 60
    assert float(changed.double().mean()) == pytest.approx(0.2, abs=4 * math.sqrt(0.16 / 400))
    assert float(counts[~changed].mean()) == pytest.approx(32, abs=4 * 5.4 / math.sqrt(320))
    assert float(counts[changed].mean()) == pytest.approx(64 + 25.6, abs=4 * 4.8 / math.sqrt(80))
    assert int(sum_nine_counts(100, "none").max()) < 60 < int(sum_nine_counts(100, "chains").min())


def test_changed_pairs_leave_digits_uniform_and_change_x_or_y() -> None:
    """A changed digit is 9 minus a uniform one; against the unchanged draw of the same seed exactly one side moved."""
    task = Addition(5)
    tokens = torch.cat([b["tokens"] for b in task.batches(200, 64, seed=4, carries="mixed")])
    for positions in (task.x_positions, task.y_positions):
        share = torch.bincount(tokens[:, list(positions)].flatten(), minlength=10) / (len(tokens) * 5)
        assert float((share - 0.1).abs().max()) < 0.005
    sides = set()
    for seed in range(60):
        x, y = torch.randint(10, (2, 320), generator=torch.Generator().manual_seed(seed)).reshape(2, 64, 5)
        drawn = task.batch(64, seed, carries="mixed")["tokens"]
        moved = (bool((drawn[:, :5] != x).any()), bool((drawn[:, 6:11] != y).any()))
        sides.add(moved)
    assert sides == {(False, False), (True, False), (False, True)}


def test_a_seed_is_a_data_set() -> None:
    task = Addition(5)
    first, again, other = (task.batch(64, seed=s)["tokens"] for s in (1234, 1234, 1235))
    assert torch.equal(first, again) and not torch.equal(first, other)
    stream = task.batches(3, 64, seed=1234)
    once, twice = ([b["tokens"] for b in stream] for _ in range(2))
    assert len(stream) == len(once) == 3
    assert all(torch.equal(a, b) for a, b in zip(once, twice, strict=True))
    assert torch.equal(next(iter(pickle.loads(pickle.dumps(stream))))["tokens"], first)
    assert torch.equal(once[0], first) and not torch.equal(once[1], first)


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    Addition().batch(64, seed=1)
    assert torch.equal(torch.rand(3), expected)


# --- losses ----------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_over_the_answer() -> None:
    task, logits = Addition(5), random_logits()
    batch = task.batch(4, seed=0)
    total = 0.0
    for row, out in zip(batch["tokens"].tolist(), logits.tolist(), strict=True):
        for p in range(11, 17):
            total += math.log(sum(math.exp(v) for v in out[p])) - out[p][row[p + 1]]
    assert float(task.cross_entropy(logits, batch)) == pytest.approx(total / 24, rel=1e-12)


def test_square_is_a_sum_against_the_tokens_at_the_same_positions() -> None:
    task, logits = Addition(5), random_logits()
    batch = task.batch(4, seed=0)
    total = 0.0
    for row, out in zip(batch["tokens"].tolist(), logits.tolist(), strict=True):
        for p in range(18 - 7, 18 - 1):
            total += sum((v - (token == row[p])) ** 2 for token, v in enumerate(out[p]))
    assert float(task.square(logits, batch)) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("name", ["cross_entropy", "square"])
def test_only_the_positions_with_a_loss_have_a_gradient(name: str) -> None:
    task, logits = Addition(5), random_logits().requires_grad_()
    (gradient,) = torch.autograd.grad(getattr(task, name)(logits, task.batch(4, seed=0)), logits)
    felt = gradient.abs().amax((0, 2)) > 0
    assert felt.nonzero()[:, 0].tolist() == list(task.loss_positions)


@pytest.mark.parametrize("name", ["cross_entropy", "square"])
def test_losses_take_a_batch_its_tokens_or_one_sequence(name: str) -> None:
    task, logits = Addition(5), random_logits()
    loss, tokens = getattr(task, name), task.batch(4, seed=0)["tokens"]
    assert torch.equal(loss(logits, tokens), loss(logits, {"tokens": tokens}))
    each = torch.func.vmap(loss)(logits, tokens)
    assert torch.allclose(each, torch.stack([loss(*pair) for pair in zip(logits, tokens, strict=True)]))
    whole = each.mean() if name == "cross_entropy" else each.sum()
    assert torch.allclose(whole, loss(logits, tokens))


def test_accuracy_counts_whole_answers() -> None:
    task = Addition(5)
    batch = task.batch(4, seed=0)
    logits = perfect_logits(batch["tokens"])
    assert task.accuracy(logits, batch) == 1.0
    logits[2, 13] = logits[2, 13].roll(1)
    logits[:, 3] = 0
    assert task.correct(logits, batch).tolist() == [True, True, False, True]
    assert task.accuracy(logits, batch) == 0.75


def test_a_model_learns_it_downhill() -> None:
    task = Addition(2)
    model = Transformer(d_model=16, vocab=task.vocab, context=task.context, seed=0)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for batch in task.batches(60, 64, seed=0):
        loss = task.cross_entropy(model(**batch), batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


# --- input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [0, -1, 2.0, True, "5"])
def test_digits_are_a_positive_number(digits: object) -> None:
    with pytest.raises(hl.InputError, match="digits"):
        Addition(digits)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda t: t.batch(0, seed=0), "size"),
        (lambda t: t.batch(4, seed=-1), "seed"),
        (lambda t: t.batches(0, 4, seed=0), "count"),
        (
            lambda t: t.batch(4, seed=0, carries="some"),
            "carries: got 'some', expected one of 'none', 'chains', 'mixed'",
        ),
        (lambda t: t.encode([1], [100000]), "0 to 99999"),
        (lambda t: t.encode([1, 2], [3]), "2 and 1"),
        (lambda t: t.decode(torch.tensor([12])), "tokens"),
        (lambda t: t.square(random_logits(3), t.batch(4, seed=0)), r"\(4, 18, 12\)"),
        (lambda t: t.square(random_logits(vocab=11), t.batch(4, seed=0)), r"\(4, 18, 12\)"),
        (lambda t: t.cross_entropy(random_logits(length=9), Addition(2).batch(4, seed=0)), "expected 18"),
        (lambda t: t.accuracy(random_logits(), {"input_ids": 0}), "tokens"),
    ],
)
def test_bad_input_is_explained(call, named: str) -> None:
    with pytest.raises(hl.InputError, match=named):
        call(Addition(5))
