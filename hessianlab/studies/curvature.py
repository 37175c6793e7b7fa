"""What is measured along a training: losses, entropy of attention, block norms; and learning rates per block.

Entropies are those of `hessianlens.Monitor` (``entropy_share``), by the same function; here the members of an ensemble
are looked at together, and weights that are no distribution have one too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlab.experiments.statistics import log_log_slope
from hessianlab.results import Parameters, Row
from hessianlab.studies.ensemble import Ensemble
from hessianlab.studies.models import TaskData, WithGain
from hessianlab.studies.training_study import OPTIMISER_FAMILY
from hessianlens.attention import attention_entropy, first_moment
from hessianlens.models import Transformer
from hessianlens.models.adapters import problem
from hessianlens.monitor import Monitor
from hessianlens.network import block_norms
from hessianlens.problems import Block, Problem

GROUPS = ("embedding", "query and key", "value and output", "mlp", "unembedding")
"""Blocks of the Hessian that have a learning rate of their own."""

_WIDTH = 1.0
"""Rates of blocks are searched within so many powers of ten around the rate of the candidate, up and down."""

_SEARCH_SEED = 4321


def group_of(name: str) -> int:
    """The block of a parameter, by its name; norms go with what they feed.

    >>> [GROUPS[group_of(n)] for n in ("token_embedding", "blocks.0.attention.W_K", "blocks.1.norm2.weight")]
    ['embedding', 'query and key', 'mlp']
    """
    if "embedding" in name:
        return 0
    if name.rpartition(".")[2] in ("W_V", "W_O", "b_V", "b_O"):
        return 2
    if "attention" in name or "norm1" in name or "log_gain" in name:
        return 1
    return 3 if "blocks" in name else 4


def group_index(ensemble: Ensemble) -> Tensor:
    """The block of every column of the weights."""
    found = torch.empty(ensemble.weights.shape[1], dtype=torch.int64)
    for name, columns in ensemble.columns().items():
        found[columns] = group_of(name)
    return found


def candidates(parameters: Parameters) -> np.ndarray:
    """Rates of the blocks, (candidates, blocks): all the same, searched around a rate each, or queries and keys apart.

    A search has as many candidates as a grid of rates: the same budget. Its first is the middle of the grid with equal
    rates, so that it can also find that blocks do not need their own.
    """
    asked: Any = parameters
    family = OPTIMISER_FAMILY[asked["optimiser"]]
    low, high = asked[f"{family}_low"], asked[f"{family}_high"]
    grid = np.linspace(low, high, asked["rates"])
    powers = np.repeat(grid[:, None], len(GROUPS), 1)
    if asked["block_rates"] == "searched":
        drawn = np.random.default_rng(_SEARCH_SEED).uniform(-_WIDTH, _WIDTH, powers.shape)
        drawn[len(grid) // 2] = 0.0
        powers = powers + drawn
    apart = np.arange(asked["query_key_rates"]) - asked["query_key_rates"] // 2
    shifts = apart[:, None] * (np.array(GROUPS) == "query and key")
    found: np.ndarray = 10.0 ** (powers[:, None] + shifts).reshape(-1, len(GROUPS))
    return found


def rates_by_curvature(curvature: Mapping[str, float]) -> np.ndarray:
    """Factors of the rates of the blocks, inverse to the curvature of each, with geometric mean 1.

    >>> rates_by_curvature({name: 4.0 if name == "mlp" else 1.0 for name in GROUPS}).round(2)
    array([1.32, 1.32, 1.32, 0.33, 1.32])
    """
    logs = -np.log([max(curvature[name], 1e-12) for name in GROUPS])
    found: np.ndarray = np.exp(logs - logs.mean())
    return found


class Watcher:
    """Notes of an ensemble on validation data.

    Args:
        learned: The task.
        attention: Whether to look at attention too.
    """

    def __init__(self, learned: TaskData, attention: bool = True) -> None:
        self._learned, self._attention = learned, attention

    def note(self, ensemble: Ensemble) -> dict[str, Tensor]:
        """``loss``, ``accuracy``, ``attention`` (layers, `FACTS`), and ``log_gain`` if there is one, by member."""
        with torch.no_grad():
            found = ensemble.over_members(self._of_one, ensemble.weights, self._learned.validation)
            if self._attention:
                found["attention"] = torch.stack([_facts(A, X) for A, X in found.pop("seen")], 1)
        return cast("dict[str, Tensor]", found)

    def _of_one(self, model: nn.Module, tokens: Tensor) -> dict[str, Any]:
        logits = model(tokens)
        found: dict[str, Any] = {
            "loss": self._learned.task.cross_entropy(logits, tokens),
            "accuracy": self._learned.right(logits, tokens),
        }
        if self._attention:
            found["seen"] = _seen(model, tokens)
        return {**found, "log_gain": model.log_gain.clone()} if isinstance(model, WithGain) else found


FACTS = ("entropy", "moment1", "moment2")
"""What is noted of the attention of a layer, in this order."""


def attention_facts(model: nn.Module, tokens: Tensor) -> Tensor:
    """By layer, means over rows and heads of three numbers; see `FACTS`.

    Entropy is that over the one of equal weights on all visible keys, 1 if uniform and 0 if one-hot; weights that are
    no distribution are taken by their sizes, each row divided by its sum. Moments are the length of the mean token that
    a row sees, ``|M_1|``, and the trace of their covariance, ``tr M_2``.
    """
    with torch.no_grad():
        return torch.stack([_facts(A[None], X[None])[0] for A, X in _seen(model, tokens)])


def _seen(model: nn.Module, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """By layer, weights (B, h, L, L) and the tokens (B, L, d) that they mix."""
    inner = model.model if isinstance(model, WithGain) else cast(Transformer, model)
    changed = model.effective() if isinstance(model, WithGain) else {}
    found: list[tuple[Tensor, Tensor]] = functional_call(
        _AttentionOfLayers(inner), {f"model.{name}": weight for name, weight in changed.items()}, (tokens,)
    )
    return found


class _AttentionOfLayers(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        stream, found = self.model.embed(tokens), []
        for block in self.model.blocks:
            layer: Any = block
            X = layer.attention_input(stream)
            found.append((layer.attention.weights(X), X))
            stream = layer(stream)
        return found


def _facts(A: Tensor, X: Tensor) -> Tensor:
    """`FACTS` by member, of weights (m, B, h, L, L) and tokens (m, B, L, d); not a number where weights are not."""
    members = A.shape[0]
    sound = (A.isfinite().reshape(members, -1).all(1) & X.isfinite().reshape(members, -1).all(1))[:, None]
    A, X = (torch.where(sound[(...,) + (None,) * (t.ndim - 2)], t, 0) for t in (A, X))
    sizes = A.abs()
    total = sizes.sum(-1, keepdim=True)
    rows = attention_entropy(sizes / torch.where(total == 0, 1, total))
    equal = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype).log()
    tokens = X.unsqueeze(-3).expand(*A.shape[:-2], *X.shape[-2:])
    squares = first_moment(A, tokens).square().sum(-1)
    seen = (A @ tokens.square().sum(-1, keepdim=True))[..., 0]
    spread = seen - 2 * squares + A.sum(-1) * squares
    means = [numbers.reshape(members, -1).mean(1) for numbers in (rows / equal.mean(), squares.sqrt(), spread)]
    return torch.where(sound, torch.stack(means, 1), torch.nan)


SEQUENCES = 16
"""Of the validation data, that curvature is measured on."""

PARTS = ("full", "ggn", "functional")

SCALES = {"small": (1e-5, 10**-4.5, 1e-4), "here": (0.5, 1.0, 2.0)}
"""Factors of the embeddings at which growth is measured, by the name of the range."""

_PROBES = 8


def curvature_problem(model: nn.Module, learned: TaskData) -> Problem:
    """The task's loss on a few sequences, in double precision; the model itself is left alone."""
    data = {"tokens": learned.validation[:SEQUENCES]}
    # the model is the library's own: what is checked of a user's is known of it
    return problem(copy.deepcopy(model).double(), data, learned.task.cross_entropy, check=False, verify=False)


