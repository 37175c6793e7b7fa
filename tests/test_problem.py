"""`Problem` and `Block`: selection, pieces of parameters, the total loss and moves to another precision."""

from __future__ import annotations

from collections import UserDict, namedtuple
from dataclasses import FrozenInstanceError, replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.problems import Block, Problem, matches, move, tensors
from tests.variants import DOUBLE, randn

NAMES = ["embed", "layer0.attn.q", "layer0.attn.k", "layer0.mlp.in", "layer1.attn.q", "layer10.attn.q", "unembed"]


def quadratic(**options) -> Problem:
    """``0.5 |W x - y|^2`` summed over batches, and a bias that the loss does not look at."""
    params = {"W": randn(2, 3), "b": randn(2, seed=1), "steps": torch.tensor(3)}
    blocks = {
        "first": Block.of("first", "W", params["W"], (slice(0, 1), slice(None))),
        "W": Block.of("W", "W", params["W"]),
        "b": Block.of("b", "b", params["b"]),
    }
    data = [(randn(3, seed=k), randn(2, seed=5 + k)) for k in range(2)]

    def forward(weights, batch) -> Tensor:
        return weights["W"] @ batch[0]

    def loss(outputs: Tensor, batch) -> Tensor:
        return 0.5 * (outputs - batch[1]).square().sum()

    return Problem(forward, loss, params, blocks, data, **options)


def named() -> Problem:
    weight = randn(1)
    return Problem(
        lambda w, b: b, lambda o, b: o, {"w": weight}, {n: Block.of(n, "w", weight) for n in NAMES}, [weight]
    )


# --- selection -------------------------------------------------------------------------------------------------------


SELECTIONS = {
    "layer0.attn.q": ["layer0.attn.q"],
    "layer*.attn.q": ["layer0.attn.q", "layer1.attn.q", "layer10.attn.q"],
    "layer?.attn.q": ["layer0.attn.q", "layer1.attn.q"],
    "layer0.attn.[qk]": ["layer0.attn.q", "layer0.attn.k"],
    "*": NAMES,
    "re:layer[0-9]+[.]attn[.]q": ["layer0.attn.q", "layer1.attn.q", "layer10.attn.q"],
    "re:(un)?embed": ["embed", "unembed"],
}


@pytest.mark.parametrize("pattern", SELECTIONS)
def test_names_globs_and_expressions(pattern: str) -> None:
    assert [block.name for block in named().select(pattern)] == SELECTIONS[pattern]
    assert [block.name for block in named().select([pattern])] == SELECTIONS[pattern]


def test_several_patterns_give_each_block_once_in_model_order() -> None:
    found = named().select(["unembed", "layer0.*", "layer0.attn.q", "re:embed"])
    assert [b.name for b in found] == ["embed", "layer0.attn.q", "layer0.attn.k", "layer0.mlp.in", "unembed"]


