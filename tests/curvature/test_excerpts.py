"""A few positions of one sequence stand for the data, as long as the data takes no other steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.curvature import Linearisation, excerpts, thresholds, verify
from hessianlens.curvature.tape import TapedLinearisation
from hessianlens.problems import Problem
from tests.curvature import networks
from tests.curvature.networks import VOCAB, WIDTH, scrambled
from tests.curvature.refused import DetachedTanh, OnceTanh, TwiceTanh
from tests.curvature.test_tape import Wrong
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

LONG, RARE = 40, VOCAB - 1


class Worded(nn.Module):
    """Causal means of embedded words between two linear maps, with another activation where a rare word is among them.

    Args:
        rare: The activation for a batch with a rare word.
        longest: Of the sequences that it takes without that; longer ones count as rare.
    """

    def __init__(self, rare: Callable[[Tensor], Tensor], longest: int = LONG) -> None:
        super().__init__()
        self.rare, self.longest = rare, longest
        self.embedding, self.inner, self.outer = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, 3), nn.Linear(3, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.inner(self.embedding(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None])
        other = bool((tokens == RARE).any()) or tokens.shape[1] > self.longest
        return self.outer(self.rare(x) if other else x.tanh())


def _tokens(batch: int, length: int = LONG, rare: bool = False) -> Tensor:
    """Common words; the last sequence has a rare one at its end if asked for."""
    found = networks.tokens(batch, length).clamp(max=RARE - 1)
    if rare:
        found[-1, -1] = RARE
    return found


def _problem(model: nn.Module, tokens: Tensor, **options: Any) -> Problem:
    return hl.problem(scrambled(model.to(DOUBLE)), (tokens, tokens.roll(1, 1).clamp(max=1)), "cross_entropy", **options)


def _watched(problem: Problem) -> tuple[Problem, list[tuple[int, ...]]]:
    """The same problem, and the shapes of what its model is given."""
    seen: list[tuple[int, ...]] = []

    def forward(params: Any, batch: Any) -> Tensor:
        seen.append(tuple(batch[0].shape))
        return problem.forward(params, batch)

    return replace(problem, forward=forward), seen


# --- which piece -----------------------------------------------------------------------------------------------------


def test_the_check_runs_on_an_excerpt() -> None:
    problem, seen = _watched(_problem(Worded(torch.tanh), _tokens(3)))
    verify(problem, ["inner.weight"])
    assert set(seen) == {(1, 16)} and len(seen) < 5
    op = hl.hessian(problem, "inner.weight", method="hvp")
    op @ randn(op.shape[1])
    assert seen[-1] == (3, LONG) and set(seen[:-1]) == {(1, 16)}


def test_an_accusation_takes_the_whole_sequence() -> None:
    problem, seen = _watched(_problem(Worded(DetachedTanh.apply), _tokens(3).fill_(RARE)))
    with pytest.raises(hl.InputError, match="hides part of its derivative"):
        verify(problem, ["inner.weight"])
    assert (1, 16) in seen and (1, LONG) in seen


def test_an_excerpt_is_no_place_of_padding() -> None:
    tokens = _tokens(2)
    tokens[:, :24] = 0
    first = next(excerpts.candidates({"input_ids": tokens, "attention_mask": (tokens > 0).long()}))
    assert torch.equal(first["input_ids"], tokens[:1, 24:])
    assert first["attention_mask"].shape == (1, 16)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.ones(2, 20), torch.ones(2, 20)),
        (torch.ones(2, 40), torch.ones(2, 38)),
        (torch.ones(2, 40), torch.ones(2, 1, 40, 40)),
        (torch.ones(2, 40), torch.ones(2, 40, 40)),
        torch.ones(2, 40, 3, 3),
        torch.ones(2),
    ],
    ids=["short", "of two lengths", "a mask", "a matrix per sequence", "pictures", "numbers"],
)
def test_what_has_no_clear_positions_is_left_whole(batch: Any) -> None:
    shapes = [[tuple(tensor.shape) for tensor in excerpts.tensors(one)] for one in excerpts.candidates(batch)]
    given = [tuple(tensor.shape) for tensor in excerpts.tensors(batch)]
    assert shapes == [[(1, *shape[1:]) for shape in given], given]


def test_a_model_that_takes_no_excerpt_gets_its_sequence() -> None:
    class Whole(Worded):
        def forward(self, tokens: Tensor) -> Tensor:
            if tokens.shape[1] != LONG:
                raise IndexError("expected 40 words")
            return super().forward(tokens)

    problem, seen = _watched(_problem(Whole(torch.tanh), _tokens(3)))
    verify(problem, ["inner.weight"])
    assert (1, LONG) in seen and (3, LONG) not in seen


# --- steps that the piece does not take ------------------------------------------------------------------------------

BRANCHES = {"another word": (_tokens(3, rare=True), LONG), "a long sequence": (_tokens(3, length=LONG + 5), LONG)}


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("function", [DetachedTanh, TwiceTanh])
def test_steps_of_other_kinds_are_looked_at_where_they_are_taken(name: str, function: type) -> None:
    tokens, longest = BRANCHES[name]
    problem, seen = _watched(_problem(Worded(function.apply, longest), tokens))
    op = hl.hessian(problem, "inner.weight", method="hvp")
    if function is TwiceTanh:
        op @ randn(op.shape[1])
        before = len(seen)
        op @ randn(op.shape[1])
        assert len(seen) == before
        return
    with pytest.raises(hl.InputError, match="hides part of its derivative"):
        op @ randn(op.shape[1])
    with pytest.raises(hl.InputError, match="hides part of its derivative"):
        hl.hessian(problem, "inner.weight", method="hvp") @ randn(op.shape[1])


def test_all_batches_are_looked_at() -> None:
    data = [(tokens, tokens.clamp(max=1)) for tokens in (_tokens(2), _tokens(2, rare=True))]
    problem = hl.problem(scrambled(Worded(DetachedTanh.apply).to(DOUBLE)), data, "cross_entropy")
    with pytest.raises(hl.InputError, match="hides part of its derivative"):
        hl.block_norms(problem, ["inner.weight"], probes=3, method="probes")


def test_steps_that_only_a_whole_batch_takes_are_looked_at_there() -> None:
    class Several(Worded):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.inner(self.embedding(tokens))
            return self.outer(self.rare(x) if len(tokens) > 2 else x.tanh())

    for function in (DetachedTanh, TwiceTanh):
        problem, seen = _watched(_problem(Several(function.apply), _tokens(3)))
        op = hl.hessian(problem, "inner.weight", method="hvp")
        if function is TwiceTanh:
            op @ randn(op.shape[1])
            assert seen.count((3, LONG)) > 1
            continue
        with pytest.raises(hl.InputError, match="hides part of its derivative"):
            op @ randn(op.shape[1])


def test_an_excerpt_that_cannot_be_differentiated_accuses_nobody() -> None:
    class Fused(Worded):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.inner(self.embedding(tokens))
            return self.outer(OnceTanh.apply(x) if tokens.shape[1] == 16 else x.tanh())

    problem, seen = _watched(_problem(Fused(torch.tanh), _tokens(3)))
    verify(problem, ["inner.weight"])
    assert (1, 16) in seen and (1, LONG) in seen


# --- tapes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model counts as large."""
    monkeypatch.setattr(thresholds, "TAPE_MIN_MULTIPLY_ADDS", 0.0)


