"""Exact norms of blocks in front of other attention layers: the first layer of several, and an embedding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.func import functional_call

import hessianlens as hl
from benchmarks.network_peers import Loss
from benchmarks.network_settings import Scaled, Setting
from hessianlens.network.base import thresholds

BY_HVPS = "ours, by HVPs"
AT_ONCE = 32
"""HVPs that the vectorised peer makes in one pass."""
RTOL = 1e-8
"""Relative difference up to which norms of two competitors agree."""
MAPS = "QKVO"
GOAL = 2.0
"""Ratio to the fastest peer."""


@dataclass(frozen=True)
class Size:
    """Sizes of a Transformer whose first layer is asked about, and of its batch.

    Attributes:
        maps: The maps whose blocks are asked for.
        one_by_one: Whether a peer makes its HVPs one after the other too, which takes longest.
    """

    layers: int
    width: int
    heads: int
    length: int
    sequences: int
    norm: str | None = None
    mlp: bool = True
    maps: str = MAPS
    one_by_one: bool = True


SIZES = {
    "attention": Size(2, 32, 1, 16, 4, mlp=False),
    "mlp": Size(2, 32, 4, 16, 4),
    "mlp_large": Size(2, 64, 4, 32, 2, maps="QO", one_by_one=False),
    "deep": Size(4, 32, 4, 16, 4, norm="pre", one_by_one=False),
}
TITLES = {
    "attention": "Norms of queries, keys, values and outputs of the first of two attention layers",
    "mlp": "Norms of queries, keys, values and outputs of the first of two layers with MLPs",
    "mlp_large": "Norms of queries and outputs of the first of two layers, twice as wide and as long",
    "deep": "Norms of queries, keys, values and outputs of the first of four layers with norms",
}
VOCABULARY = 16
ROUNDS = {"attention": 5, "mlp": 3, "mlp_large": 2, "deep": 2}


def first_layer(name: str) -> Setting:
    """Norms of H, G and H - G of queries, keys, values and output projection of the first layer, exactly."""

    def setting(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
        size = SIZES[name]
        if tiny:
            size = replace(size, layers=2, width=4, heads=min(2, size.heads), length=4, sequences=2)
        model = hl.models.Transformer(
            size.layers,
            size.width,
            size.heads,
            vocab=VOCABULARY,
            context=size.length,
            norm=size.norm,
            mlp=size.mlp,
            mlp_activation="gelu",
            dtype=torch.float64,
        )
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(VOCABULARY, (size.sequences, size.length), generator=generator)
        batch, names = {"tokens": tokens}, [f"layer0.attn.{x.lower()}" for x in size.maps]

        def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
            return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["tokens"][:, 1:].flatten())

        def peer(at_once: int) -> Callable[[], Tensor]:
            return lambda: torch.stack([_norms_of_map(model, batch, loss, x, at_once) for x in size.maps])

        sizes = {"layers": size.layers, "d": size.width, "heads": size.heads, "L": size.length}
        sizes |= {"sequences": size.sequences, "blocks": len(size.maps), "parts": 3}
        runs = _competitors(model, batch, loss, names, peer, "at the outputs of each map")
        if not size.one_by_one:
            del runs[_peer_name("at the outputs of each map", 1)]
        return runs, sizes | {"dtype": "float64"}

    return setting


def embedding(tiny: bool) -> tuple[dict[str, Scaled], dict[str, object]]:
    """Norms of H, G and H - G of the token embedding of a one-layer model on the addition task, exactly."""
    width, sequences = (4, 2) if tiny else (32, 4)
    task = hl.tasks.Addition()
    model = hl.models.Transformer(d_model=width, dtype=torch.float64)
    batch = task.batch(sequences, seed=1234, carries="none")

    def peer(at_once: int) -> Callable[[], Tensor]:
        return lambda: _norms_of_table(model, batch, task.cross_entropy, at_once)[None]

    sizes = {"layers": 1, "d": width, "L": task.context, "sequences": sequences, "words": task.vocab, "blocks": 1}
    return _competitors(model, batch, task.cross_entropy, ["embed"], peer, "at the table"), sizes | {
        "parts": 3,
        "dtype": "float64",
    }


def _competitors(
    model: nn.Module,
    batch: dict[str, Tensor],
    loss: Loss,
    names: list[str],
    peer: Callable[[int], Callable[[], Tensor]],
    where: str,
) -> dict[str, Scaled]:
    problem = hl.problem(model, batch, loss)

    def ours() -> Tensor:
        norms = hl.block_norms(replace(problem), names, method="exact")
        values = [[norms[name, part].value for part in ("full", "ggn", "functional")] for name in names]
        return torch.tensor(values, dtype=torch.float64)

    def by_hvps() -> Tensor:
        with _nothing_backpropagated():
            return ours()

    return {
        "ours": Scaled(ours),
        BY_HVPS: Scaled(by_hvps),
        **{_peer_name(where, at_once): Scaled(peer(at_once)) for at_once in (1, AT_ONCE)},
    }


def _peer_name(where: str, at_once: int) -> str:
    return f"kept graph {where}, " + ("one HVP after the other" if at_once == 1 else f"{at_once} HVPs at once")


@contextmanager
def _nothing_backpropagated() -> Iterator[None]:
    """A scope in which the curvature at coupled positions is found by HVPs, however many."""
    before = thresholds.BACKPROPAGATION_MIN_HVPS
    thresholds.BACKPROPAGATION_MIN_HVPS = math.inf
    try:
        yield
    finally:
        thresholds.BACKPROPAGATION_MIN_HVPS = before


def check(outputs: Mapping[str, object]) -> None:
    """All competitors give the same norms."""
    ours = outputs["ours"]
    assert isinstance(ours, Tensor)
    for name, found in outputs.items():
        assert isinstance(found, Tensor)
        # A part that is zero to rounding is compared with the norm of the whole block.
        apart = ((found - ours).abs() / ours[:, :1].clamp(min=1e-300)).max().item()
        assert apart <= RTOL, f"{name} differs from ours by {apart:.1e} of the norm of the block"


def _norms_of_map(model: nn.Module, batch: dict[str, Tensor], loss: Loss, name: str, at_once: int) -> Tensor:
    """Norms of a map of the first layer, from the curvature at its outputs and from its inputs.

    ``H = sum_ij x_i x_j^T (x) C_ij`` over the positions of each sequence.
    """
    block, tokens = model.blocks[0], batch["tokens"]
    with torch.no_grad():
        inputs = block.attention_input(model.embed(tokens))
        inputs = block.attention.head_outputs(inputs) if name == "O" else inputs
    bias = f"b_{name}"
    # A bias per sequence and position shifts the outputs of the map.
    start = getattr(block.attention, bias).detach().expand(*inputs.shape[:2], -1).clone()
    parts = _curvature(model, batch, loss, f"blocks.0.attention.{bias}", start, at_once)
    return torch.stack([_block_from_outputs(C, inputs).norm() for C in parts])


def _block_from_outputs(C: Tensor, inputs: Tensor) -> Tensor:
    """The block from ``C``, ``[sequence, position, output, position, output]``, and inputs."""
    rows, columns = C.shape[2], C.shape[4]
    half = inputs.mT @ C.flatten(2)
    half = half.unflatten(2, (rows, -1, columns)).movedim(3, 1).flatten(0, 1).flatten(1)  # [position, (i, output, j)]
    return inputs.flatten(0, 1).T @ half


def _norms_of_table(model: nn.Module, batch: dict[str, Tensor], loss: Loss, at_once: int) -> Tensor:
    """Norms of the token embedding, whose rows are fewer than the positions of a sequence."""
    start = model.token_embedding.detach().clone()[None]
    parts = _curvature(model, batch, loss, "token_embedding", start, at_once)
    return torch.stack([C.norm() for C in parts])


def _curvature(
    model: nn.Module, batch: dict[str, Tensor], loss: Loss, name: str, start: Tensor, at_once: int
) -> tuple[Tensor, Tensor, Tensor]:
    """H, G and H - G with respect to a tensor in place of a parameter, everything else frozen.

    One pass through the graph of ``J^T u`` gives a column of H - G and, as the derivative with respect to u, one of J,
    for all sequences at once; ``G = J^T C J`` is then one matrix product.

    Args:
        model: Of tokens.
        batch: With "tokens".
        loss: Of outputs and batch.
        name: The parameter.
        start: The tensor, ``[sequence, ...]``; a single one if all sequences share it.
        at_once: HVPs per pass.
    """
    tokens, weights = batch["tokens"], {key: p.detach() for key, p in model.named_parameters()}
    at = start.requires_grad_()
    outputs = functional_call(model, weights | {name: at if len(at) > 1 else at[0]}, (tokens,))
    point = outputs.detach().requires_grad_()
    (slope,) = grad(loss(point, batch), point, create_graph=True)
    u = slope.detach().requires_grad_()
    (vjp,) = grad(outputs, at, u, create_graph=True)
    one = torch.eye(start[0].numel(), dtype=start.dtype).reshape(-1, 1, *start.shape[1:])
    rests, tangents, curved = [], [], []
    for part in one.expand(-1, *start.shape).split(at_once):
        batched, v = (True, part) if at_once > 1 else (False, part[0])
        rest, tangent = grad(vjp, [at, u], v, retain_graph=True, is_grads_batched=batched)
        (bent,) = grad(slope, point, tangent, retain_graph=True, is_grads_batched=batched)
        for columns, found in ((rests, rest), (tangents, tangent), (curved, bent)):
            columns.append(found if batched else found[None])
    sequences, count = len(start), start[0].numel()
    functional = torch.cat(rests).flatten(2).movedim(0, 2)  # [sequence, row, column]
    if sequences > 1:
        J, CJ = (torch.cat(columns).flatten(2).movedim(0, 2) for columns in (tangents, curved))
    else:
        J, CJ = (torch.cat(columns).flatten(1).T[None] for columns in (tangents, curved))
    ggn = J.mT @ CJ
    shape = (sequences, *start.shape[1:], *start.shape[1:])
    assert functional.shape == (sequences, count, count)
    return (ggn + functional).reshape(shape), ggn.reshape(shape), functional.reshape(shape)


def settings() -> Iterator[tuple[str, str, Setting, int]]:
    """Name, title, setting and rounds of every benchmark."""
    for name, title in TITLES.items():
        yield f"first_layer_{name}", title, first_layer(name), ROUNDS[name]
    yield "embedding_one_layer", "Norms of the embedding of a one-layer model", embedding, 9