ODD_NAMES = ["w[0]", "w0", "w*", "w?", "re:(", "re:w.", "[!w]", "0.weight", "", "block of two words"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_is_taken_as_it_is(name: str) -> None:
    weight = randn(2)
    blocks = {each: Block.of(each, "w", weight) for each in ODD_NAMES}
    problem = Problem(lambda w, b: b, lambda o, b: o, {"w": weight}, blocks, [weight], aliases={"al[i]as": "w[0]"})
    assert problem.select(name) == [blocks[name]]
    assert problem.select(problem.blocks) == list(blocks.values())
    assert problem.select("al[i]as") == [blocks["w[0]"]]


class OddlyNamed(torch.nn.Module):
    """``tanh(x A) B + c`` with names that a glob or an expression would read otherwise."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("w[0]", (3, 4)), ("w0", (4, 2)), ("re:b*", (2,))):
            self.register_parameter(name, torch.nn.Parameter(0.5 * randn(*shape)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner, outer, bias = (tensor for _, tensor in self.named_parameters())
        return torch.tanh(x @ inner) @ outer + bias


@pytest.mark.parametrize("sequential", [True, False])
def test_every_call_takes_the_names_of_the_blocks(sequential: bool) -> None:
    """Blocks of a model of no known family have the names of its parameters, whatever these are."""
    layers = (torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    model = torch.nn.Sequential(*layers).double() if sequential else OddlyNamed()
    problem = hl.problem(model, [(randn(5, 3), randn(5, 2, seed=1))], torch.nn.MSELoss())
    names = [name for name, _ in model.named_parameters()]
    assert list(problem.blocks) == names
    pairs, norms = hl.block_pair_norms(problem, names), hl.block_norms(problem, problem.blocks)
    monitor = hl.Monitor(problem, blocks=names)
    assert list(pairs.names) == names and [block.name for block in monitor.blocks] == names
    assert [block.name for block in hl.measure(problem, names, budget=5, progress=False).blocks] == names
    H = hl.hessian(problem, names).to_dense()
    ends = torch.tensor([0, *(block.numel for block in problem.blocks.values())]).cumsum(0).tolist()
    spans = {name: slice(*span) for name, span in zip(names, pairwise(ends), strict=True)}
    for row in names:
        assert hl.block_pair_norms(problem, row).names == (row,)
        assert norms[row, "full"].value == pytest.approx(float(H[spans[row], spans[row]].norm()), rel=1e-9)
        for column in names:
            block = H[spans[row], spans[column]]
            assert torch.allclose(hl.hessian(problem, row, column).to_dense(), block, atol=1e-12)
            exact = hl.block_pair_norms(problem, [row, column], probes=100)[row, column]
            assert exact.value == pytest.approx(float(block.norm()), rel=1e-9, abs=1e-12)


def test_an_expression_must_match_the_whole_name() -> None:
    assert not matches("layer10.attn.q", "re:layer1") and not matches("layer0.attn.q", "attn")


def test_a_pattern_that_matches_nothing_says_what_there_is() -> None:
    with pytest.raises(hl.InputError, match=r"blocks: nothing matches 'layer2\.\*'; this problem has embed, layer0"):
        named().select("layer2.*")
    with pytest.raises(hl.InputError, match=r"nothing matches 'Layer0\.attn\.q'"):
        named().select(["embed", "Layer0.attn.q"])


def test_long_lists_of_blocks_are_cut() -> None:
    weight = randn(1)
    blocks = {f"b{k}": Block.of(f"b{k}", "w", weight) for k in range(20)}
    problem = Problem(lambda w, b: b, lambda o, b: o, {"w": weight}, blocks, [weight])
    with pytest.raises(hl.InputError, match=r"b11, \.\.\. \(20 in all\)"):
        problem.select("c*")


@pytest.mark.parametrize("pattern", [[], (), 3, None, [3], ["embed", None]], ids=str)
def test_a_selection_that_is_no_pattern(pattern) -> None:
    with pytest.raises(hl.InputError, match=r"blocks: got .* expected a name, glob or 're:' expression"):
        named().select(pattern)


def test_a_broken_expression() -> None:
    with pytest.raises(hl.InputError, match=r"blocks: 're:\(' is not a regular expression"):
        named().select("re:(")


# --- blocks ----------------------------------------------------------------------------------------------------------


PIECES = [None, (slice(None), slice(0, 2)), (slice(1, 3), slice(4, 6)), (slice(2, None), slice(None))]


UNIONS = {
    "rows 1:2 of every 2": ((slice(None), slice(1, 2), slice(None)), (0, 2), [1, 3], range(6)),
    "columns 0:1 of every 3": ((slice(None), slice(None), slice(0, 1)), (1, 3), range(4), [0, 3]),
    "some rows, columns 1:3 of every 3": ((slice(1, 3), slice(None), slice(1, 3)), (1, 3), [1, 2], [1, 2, 4, 5]),
    "the second stretch": ((slice(1, 2), slice(0, 2), slice(2, 4)), (0, 2), [2, 3], [2, 3]),
    "everything": ((slice(None), slice(0, 2), slice(None)), (0, 2), range(4), range(6)),
}


@pytest.mark.parametrize("index", PIECES, ids=str)
def test_embed_and_take_are_transposes_of_each_other(index) -> None:
    parameter = randn(4, 6)
    block = Block.of("b", "p", parameter, index)
    piece, other = randn(*block.shape, seed=1), randn(4, 6, seed=2)
    whole = block.embed(piece, parameter)
    assert whole.shape == parameter.shape and block.numel == piece.numel()
    assert torch.equal(block.take(whole), piece)
    assert float(whole.abs().sum()) == pytest.approx(float(piece.abs().sum()))
    assert float((whole * other).sum()) == pytest.approx(float((piece * block.take(other)).sum()))
    assert torch.equal(block.take(parameter), parameter if index is None else parameter[index])


@pytest.mark.parametrize("name", UNIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_union_of_slices_is_what_its_rows_and_columns_say(name: str, transposed: bool) -> None:
    index, stretch, rows, columns = UNIONS[name]
    parameter = randn(6, 4).T if transposed else randn(4, 6)
    block = Block.of("b", "p", parameter, index, stretch=stretch)
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[torch.tensor(rows)[:, None], torch.tensor(columns)] = True
    piece, other = randn(*block.shape, seed=1), randn(4, 6, seed=2)
    assert block.shape == (len(rows), len(columns)) and block.numel == int(mask.sum())
    assert torch.equal(block.take(parameter).flatten(), parameter[mask])
    whole = block.embed(piece, parameter)
    assert whole.shape == parameter.shape and not whole[~mask].any()
    assert torch.equal(block.take(whole), piece)
    assert float((whole * other).sum()) == pytest.approx(float((piece * block.take(other)).sum()))
    several = randn(4, 6, 5, seed=3)
    assert torch.equal(block.take(several), torch.stack([block.take(x) for x in several.unbind(-1)], -1))


def test_a_union_of_slices_can_be_differentiated_through() -> None:
    parameter = randn(4, 6).requires_grad_()
    block = Block.of("b", "p", parameter, (slice(None), slice(0, 1), slice(None)), stretch=(0, 2))
    weights = randn(*block.shape, seed=1)
    (found,) = torch.autograd.grad((block.take(parameter) * weights).sum(), parameter)
    assert torch.equal(found, block.embed(weights, parameter))


def test_parts_of_a_block() -> None:
    parameter = torch.arange(24).reshape(12, 2)
    union = Block.of("q", "p", parameter, (slice(None), slice(1, 3), slice(None)), stretch=(0, 4))
    rectangle = Block.of("q", "p", parameter, (slice(4, 10), slice(None)))
    for block in (union, rectangle):
        parts = [block.part(f"q.{n}", 0, 2 * n, 2 * n + 2, "a part") for n in range(3)]
        assert torch.equal(torch.cat([part.take(parameter) for part in parts]), block.take(parameter))
        assert all(part.stretch is None and part.shape == (2, 2) and part.note == "a part" for part in parts)
        columns = [block.part(f"q.{n}", 1, n, n + 1) for n in range(2)]
        assert torch.equal(torch.cat([part.take(parameter) for part in columns], 1), block.take(parameter))
    assert union.part("q.1", 0, 2, 4).index == (slice(5, 7), slice(None))
    with pytest.raises(hl.InputError, match="part: entries 1:3 of q do not lie next to each other in p"):
        union.part("q.1", 0, 1, 3)


def test_take_leaves_further_axes_alone() -> None:
    block = Block.of("b", "p", randn(4, 6), (slice(1, 3), slice(4, 6)))
    several = randn(4, 6, 5)
    assert torch.equal(block.take(several), several[1:3, 4:6])


def test_embed_leaves_its_arguments_alone() -> None:
    parameter, piece = randn(4, 6), randn(2, 6, seed=1)
    before = parameter.clone(), piece.clone()
    Block.of("b", "p", parameter, (slice(0, 2), slice(None))).embed(piece, parameter)
    assert torch.equal(parameter, before[0]) and torch.equal(piece, before[1])


def test_blocks_and_problems_are_frozen() -> None:
    problem = quadratic()
    for target, field in ((problem, "data"), (problem.blocks["W"], "name")):
        with pytest.raises(FrozenInstanceError):
            setattr(target, field, None)


# --- the total loss and its curvature --------------------------------------------------------------------------------


def test_a_problem_prints_one_line_without_its_weights() -> None:
    assert repr(named()) == f"Problem(1 parameter in {len(NAMES)} blocks, batches: 1, float64 on cpu)"
    task = hl.tasks.Addition()
    problem = hl.problem(hl.models.Transformer(1, 4), task.batch(2, seed=0), task.cross_entropy)
    assert "\n" not in repr(problem) and "tensor" not in repr(problem) and problem.reduction in repr(problem)


def test_the_total_loss_is_the_sum_over_batches() -> None:
    problem = quadratic()
    expected = sum(0.5 * (problem.params["W"] @ x - y).square().sum() for x, y in problem.data)
    assert torch.allclose(problem.total_loss(), expected)
    other = problem.total_loss({"W": torch.zeros(2, 3, dtype=DOUBLE)})
    assert torch.allclose(other, sum(0.5 * y.square().sum() for _, y in problem.data))


def test_a_problem_by_hand_has_the_curvature_it_must_have() -> None:
    """``sum_batches x x^T (x) I``: no model, no discovery, a parameter without influence and an integer buffer."""
    problem = quadratic()
    second_moment = sum(torch.outer(x, x) for x, _ in problem.data)
    eye = torch.eye(6, dtype=DOUBLE)
    assert torch.allclose(hl.hessian(problem, "W") @ eye, torch.kron(torch.eye(2, dtype=DOUBLE), second_moment))
    assert torch.allclose(hl.ggn(problem, "first") @ eye[:3, :3], second_moment)
    assert not (hl.functional(problem, "W") @ eye).any()
    assert not (hl.hessian(problem, "b", "W") @ eye).any()


def test_forward_and_loss_run_within_the_scope_and_nothing_else_is_left_open() -> None:
    open_scopes, seen = [], []

    class Scope:
        def __enter__(self) -> None:
            open_scopes.append(self)

        def __exit__(self, *_: object) -> None:
            open_scopes.remove(self)

    plain = quadratic()

    def watched(name, function):
        def call(*arguments) -> Tensor:
            seen.append((name, bool(open_scopes)))
            return function(*arguments)

        return call

    problem = replace(plain, forward=watched("forward", plain.forward), loss=watched("loss", plain.loss), scope=Scope)
    problem.total_loss()
    hl.hessian(problem, "W") @ torch.ones(6, dtype=DOUBLE)
    hl.ggn(problem, "W") @ torch.ones(6, dtype=DOUBLE)
    assert {name for name, _ in seen} == {"forward", "loss"} and all(inside for _, inside in seen)
    assert not open_scopes


# --- moving ----------------------------------------------------------------------------------------------------------


def test_a_problem_moves_without_its_integers_and_without_the_original() -> None:
    problem = quadratic()
    moved = problem.to(torch.float32)
    assert (moved.dtype, problem.dtype, moved.device) == (torch.float32, DOUBLE, problem.device)
    assert moved.params["steps"].dtype == torch.int64
    assert all(t.dtype == torch.float32 for batch in moved.data for t in tensors(batch))
    assert torch.allclose(moved.total_loss().double(), problem.total_loss(), rtol=1e-5)


Pair = namedtuple("Pair", "inputs targets")


def test_batches_of_every_form_move() -> None:
    real, whole = randn(2), torch.tensor([1, 2])
    batch = Pair({"x": real, "note": "text", "parts": [real, whole]}, (whole, None))
    moved = move(batch, torch.float32, None)
    assert isinstance(moved, Pair) and isinstance(moved.targets, tuple)
    assert moved.inputs["x"].dtype == torch.float32 and moved.inputs["note"] == "text"
    assert [t.dtype for t in moved.inputs["parts"]] == [torch.float32, torch.int64]
    assert moved.targets[1] is None
    assert [t.dtype for t in tensors(UserDict(a=real, b=[whole]))] == [DOUBLE, torch.int64]


def test_the_module_and_the_function_of_the_same_name() -> None:
    assert callable(hl.problem) and hl.problem.__module__ == "hessianlens.models.adapters.assembly"
