"""The block norms of one cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessianlab.growth.measure.config import LINEAR_MLP
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.parts import LAYER_PARTS

if TYPE_CHECKING:
    from hessianlens.spectra import Estimate

BLOCKS = {"query": "q", "value": "v"}
CLOSED_FORM = "closed form"


def measure_growth(parameters: Parameters) -> Measurement:
    """Frobenius norms of the query and value blocks of every layer, or of every matrix of a linear MLP.

    A linear MLP gives the full block alone: its logits are linear in each matrix, so the full block is the outer
    product and the functional part is identically zero.
    """
    asked: Any = parameters
    return Measurement(tuple(_linear_mlp(asked) if asked["model"] == LINEAR_MLP else _transformer(asked)))


def _transformer(asked: Any) -> list[Row]:
    import torch

    from hessianlens.models import Transformer
    from hessianlens.models.adapters import problem
    from hessianlens.network import block_norms
    from hessianlens.tasks import Addition

    task = Addition()
    model = Transformer(
        layers=asked["layers"],
        d_model=asked["d_model"],
        vocab=task.vocab,
        context=task.context,
        attention=asked["attention"],
        norm=asked["norm"],
        residual_scale=asked["residual_scale"],
        mlp=asked["mlp"],
        seed=asked["weight_seed"],
        dtype=torch.float64,
    ).redraw_embeddings(asked["sigma"], asked["embedding_seed"])
    data = task.batch(asked["sequences"], seed=asked["data_seed"], carries=asked["carries"])
    names = [f"layer{layer}.attn.{short}" for layer in range(asked["layers"]) for short in BLOCKS.values()]
    # The model is the library's own: what is checked of a user's, in several passes, is known of it.
    known = problem(model, data, getattr(task, asked["loss"]), check=False, verify=False)
    norms = block_norms(
        known,
        names,
        probes=asked["probes"],
        seed=asked["probe_seed"],
        tangents=getattr(torch, asked["tangents"]),
    )
    return [
        _row(layer, block, part, norms[f"layer{layer}.attn.{short}", part])
        for layer in range(asked["layers"])
        for block, short in BLOCKS.items()
        for part in LAYER_PARTS
    ]


def _linear_mlp(asked: Any) -> list[Row]:
    import torch

    from hessianlab.growth.measure.linear_blocks import linear_block_norms
    from hessianlens.models import LinearMLP
    from hessianlens.spectra import Estimate
    from hessianlens.tasks import Addition

    task = Addition()
    model = LinearMLP(
        layers=asked["layers"],
        width=asked["d_model"],
        vocab=task.vocab,
        seed=asked["weight_seed"],
        dtype=torch.float64,
    ).redraw_embeddings(asked["sigma"], asked["embedding_seed"])
    batch = task.batch(asked["sequences"], seed=asked["data_seed"], carries=asked["carries"])
    norms = linear_block_norms(model, batch["tokens"][:, list(task.loss_positions)])
    return [_row(layer, "mlp", "full", Estimate.exactly(norm)) for layer, norm in enumerate(norms)]


def _row(layer: int, block: str, part: str, norm: Estimate) -> Row:
    method = CLOSED_FORM if norm.exact else f"{norm.probes} probes"
    return {
        "layer": layer,
        "block": block,
        "part": part,
        "value": norm.value,
        "stderr": norm.stderr,
        "method": method,
    }
