"""Norms of queries and keys, and sinks: what they leave of the gap between the blocks of queries and of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer

NORMS = {"none": (False, False), "queries": (True, False), "keys": (False, True), "both": (True, True)}
"""Which of queries and keys are normalised."""

BLOCKS = ("QQ", "KK", "VV")
PARTS = ("outer", "functional", "full")
SCALES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Of the tokens."""
GAINS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of both norms."""
LOGITS = (-4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0)
"""Of a sink."""


@dataclass(frozen=True)
class QueryKeyNormConfig(CheckedConfig, least={"length": 3}):
    """Sizes and seeds."""

    d_model: int = 8
    d_k: int = 4
    length: int = 12
    repeats: int = 30
    seed: int = 0


def measure_query_key_norm(parameters: Parameters) -> Measurement:
    """Norms of the diagonal blocks along the scale of the tokens, the gain, and the logit of a sink."""
    asked: Any = parameters
    rows: list[Row] = []
    for norm in NORMS:
        for scale in SCALES:
            rows += _block_rows(_layer(asked, norm, scale=scale), scan="tokens", norm=norm, at=scale)
    for gain in GAINS:
        rows += _block_rows(_layer(asked, "both", gain=gain), scan="gain", norm="both", at=gain)
    for logit in (None, *LOGITS):
        setting = _layer(asked, "none", sink=logit)
        rows += _block_rows(setting, scan="sink", norm="none", at=logit)
        rows += _moment_rows(setting, logit)
    return Measurement(tuple(rows), {})


def _layer(asked: Any, norm: str, *, scale: float = 1.0, gain: float = 1.0, sink: float | None = None) -> LoneLayer:
    """A lone layer with the same weights, tokens and targets whatever is normalised."""
    from dataclasses import replace

    import torch

    from hessianlab.experiments.models import lone_layer
    from hessianlens.attention import QueryKeyNorm

    found = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"], token_std=scale)
    one = QueryKeyNorm("rms", gain=torch.full((asked["d_k"],), gain, dtype=torch.float64), eps=1e-12)
    queries, keys = (one if normed else None for normed in NORMS[norm])
    return replace(found, layer=replace(found.layer, query_norm=queries, key_norm=keys, sink=sink))


def _block_rows(setting: LoneLayer, scan: str, norm: str, at: float | None) -> list[Row]:
    H = setting.hessian()
    return [
        {
            "scan": scan,
            "norm": norm,
            "at": at,
            "quantity": f"{part} {block}",
            "value": float(H.part(part)[block[0], block[1]].frobenius_norm()),
        }
        for part in PARTS
        for block in BLOCKS
    ]


def _moment_rows(setting: LoneLayer, logit: float | None) -> list[Row]:
    """Mean sizes of the first two moments of a row of attention, its sink included, and what the sink takes."""
    from hessianlens.attention import first_moment, second_moment

    state = setting.layer.attend(setting.X[None])
    A, tokens = state.weights[0], state.tokens[0]
    taken = 0.0 if logit is None else float(A[:, -1].mean())
    found = {
        "first moment": float(first_moment(A, tokens).norm(dim=-1).mean()),
        "second moment": float(_traces(second_moment(A, tokens)).mean()),
        "sink": taken,
    }
    return [{"scan": "sink", "norm": "none", "at": logit, "quantity": name, "value": v} for name, v in found.items()]


def _traces(moments: Tensor) -> Tensor:
    return moments.diagonal(dim1=-2, dim2=-1).sum(-1)


QUERY_KEY_NORM = Experiment(
    name="query_key_norm",
    title="Norms of queries and keys, and sinks",
    source="beyond the paper: attention of 2025",
    question="Does QK-norm close the gap between the blocks of queries and of values, what do its gains do, what "
    "remains of the powers of the tokens' scale, and what does a sink do to the moments?",
    presets={"quick": QueryKeyNormConfig(repeats=5), "paper": QueryKeyNormConfig()},
    cells=grid_cells(("seed", "d_model", "d_k", "length")),
    measure=measure_query_key_norm,
)