class MonitoredModels:
    """The models of the reported seeds, each with the monitor that users get, which looks at them along training."""

    def __init__(self, models: Mapping[int, nn.Module], learned: TaskData) -> None:
        self._models = {seed: copy.deepcopy(model).double() for seed, model in models.items()}
        data = {"tokens": learned.validation[:SEQUENCES]}
        self._monitors = {}
        for seed, model in self._models.items():
            known = problem(model, data, learned.task.cross_entropy, check=False, verify=False)
            self._monitors[seed] = Monitor(
                known,
                [block.name for block in _matrices(known)],
                every=1,
                overhead=None,
                quantities=("norm", "gradient"),
                whole=False,
                probes=_PROBES,
                steps=2,
            )

    def look(self, step: int, ensemble: Ensemble) -> list[Row]:
        """Norm, root mean square eigenvalue and gradient of each matrix's own block; none of what diverged."""
        rows: list[Row] = []
        for member, (seed, monitor) in enumerate(self._monitors.items()):
            if not bool(ensemble.weights[member].isfinite().all()):
                continue
            ensemble.load(member, self._models[seed])
            found = monitor.measure(step).numbers
            for block in monitor.blocks:
                numbers = found[block.name]
                norm = numbers["norm"].value
                sizes = {"frobenius": norm, "rms": norm / math.sqrt(block.numel), "gradient": numbers["gradient"].value}
                rows.append({"stage": "curvature", "seed": seed, "step": step, "block": block.name, **sizes})
        return rows


