"""Values of every kind, none of them large: what a call may be given by mistake."""

from __future__ import annotations

import atexit
import math
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.inspect.learning_rates import Group, write_groups


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@cache
def layer() -> hl.SelfAttention:
    return hl.SelfAttention.random(3, 2, dtype=torch.float64)


@cache
def hessian() -> hl.layer.AttentionHessian:
    return hl.attention_hessian(layer(), randn(4, 3), hl.SquareLoss(randn(4, 3, seed=1)))


@cache
def task() -> hl.tasks.Addition:
    return hl.tasks.Addition(1)


def toy(**options: Any) -> hl.models.Transformer:
    sizes = {"layers": 1, "d_model": 4, "d_mlp": 3, "context": 6, "dtype": torch.float64}
    return hl.models.Transformer(**{**sizes, **options})


@cache
def problem() -> Any:
    return hl.problem(toy(), task().batch(2, seed=0), task().cross_entropy)


@cache
def mlp_problem() -> Any:
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    batches = [(randn(4, 3), torch.tensor([0, 1, 1, 0])), (randn(1, 3), torch.tensor([1]))]
    return hl.problem(model, batches, "cross_entropy")


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(mlp_problem().source.parameters(), lr=0.1)


def monitor() -> hl.Monitor:
    found = hl.Monitor(mlp_problem(), optimizer=sgd(), quantities=("top", "edge"), probes=2, steps=2)
    found.measure(1, loss=0.7)
    return found


def linear() -> nn.Module:
    return nn.Linear(3, 2).double()