def _graph_products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the outputs of every graph that a product is asked of from now on."""
    seen: list[tuple[int, ...]] = []
    product = Linearisation.hessian

    def watched(self: Linearisation, *asked: Any) -> dict[str, Tensor]:
        seen.append(tuple(self.outputs.shape[:2]))
        return product(self, *asked)

    monkeypatch.setattr(Linearisation, "hessian", watched)
    return seen


def _by_graph(problem: Problem, v: Tensor) -> Tensor:
    at = Linearisation(problem, problem.data[0], ["inner.weight"])
    return at.hessian({"inner.weight": v.reshape(3, WIDTH)}, ["inner.weight"])["inner.weight"].flatten()


def test_a_single_product_takes_no_tape(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(Worded(torch.tanh), _tokens(3), verify=False)
    op, v = hl.hessian(problem, "inner.weight", method="hvp"), randn(3 * WIDTH)
    expected, seen = _by_graph(problem, v), _graph_products(monkeypatch)
    assert_same(op @ v, expected, "the first product", 1e-12)
    assert seen == [(3, LONG)] and op.method == "double backward"


def test_a_tape_is_there_for_the_first_of_a_few_products(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(Worded(torch.tanh), _tokens(3), verify=False)
    op, v = hl.hessian(problem, "inner.weight", method="hvp"), randn(3 * WIDTH)
    op.announce(thresholds.TAPE_MIN_HVPS_BY_EXCERPT)
    expected = _by_graph(problem, v)
    seen = _graph_products(monkeypatch)
    assert_same(op @ v, expected, "the first product", 1e-12)
    assert seen == [(1, 16)] and op.method == "tangent passes over a tape"
    other = hl.hessian(problem, "inner.weight", method="hvp")
    assert_same(other @ v, expected, "of another operator", 1e-12)
    assert seen == [(1, 16)]


@pytest.mark.parametrize(("rare", "why"), [(torch.sin, "the same as"), (Wrong.apply, "not those of its steps")])
def test_a_tape_with_steps_of_other_kinds_is_tested_on_its_batch(
    rare: Callable, why: str, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(Worded(rare), _tokens(3, rare=True), verify=False)
    op, v = hl.hessian(problem, "inner.weight", method="hvp"), randn(3 * WIDTH)
    op.announce(3)
    expected = _by_graph(problem, v)
    seen = _graph_products(monkeypatch)
    assert_same(op @ v, expected, "the first product", 1e-12)
    assert why in op.why and seen[:2] == [(1, 16), (3, LONG)]


def test_where_a_dependence_ends_is_a_kind_of_step() -> None:
    class Ending(Worded):
        def forward(self, tokens: Tensor) -> Tensor:
            x = super().forward(tokens)
            return x * (x.detach() if bool((tokens == RARE).any()) else x)

    kinds = [
        TapedLinearisation(problem, problem.data[0], ["inner.weight"]).kinds
        for problem in (_problem(Ending(torch.tanh), _tokens(3, rare=rare)) for rare in (False, True))
    ]
    assert "cut" not in kinds[0] and kinds[1] - kinds[0] == {"cut"}
    small = _problem(Ending(torch.tanh), _tokens(1, 16))
    assert TapedLinearisation(small, small.data[0], ["inner.weight"]).kinds == kinds[0]


def test_one_test_serves_fewer_parameters_too(large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(Worded(torch.tanh), _tokens(3), verify=False)
    seen = _graph_products(monkeypatch)
    for pattern in (["inner.weight", "outer.weight"], "inner.weight", "outer.weight"):
        op = hl.hessian(problem, pattern, method="hvp")
        op.announce(3)
        op @ randn(op.shape[1])
        assert "tape" in op.method
    assert seen == [(1, 16)]


# --- products that are announced -------------------------------------------------------------------------------------

LOOPS: dict[str, Callable[[Any], object]] = {
    "eigenvalues, lanczos": lambda op: hl.eigenvalues(op, method="lanczos"),
    "eigenvalues": lambda op: hl.eigenvalues(op, method="arpack"),
    "density": lambda op: hl.density(op, probes=2, steps=4, method="lanczos"),
    "trace": lambda op: hl.trace(op, probes=8, chunk=1),
    "Hutch++": lambda op: hl.trace(op, probes=9, method="hutch++", chunk=1),
    "XTrace": lambda op: hl.trace(op, probes=8, method="xtrace", chunk=1),
    "diagonal": lambda op: hl.diagonal(op, probes=8, chunk=1),
    "norm": lambda op: hl.frobenius(op, probes=8, chunk=1),
    "SciPy": lambda op: [op.to_scipy() @ v.numpy() for v in randn(3, op.shape[1])],
    "a sum": lambda op: hl.eigenvalues(op + 2 * op, method="arpack"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_say_how_many_products_will_follow(name: str, large: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two sequences too short for an excerpt nothing but that makes a tape for the first product."""
    monkeypatch.setattr(thresholds, "TAPE_MIN_HVPS_DONE", 10**6)
    problem = _problem(Worded(torch.tanh), _tokens(2, length=8), verify=False)
    seen = _graph_products(monkeypatch)
    op = hl.hessian(problem, "inner.weight", method="hvp")
    LOOPS[name](op)
    assert seen == [(1, 8)] and "tape" in op.method
    silent = hl.hessian(replace(problem), "inner.weight", method="hvp")
    for v in randn(7, op.shape[1]):
        silent @ v
    assert seen[1:] == [(2, 8)] * 7 and "tape" not in silent.method