def growth_exponents(known: Problem, names: Sequence[str]) -> list[Row]:
    """Powers with which the norms of blocks grow when the embeddings are scaled.

    ``range`` is "small" (embeddings at least ten thousand times smaller than they are: the limit that theory speaks of;
    with a norm it lies where the norm's epsilon exceeds the variance of a token, which no model in use meets) or "here"
    (from half to twice as large: what the model itself would feel). The power is None where the block vanishes.
    """
    rows: list[Row] = []
    for where, scales in SCALES.items():
        found = [block_norms(_scaled(known, s), names, PARTS, probes=_PROBES, seed=0) for s in scales]
        for name in names:
            for part in PARTS:
                slope = log_log_slope(scales, [norms[name, part].value for norms in found])
                kept = None if slope is None or not math.isfinite(slope) else slope
                rows.append({"block": name, "part": part, "range": where, "exponent": kept})
    return rows


def _scaled(known: Problem, scale: float) -> Problem:
    """The problem with both embeddings times a factor."""
    tables = {name: scale * value for name, value in known.params.items() if group_of(name) == 0}
    return replace(known, params={**known.params, **tables})


def mean_curvature(model: nn.Module, learned: TaskData) -> dict[str, float]:
    """Root mean square eigenvalue of each group of blocks; what couples two matrices of a group is left out."""
    known = curvature_problem(model, learned)
    blocks = _matrices(known)
    norms = block_norms(known, [block.name for block in blocks], ("full",), probes=_PROBES, seed=0)
    squares, counts = dict.fromkeys(GROUPS, 0.0), dict.fromkeys(GROUPS, 0)
    for block in blocks:
        group = GROUPS[group_of(block.parameter)]
        squares[group] += norms[block.name, "full"].value ** 2
        counts[group] += block.numel
    return {group: math.sqrt(squares[group] / counts[group]) for group in GROUPS}


def _matrices(known: Problem) -> list[Block]:
    """Blocks of matrices; biases and gains are left out."""
    return [block for block in known.blocks.values() if len(block.shape) == 2]