@cache
def groups_file() -> Path:
    """Learning rates for `linear`, as a file that lasts as long as this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    write_groups([Group(0.1, "mlp", ("weight", "bias"), "all alike")], Path(folder) / "groups.json")
    return Path(folder) / "groups.json"


def symmetric(n: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    found = randn(n, n)
    return (found + found.T).to(dtype)


def _raise(*args: object) -> None:
    raise ZeroDivisionError("a function of the user")


def _spoiled(value: float) -> Tensor:
    found = randn(4, 3)
    found[1, 2] = value
    return found


class Lookalike:
    """Has the attributes of an operator and none of its manners."""

    shape, dtype, device = (5, 5), torch.float64, torch.device("cpu")

    def __matmul__(self, other: object) -> object:
        return "product"


ZOO: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "2": lambda: 2,
    "3": lambda: 3,
    "7": lambda: 7,
    "-1": lambda: -1,
    "10**12": lambda: 10**12,
    "2**63": lambda: 2**63,
    "10**30": lambda: 10**30,
    "-10**30": lambda: -(10**30),
    "0.5": lambda: 0.5,
    "-0.5": lambda: -0.5,
    "1e300": lambda: 1e300,
    "1e-300": lambda: 1e-300,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "''": lambda: "",
    "'softmax'": lambda: "softmax",
    "'nonsense'": lambda: "nonsense",
    "'layer0.attn.q'": lambda: "layer0.attn.q",
    "'re:('": lambda: "re:(",
    "'*'": lambda: "*",
    "'two\\nlines'": lambda: "two\nlines",
    "b'x'": lambda: b"x",
    "()": lambda: (),
    "(1, 2)": lambda: (1, 2),
    "('Q', 'K')": lambda: ("Q", "K"),
    "[]": lambda: [],
    "[1, 2]": lambda: [1, 2],
    "['a', None]": lambda: ["a", None],
    "[[1.0]]": lambda: [[1.0]],
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{1: tensor}": lambda: {1: randn(4, 3)},
    "{'Q': tensor}": lambda: {"Q": randn(3, 2)},
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "slice": lambda: slice(None),
    "slice of numbers": lambda: slice(0, 2),
    "generator": lambda: (x for x in range(2)),
    "empty generator": lambda: iter(()),
    "object": object,
    "class": lambda: int,
    "Ellipsis": lambda: ...,
    "identity function": lambda: lambda x: x,
    "function of nothing": lambda: lambda: None,
    "function of anything": lambda: lambda *args, **kwargs: None,
    "failing function": lambda: _raise,
    "sum": lambda: torch.sum,
    "float64": lambda: torch.float64,
    "float16": lambda: torch.float16,
    "float8": lambda: torch.float8_e4m3fn,
    "int64": lambda: torch.int64,
    "complex64": lambda: torch.complex64,
    "device": lambda: torch.device("cpu"),
    "'cuda:99'": lambda: "cuda:99",
    "0-d tensor": lambda: torch.tensor(1.5, dtype=torch.float64),
    "vector": lambda: randn(4),
    "vector of 5": lambda: randn(5),
    "vector of 6": lambda: randn(6),
    "vector of 0": lambda: randn(0),
    "matrix": lambda: randn(4, 3),
    "matrix, 6x2": lambda: randn(6, 2),
    "square matrix": lambda: randn(3, 3),
    "symmetric matrix": symmetric,
    "0x0 matrix": lambda: randn(0, 0),
    "3x0 matrix": lambda: randn(3, 0),
    "zero matrix": lambda: torch.zeros(5, 5, dtype=torch.float64),
    "batch": lambda: randn(2, 4, 3),
    "4-d tensor": lambda: randn(2, 2, 4, 3),
    "float32": lambda: randn(4, 3, dtype=torch.float32),
    "half": lambda: randn(4, 3, dtype=torch.float16),
    "half matrix": lambda: symmetric(dtype=torch.float16),
    "bfloat16": lambda: randn(4, 3, dtype=torch.bfloat16),
    "complex tensor": lambda: randn(4, 3) + 1j * randn(4, 3, seed=1),
    "complex matrix": lambda: symmetric() + 0j,
    "ids": lambda: torch.tensor([[0, 1, 2], [3, 4, 5]]),
    "ids out of range": lambda: torch.tensor([[0, 1, 99], [3, -4, 5]]),
    "classes": lambda: torch.tensor([0, 1, 2, 1]),
    "ignored classes": lambda: torch.full((4,), -100),
    "integer matrix": lambda: torch.ones(5, 5, dtype=torch.int64),
    "bool matrix": lambda: torch.ones(4, 4, dtype=torch.bool),
    "no bool": lambda: torch.zeros(4, 4, dtype=torch.bool),
    "nan tensor": lambda: _spoiled(math.nan),
    "inf tensor": lambda: _spoiled(math.inf),
    "nan matrix": lambda: torch.full((5, 5), math.nan, dtype=torch.float64),
    "huge numbers": lambda: 1e300 * randn(4, 3),
    "sparse": lambda: randn(4, 3).to_sparse(),
    "sparse matrix": lambda: symmetric().to_sparse(),
    "csr matrix": lambda: symmetric().to_sparse_csr(),
    "meta": lambda: torch.empty(4, 3, device="meta", dtype=torch.float64),
    "meta matrix": lambda: torch.empty(5, 5, device="meta", dtype=torch.float64),
    "with grad": lambda: randn(4, 3).requires_grad_(),
    "matrix with grad": lambda: symmetric().requires_grad_(),
    "transposed": lambda: randn(3, 4).T,
    "parameter": lambda: nn.Parameter(randn(4, 3)),
    "list of tensors": lambda: [randn(4, 3), randn(3, 2)],
    "array": lambda: np.eye(3),
    "integer array": lambda: np.arange(6).reshape(2, 3),
    "objects in an array": lambda: np.array([None, "a"], dtype=object),
    "numpy number": lambda: np.float64(0.5),
    "numpy whole number": lambda: np.int64(3),
    "Linear": lambda: nn.Linear(3, 2).double(),
    "empty module": lambda: nn.Sequential(),
    "meta module": lambda: nn.Linear(3, 2, device="meta"),
    "Transformer": toy,
    "batch of tokens": lambda: task().batch(2, seed=1),
    "problem": problem,
    "problem of an MLP": mlp_problem,
    "layer": layer,
    "causal layer": lambda: hl.SelfAttention.random(3, 2, dtype=torch.float64, causal=True),
    "AttentionHessian": hessian,
    "operator": lambda: hessian().full["Q", "Q"],
    "operator, not square": lambda: hessian().full["Q", "V"],
    "grid": lambda: hessian().full,
    "matrix-free operator": lambda: hl.hessian(mlp_problem(), "0.weight"),
    "lookalike": Lookalike,
    "lookalike class": lambda: Lookalike,
    "Estimate": lambda: hl.spectra.Estimate(1.0, 0.1, 10, 0, "hutchinson"),
    "exact Estimate": lambda: hl.spectra.Estimate.exactly(2.0),
    "density": lambda: hl.density(symmetric()),
    "loss": lambda: hl.SquareLoss(randn(4, 3)),
    "activation": lambda: hl.attention.activations.Softmax(),
    "block": lambda: next(iter(problem().blocks.values())),
}
"""Name -> maker; a fresh value for every call, as a call might change it."""
