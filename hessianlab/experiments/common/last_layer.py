"""The exact query, key and value blocks of a problem's last attention layer: statistics and histograms of entries."""

from __future__ import annotations

from hessianlab.experiments.common.entries import EDGES, entry_sizes, log_histogram
from hessianlab.experiments.common.toy import ATTENTION_BLOCKS
from hessianlab.results import Measurement, Row
from hessianlens.errors import InputError
from hessianlens.network.last_attention.exact import exact_attention
from hessianlens.parts import LAYER_PARTS, part_name
from hessianlens.problems import Problem


def diagonal_blocks(problem: Problem) -> Measurement:
    """One row a block and part, and the histogram of each full block under its own name, bins under ``edges``."""
    exact = exact_attention(problem)
    if isinstance(exact, str):
        raise InputError(
            f"problem: got a model without closed form ({exact}), expected one such as models.Transformer."
        )
    rows: list[Row] = []
    arrays = {"edges": EDGES}
    for name, place in ATTENTION_BLOCKS.items():
        block = problem.blocks[place]
        for part in LAYER_PARTS:
            matrix = exact.operator(part_name(part), block, block).to_dense()
            rows.append({"block": name, "part": part, **entry_sizes(matrix)})
            if part == "full":
                arrays[name] = log_histogram(matrix)
    return Measurement(tuple(rows), arrays)
