"""Data in every form people have it gives the same problem."""

from __future__ import annotations

from collections import UserDict, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding

import hessianlens as hl
from hessianlens.models.adapters.batches import as_batches, inputs_of, targets_of
from hessianlens.problems import batch_size
from tests.curvature import hugging_face, networks
from tests.curvature.networks import pairs, tokens
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn

Pair = namedtuple("Pair", "inputs targets")
X, Y = randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])
LOADER = DataLoader(TensorDataset(X, Y), batch_size=4)

PAIRS: dict[str, Callable[[], Any]] = {
    "tuple": lambda: (X, Y),
    "named tuple": lambda: Pair(X, Y),
    "list of tuples": lambda: [(X[:4], Y[:4]), (X[4:], Y[4:])],
    "tuple of tuples": lambda: ((X[:4], Y[:4]), (X[4:], Y[4:])),
    "list of lists": lambda: [[X[:4], Y[:4]], [X[4:], Y[4:]]],
    "loader": lambda: LOADER,
    "generator": lambda: ((x, y) for x, y in zip(X.split(2), Y.split(2), strict=True)),
    "more than two": lambda: (X, Y, "a note"),
    "inputs by name": lambda: ({"input": X}, Y),
    "dictionary": lambda: {"input": X, "labels": Y},
    "dictionary with targets": lambda: {"input": X, "targets": Y},
    "mapping": lambda: UserDict(input=X, label=Y),
    "single precision": lambda: (X.float(), Y),
}


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_of_inputs_and_targets(form: str) -> None:
    model = networks.mlp()
    expected = hl.problem(model, [(X, Y)], "cross_entropy")
    problem = hl.problem(model, PAIRS[form](), "cross_entropy")
    assert problem.reduction == expected.reduction
    relative = 1e-6 if form == "single precision" else 1e-10
    assert_same(problem.total_loss(), expected.total_loss(), form, relative)
    for _ in range(2):  # a generator was read once and for all
        op = hl.hessian(problem, "0.weight")
        assert_same(op @ randn(12), hl.hessian(expected, "0.weight") @ randn(12), form, relative)


TOKENS: dict[str, Callable[[], Any]] = {
    "tensor": tokens,
    "dictionary": lambda: {"input_ids": tokens()},
    "what a tokenizer returns": lambda: BatchEncoding({"input_ids": tokens()}),
    "list of tensors": lambda: list(tokens().split(1)),
    "loader of tensors": lambda: DataLoader(tokens(), batch_size=1),
    "loader of dictionaries": lambda: DataLoader([{"input_ids": row} for row in tokens()], batch_size=2),
}


@pytest.mark.parametrize("form", TOKENS)
def test_tokens_alone(form: str) -> None:
    model = hugging_face.gpt2()
    expected = hl.problem(model, {"input_ids": tokens()}, micro_batch=None)
    assert_same(hl.problem(model, TOKENS[form]()).total_loss(), expected.total_loss(), form)


def test_a_dictionary_goes_into_the_model_without_its_targets() -> None:
    batch = {"input_ids": tokens(), "attention_mask": torch.ones(2, 4), "labels": tokens(seed=1)}
    assert list(inputs_of(batch)) == ["input_ids", "attention_mask"]
    assert torch.equal(targets_of(batch), tokens(seed=1))
    assert targets_of(tokens()) is None and targets_of((tokens(),)) is None
    assert batch_size(batch) == 2


def test_the_data_of_the_user_is_left_alone() -> None:
    data = [(X.float(), Y.clone())]
    problem = hl.problem(networks.mlp(), data, "cross_entropy", micro_batch=2)
    assert len(data) == 1 and data[0][0].dtype == torch.float32
    assert len(problem.data) == 3 and problem.data[0][0].dtype == DOUBLE


def test_micro_batches_cut_what_has_a_batch_axis_only() -> None:
    shared = randn(3, 3)
    (first, second) = as_batches({"x": X[:4], "mask": shared, "scale": torch.tensor(2.0), "n": 7}, micro_batch=3)
    assert [b["x"].shape[0] for b in (first, second)] == [3, 1]
    assert first["mask"] is shared and first["n"] == 7 and first["scale"].ndim == 0
    assert isinstance(as_batches(Pair(X, Y), micro_batch=2)[0], Pair)


BAD = {
    "data: got int, expected a batch": 3,
    "data: got TensorDataset, expected a batch": TensorDataset(X, Y),
    "data: got no batch at all": [],
    r"data\[0\]: got str, expected a tensor": "text",
    r"data\[1\]: got NoneType, expected a tensor": [(X, Y), None],
    r"data\[0\]: got tuple, expected a tensor": [("text", Y)],
    r"data\[0\]: got an empty batch, expected at least one sequence": (X[:0], Y[:0]),
    "data: got a batch without any tensor": {"note": "text"},
}


@pytest.mark.parametrize("message", BAD)
def test_data_that_cannot_be_used(message: str) -> None:
    with pytest.raises(hl.InputError, match=message):
        hl.problem(networks.mlp(), BAD[message], "cross_entropy")


def test_an_exhausted_generator() -> None:
    used = iter(pairs(2))
    list(used)
    with pytest.raises(hl.InputError, match="an exhausted generator cannot be read twice"):
        networks.toy_problem(data=used)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_micro_batches_of_no_size(size: Any) -> None:
    with pytest.raises(hl.InputError, match=rf"micro_batch: got {size!r}, expected a positive whole number"):
        hl.problem(networks.mlp(), (X, Y), "cross_entropy", micro_batch=size)


# --- what models return ----------------------------------------------------------------------------------------------


class Returning(nn.Module):
    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.wrap = networks.mlp(), wrap

    def forward(self, input: Tensor) -> Any:
        return self.wrap(self.inner(input))


RETURNS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda out: out,
    "tuple": lambda out: (out, "cache"),
    "list": lambda out: [out],
    "dictionary": lambda out: {"loss": None, "logits": out},
    "object": lambda out: namedtuple("Output", "hidden logits")(None, out),
    "hidden states": lambda out: namedtuple("Output", "last_hidden_state")(out),
}


@pytest.mark.parametrize("form", RETURNS)
def test_outputs_of_every_form(form: str) -> None:
    problem = hl.problem(Returning(RETURNS[form]), (X, Y), "cross_entropy")
    assert_same(problem.total_loss(), hl.problem(networks.mlp(), (X, Y), "cross_entropy").total_loss(), form)


@pytest.mark.parametrize("wrap", [lambda out: None, lambda out: {"prediction": out}, lambda out: ("text", out)])
def test_outputs_that_cannot_be_used(wrap: Callable[[Tensor], Any]) -> None:
    with pytest.raises(hl.InputError, match=r"model: returned \w+, expected a tensor.* wrap the model"):
        hl.problem(Returning(wrap), (X, Y), "cross_entropy")
