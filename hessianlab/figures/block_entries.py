"""Figures 1 and 4 of the paper: how different the entries of a one-block Transformer's Hessian blocks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES, CARRIES

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from hessianlens.problems import Problem


ORDER = {
    "W_E": "embed",
    "W_pos": "pos",
    "W_Q": "layer0.attn.q",
    "W_K": "layer0.attn.k",
    "W_V": "layer0.attn.v",
    "W_O": "layer0.attn.o",
    "W_in": "layer0.mlp.in",
    "b_in": "layer0.mlp.in.bias",
    "W_out": "layer0.mlp.out",
    "b_out": "layer0.mlp.out.bias",
    "W_U": "unembed",
    "b_U": "unembed.bias",
}
"""Parameters in the order of the published map, and the blocks that hold them."""

ATTENTION = ("W_Q", "W_K", "W_V", "W_O")


@dataclass(frozen=True)
class Fig1Config(CheckedConfig, choices={"carries": CARRIES}):
    """Sizes and seeds.

    Attributes:
        d_model: Width of the model.
        sequences: Sequences behind the histograms.
        map_sequences: Sequences behind the maps.
        repeats: Draws of the weights, with seeds `seed`, `seed + 1`, ...; the maps are of the first.
        carries: Kind of the batch, as in `hessianlens.tasks.Addition`; the published one has none.
        pixels: Most tiles a side of a stored map.
    """

    d_model: int = 16
    sequences: int = 64
    map_sequences: int = 64
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"
    pixels: int = 480


def fig1_cells(config: Fig1Config) -> list[dict[str, Any]]:
    """One cell with the maps, then one with the exact query, key and value blocks of each draw."""
    shared = {"d_model": config.d_model, "data_seed": config.data_seed, "carries": config.carries}
    maps = {"kind": "map", "seed": config.seed, "sequences": config.map_sequences, "pixels": config.pixels, **shared}
    seeds = range(config.seed, config.seed + config.repeats)
    return [maps, *({"kind": "blocks", "seed": s, "sequences": config.sequences, **shared} for s in seeds)]


def measure_fig1(parameters: Parameters) -> Measurement:
    """Maps from matrix-free products (attention part: the closed form), or statistics of exact blocks."""
    from hessianlab.experiments.models import diagonal_blocks, toy_problem

    asked: Any = parameters
    problem = toy_problem(
        asked["d_model"], "softmax", asked["seed"], asked["sequences"], asked["data_seed"], asked["carries"]
    )
    return _maps(problem, asked["pixels"]) if asked["kind"] == "map" else diagonal_blocks(problem)


def _maps(problem: Problem, pixels: int) -> Measurement:
    import numpy as np

    from hessianlab.experiments.statistics import entry_sizes

    sizes = {name: problem.blocks[block].numel for name, block in ORDER.items()}
    whole = whole_hessian(problem)
    attention = attention_hessian_in_network(problem)
    ends = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
    same = slice(int(ends[ATTENTION[0]]) - sizes[ATTENTION[0]], int(ends[ATTENTION[-1]]))
    gap = float((whole[same, same] - attention).abs().max() / attention.abs().max())
    rows: list[Row] = [{"block": "attention", "part": "full", "gap": gap}]
    for name, end in ends.items():
        at = slice(int(end) - sizes[name], int(end))
        rows.append({"block": name, "part": "full", "entries": sizes[name], **entry_sizes(whole[at, at])})
    arrays: dict[str, np.ndarray] = {}
    for key, matrix, names in (("whole", whole, list(ORDER)), ("attention", attention, list(ATTENTION))):
        picture = pooled_map(matrix, [sizes[name] for name in names], pixels)
        arrays |= {key: picture.logs, f"{key}_sizes": picture.sizes, f"{key}_tile": np.array(picture.tile)}
    return Measurement(tuple(rows), arrays)


def whole_hessian(problem: Problem) -> Tensor:
    """The dense Hessian of all parameters in the order of `ORDER`, column block by column block."""
    import torch

    from hessianlens.network import hessian

    model_order = [block.name for block in problem.select("*")]
    columns = []
    for block in ORDER.values():
        operator = hessian(problem, "*", block, method="hvp")
        product = operator @ torch.eye(operator.shape[1], dtype=problem.dtype)
        pieces = product.split([problem.blocks[name].numel for name in model_order])
        by_name = dict(zip(model_order, pieces, strict=True))
        columns.append(torch.cat([by_name[name] for name in ORDER.values()]))
    return torch.cat(columns, dim=1)


def attention_hessian_in_network(problem: Problem, names: Sequence[str] = ATTENTION) -> Tensor:
    """The dense Hessian of the attention weights in closed form."""
    import torch

    from hessianlens.network import hessian

    def block(row: str, column: str) -> Tensor:
        return hessian(problem, ORDER[row], ORDER[column], method="exact").to_dense()

    return torch.cat([torch.cat([block(row, column) for column in names], dim=1) for row in names])


FIG1 = Experiment(
    name="fig1",
    title="The Hessian of a one-block Transformer at initialisation",
    source="The paper, Figure 1",
    question="How different in scale are a Transformer's blocks at initialisation, and are the entries of the "
    "query block two orders of magnitude below those of the value block?",
    presets={"quick": Fig1Config(map_sequences=32, repeats=10), "paper": Fig1Config()},
    cells=fig1_cells,
    measure=measure_fig1,
)


@dataclass(frozen=True, eq=False)
class PooledMap:
    """The picture of a matrix.

    Attributes:
        logs: log10 of the largest absolute entry of each tile, float32; minus infinity where all entries are zero.
        sizes: Tiles of each block along one side.
        tile: Entries along one side of a tile; 1 if nothing was pooled.
    """

    logs: np.ndarray
    sizes: np.ndarray
    tile: int


def pooled_map(matrix: Tensor, sizes: Sequence[int], pixels: int) -> PooledMap:
    """Pool a square matrix of blocks of the given sizes to about `pixels` tiles a side.

    >>> import torch
    >>> pooled_map(torch.eye(4), [3, 1], pixels=2).logs
    array([[  0., -inf, -inf],
           [-inf,   0., -inf],
           [-inf, -inf,   0.]], dtype=float32)
    """
    import numpy as np

    tile = max(1, -(-len(matrix) // pixels))
    ends = np.cumsum(sizes)
    starts = [np.arange(end - size, end, tile) for end, size in zip(ends, sizes, strict=True)]
    at = np.concatenate(starts)
    largest = np.maximum.reduceat(np.maximum.reduceat(matrix.abs().numpy(), at, axis=0), at, axis=1)
    with np.errstate(divide="ignore"):
        logs = np.log10(largest).astype(np.float32)
    return PooledMap(logs, np.array([len(s) for s in starts]), tile)


@dataclass(frozen=True)
class Fig4Config(CheckedConfig, choices={"attentions": ACTIVATION_NAMES, "carries": CARRIES}):
    """Sizes and seeds; one model a kind of attention and repeat, all on the same data."""

    attentions: tuple[str, ...] = ("softmax", "linear")
    d_model: int = 16
    batches: int = 8
    sequences: int = 8
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"


def measure_fig4(parameters: Parameters) -> Measurement:
    """Sizes of the entries of the exact diagonal blocks."""
    from hessianlab.experiments.models import diagonal_blocks, toy_problem

    asked: Any = parameters
    return diagonal_blocks(toy_problem(**asked))


FIG4 = Experiment(
    name="fig4",
    title="Entries of the query and value blocks, with softmax and without",
    source="The paper, Figure 4",
    question="Is it softmax that makes the entries of the query block so much smaller than those of the value block?",
    presets={"quick": Fig4Config(repeats=10), "paper": Fig4Config()},
    cells=grid_cells(
        ("attention", "seed", "d_model", "batches", "sequences", "data_seed", "carries"), {"attention": "attentions"}
    ),
    measure=measure_fig4,
)
