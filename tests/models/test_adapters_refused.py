"""Data that a model cannot take is named: the key, what it holds, what was expected. Never a traceback of PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from tests.curvature import hugging_face, networks
from tests.curvature.networks import LENGTH, VOCAB, scrambled, tokens
from tests.variants import DOUBLE, randn

X, Y = randn(6, 3), torch.tensor([0, 2, 1, 1, 0, 2])


def gpt2(data: object, **options: object) -> Callable[[], object]:
    return lambda: hl.problem(hugging_face.gpt2(), data, **options)


def mlp(data: object, loss: object = "cross_entropy", **options: object) -> Callable[[], object]:
    return lambda: hl.problem(networks.mlp(), data, loss, **options)


def positions(length: int) -> Callable[[], object]:
    return lambda: hl.problem(networks.nano_gpt(), (tokens(2, length), tokens(2, length)), "cross_entropy")


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "ids out of range": (
        gpt2({"input_ids": tokens() + 3}),
        r"data: got the ids 3 \.\. 7 in input_ids, expected 0 \.\. 4: transformer.wte.weight has 5 rows; take the tok",
    ),
    "negative ids": (gpt2({"input_ids": tokens() - 3}), r"data: got the ids -3 \.\. 1 in input_ids, expected 0 \.\. 4"),
    "ids of a bare tensor": (gpt2(tokens() + 3), r"data: got the ids 3 \.\. 7 in inputs, expected 0 \.\. 4"),
    "ids of a plain module": (
        lambda: hl.problem(networks.nano_gpt(), (tokens() + 3, tokens()), "cross_entropy"),
        r"data: got the ids 3 \.\. 7 in inputs, expected 0 \.\. 4: transformer.wte.weight",
    ),
    "ids of a toy": (
        lambda: networks.toy_problem(data=(tokens() + 3, tokens())),
        r"data: got the ids 3 \.\. 7 in inputs, expected 0 \.\. 4: token_embedding has 5 rows",
    ),
    "ids of a decoder": (
        lambda: hl.problem(
            hugging_face.t5(), {"input_ids": tokens(), "labels": tokens(), "decoder_input_ids": Y[None]}
        ),
        "model: T5ForConditionalGeneration could not be run on the data: ",
    ),
    "sequences too long": (
        gpt2({"input_ids": tokens(2, LENGTH + 5)}),
        r"data: the model looks up row 8 of transformer.wpe.weight, which has 6 rows; sequences of 9 tokens are longer",
    ),
    "sequences too long for a plain module": (positions(9), r"row 8 of transformer.wpe.weight, which has 6 rows"),
    "one-dimensional ids": (
        gpt2({"input_ids": tokens()[0]}),
        r"data: input_ids has shape \(4,\), expected \(sequences, tokens\); for one sequence add an axis with",
    ),
    "one-dimensional ids, bare": (gpt2(tokens()[0]), r"data: input_ids has shape \(4,\)"),
    "ids that are no whole numbers": (
        gpt2({"input_ids": tokens().double()}),
        r"data: input_ids is torch.float64, expected token ids, whole numbers; convert them with .long\(\)",
    ),
    "no tokens at all": (gpt2({"input_ids": tokens(2, 0)}), r"data: input_ids has shape \(2, 0\), expected at least"),
    "no token to predict": (
        gpt2({"input_ids": tokens(2, 1)}),
        "targets: got sequences of one token, expected at least",
    ),
    "one label per sequence": (
        gpt2({"input_ids": tokens(2), "labels": Y[:2]}),
        r"targets: got shape \(2,\), expected \(seq",
    ),
    "an array": (mlp(X.numpy()), r"data: got a NumPy array, expected torch tensors; wrap it with torch.as_tensor"),
    "arrays by name": (
        gpt2({"input_ids": tokens().numpy()}),
        r"data\[0\]\['input_ids'\]: got a NumPy array, expected torch tensors; wrap it with torch.as_tensor",
    ),
    "arrays as targets": (mlp((X, Y.numpy())), r"data\[0\]\[1\]: got a NumPy array"),
    "arrays in a list": (mlp([X.numpy()]), r"data\[0\]: got a NumPy array"),
    "lists of ids": (
        gpt2({"input_ids": tokens().tolist()}),
        r"data\[0\]\['input_ids'\]: got a list, expected a tensor; .* return_tensors='pt'",
    ),
    "targets that are text": (mlp((X, "text")), "targets: got str, expected a tensor"),
    "meta tensors": (mlp((X.to("meta"), Y)), r"data: data\[0\]\[0\] is on the meta device, which holds shapes"),
    "meta targets": (mlp({"input": X, "labels": Y.to("meta")}), "data: labels is on the meta device"),
    "sparse tensors": (
        mlp((X.reshape(3, 2, 3).to_sparse(), Y)),
        r"model: Sequential could not be run on the data: .*; it was given inputs \(3, 2, 3\) sparse float64",
    ),
    "sparse tensors to be cut": (
        mlp((X.to_sparse(), Y), micro_batch=2),
        r"data: got a sparse tensor of shape \(6, 3\), which cannot be cut into smaller batches; .*\.to_dense\(\)",
    ),
    "a wrong width": (
        mlp((randn(6, 5), Y)),
        r"model: Sequential could not be run on the data: .*; it was given inputs \(6, 5\) float64, compare that",
    ),
    "a wrong name": (
        mlp({"x": X, "labels": Y}),
        r"model: Sequential could not be run on the data: .*unexpected keyword argument 'x'; it was given x \(6, 3\)",
    ),
    "a loss that fails": (
        mlp((X, Y), lambda out, batch: out @ out),
        r"loss: the given function failed: .*; it was given outputs of shape \(6, 3\) and the batch",
    ),
    "a loss that takes other arguments": (mlp((X, Y), lambda out: out.sum()), "loss: the given function failed: .*arg"),
    "a loss of PyTorch's that fails": (
        mlp((X, Y), nn.BCELoss()),
        r"loss: BCELoss failed: .*; it was given outputs \(6, 3\) and targets \(6,\)",
    ),
    "an array as loss": (mlp((X, Y), np.ones(3)), "loss: got ndarray of shape .*, expected one of 'cross_entropy'"),
    "a tensor as loss": (mlp((X, Y), torch.ones(3)), "loss: got Tensor of shape .*, expected one of 'cross_entropy'"),
    "a device that is not there": (mlp((X, Y), device="cuda:99"), "device: got 'cuda:99', which cannot be used here"),
    "no device": (mlp((X, Y), device="abacus"), "device: got 'abacus', which cannot be used here"),
    "a device without numbers": (mlp((X, Y), device="meta"), "device: got 'meta', which holds shapes and no numbers"),
    "heads that are no answer": (mlp((X, Y), heads="yes"), "heads: got 'yes', expected True or False"),
}


@pytest.mark.parametrize("case", CASES)
def test_message(case: str) -> None:
    make, message = CASES[case]
    with pytest.raises(hl.InputError, match=message) as failure:
        make()
    assert "\n" not in str(failure.value)


def test_a_later_batch_is_explained_too() -> None:
    """With the problem, where every batch is run once, or with a product."""
    data = [{"input_ids": tokens()}, {"input_ids": tokens() + 3}]
    with pytest.raises(hl.InputError, match=r"data: got the ids 3 \.\. 7 in input_ids"):
        hl.problem(hugging_face.gpt2(), data)
    problem = hl.problem(hugging_face.gpt2(), data, check=False)
    with pytest.raises(hl.InputError, match=r"data: got the ids 3 \.\. 7 in input_ids") as failure:
        hl.hessian(problem, "layer0.attn.q", method="hvp") @ randn(16)
    assert failure.value.__suppress_context__ or isinstance(failure.value.__context__, IndexError)


def test_what_the_model_raised_is_kept() -> None:
    with pytest.raises(hl.InputError) as failure:
        mlp((randn(6, 5), Y))()
    assert isinstance(failure.value.__cause__, RuntimeError)


class Hungry(nn.Module):
    """Runs out of memory."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(3, 3), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
        MemoryError(),
    ],
)
def test_a_lack_of_memory_is_not_bad_data(error: Exception) -> None:
    with pytest.raises(type(error)) as failure:
        hl.problem(Hungry(error), (X, Y), "cross_entropy")
    assert not isinstance(failure.value, hl.InputError)


def test_sparse_data_that_a_model_takes_is_taken() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return torch.sparse.mm(edges, self.layer(x))

    model, edges = scrambled(Graph().to(DOUBLE)), (randn(6, 6) > 0.5).double()
    sparse = hl.problem(model, {"x": X, "edges": edges.to_sparse(), "labels": Y}, "cross_entropy")
    expected = nnf.cross_entropy(edges @ model.layer(X), Y).detach()
    assert torch.allclose(sparse.total_loss(), expected)
    assert (hl.hessian(sparse, "layer.weight") @ randn(9)).isfinite().all()


def test_vocabulary() -> None:
    assert int(tokens().max()) == VOCAB - 1  # the ranges above
