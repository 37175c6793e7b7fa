"""Random modules from a seed: how layers are wired, what goes in, what the loss is."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from tests.hostile.attention import ZooAttention
from tests.hostile.draw import Draw
from tests.hostile.layers import Again, Mlp, Norm, Recurrence
from tests.hostile.losses import CLASSES, LOSSES, NUMBERS, ODD_CLASSES, ODD_NUMBERS, with_penalty
from tests.hostile.specimen import Batch, Loss, Specimen, randn, with_random_weights

STACKS = ("layers", "layers", "blocks", "blocks", "h", "h", "stack")
MIXERS = ("attn", "attn", "self_attn", "self_attn", "attention", "attention", "mixer")
MLPS = (("up_proj", "down_proj", "gate_proj"), ("fc1", "fc2", "gate"), ("c_fc", "c_proj", "gate"), ("a", "b", "c"))
HEADS = ("lm_head", "lm_head", "head", "unembed", "finish")


class Layer(nn.Module):
    """A mixer of tokens and an MLP, with norms before, behind or nowhere, side by side or one after the other."""

    def __init__(self, draw: Draw, d: int, length: int) -> None:
        super().__init__()
        self.mixer_name = draw.of(*MIXERS)
        mixer: nn.Module | None = None
        if draw.rare("recurrence", 0.15):
            mixer = Recurrence(draw, d)
        elif draw.chance(0.75):
            mixer = ZooAttention(draw, d, length)
        if mixer is not None:
            self.add_module(self.mixer_name, mixer)
            self.norm1 = Norm(draw, d)
        self.mixes = mixer is not None
        self.has_mlp = not self.mixes or draw.chance(0.4)
        if self.has_mlp:
            self.mlp, self.norm2 = Mlp(draw, d, draw.of(*MLPS)), Norm(draw, d)
        self.order = draw.way(
            ("before", "before", "behind"), ("side by side", "twice", "length first", "scaled stream", "no stream"), 0.2
        )
        if self.order == "scaled stream":
            self.scale = nn.Parameter(torch.zeros(()))

    def _steps(self) -> list[tuple[nn.Module, nn.Module]]:
        found = []
        if self.mixes:
            found.append((self.norm1, getattr(self, self.mixer_name)))
        if self.has_mlp:
            found.append((self.norm2, self.mlp))
        return found

    def forward(self, x: Tensor) -> Tensor:
        if self.order == "side by side":
            return x + sum(step(norm(x)) for norm, step in self._steps())
        for norm, step in self._steps() * (2 if self.order == "twice" else 1):
            if self.order == "behind":
                x = norm(x + step(x))
            elif self.order == "scaled stream":
                x = x * self.scale + step(norm(x))
            elif self.order == "no stream":
                x = step(norm(x))
            elif self.order == "length first":
                x = (x.transpose(0, 1) + step(norm(x)).transpose(0, 1)).transpose(0, 1).contiguous()
            else:
                x = x + step(norm(x))
        return x


class Network(nn.Module):
    """Tokens or ids in, layers, outputs at every position."""

    def __init__(self, draw: Draw, d: int, length: int, ids: int, outputs: int, penalised: bool) -> None:
        super().__init__()
        self.stack_name, self.head_name, self.ids = draw.of(*STACKS), draw.of(*HEADS), ids
        if ids:
            self.embed_tokens = nn.Embedding(ids, d)
        self.placed = draw.chance(0.2)
        if self.placed:
            self.pos_embed = nn.Parameter(torch.zeros(length, d))
        count = draw.of(1, 1, 1, 1, 2)
        self.add_module(self.stack_name, nn.ModuleList([Layer(draw, d, length) for _ in range(count)]))
        self.final = Norm(draw, d)
        self.tied = bool(ids) and ids == outputs and draw.chance(0.3)
        if not self.tied:
            self.add_module(self.head_name, nn.Linear(d, outputs, bias=draw.chance(0.3)))
        self.ending = draw.way(
            ("plain", "plain", "tanh before"),
            ("scaled in place", "capped", "twice", "added to the inputs", "position by position"),
            0.15,
        )
        self.wiring = draw.way(
            ("in turn",), ("backwards", "dense", "by content", "both, other order with gradients", "halves"), 0.15
        )
        self.penalised = penalised
        self.again: Again | None = None
        squares = tuple(name for name, p in self.named_parameters() if tuple(p.shape) == (d, d))
        if len(squares) > 1 and draw.rare("again", 0.3, "again"):
            chosen = (draw.of(*squares), draw.of(*squares))
            self.again = Again(draw, self, chosen, d)
            self.place = draw.of("first", "last")

    def _layers(self, x: Tensor) -> Tensor:
        layers, wiring = list(getattr(self, self.stack_name)), self.wiring
        if wiring == "backwards":
            layers = layers[::-1]
        if wiring == "by content" and float(x.detach().mean()) < 0:
            layers = layers[:1] + layers
        if wiring == "both, other order with gradients" and len(layers) > 1:
            order = layers if torch.is_grad_enabled() else layers[::-1]
            found = {id(layer): layer(x) for layer in order}
            return torch.stack([found[id(layer)] for layer in layers]).prod(0) + x
        if wiring == "halves":
            first, second = x[:, : x.shape[1] // 2 + 1], x
            for layer in layers:
                first, second = layer(first), layer(second)
            return second + nnf.pad(first, (0, 0, 0, x.shape[1] - first.shape[1]))
        seen = [x]
        for layer in layers:
            seen.append(layer(torch.stack(seen).mean(0) if wiring == "dense" else seen[-1]))
        return seen[-1]

    def _head(self, x: Tensor) -> Tensor:
        return nnf.linear(x, self.embed_tokens.weight) if self.tied else getattr(self, self.head_name)(x)

    def forward(self, x: Tensor) -> Tensor:
        given = x = self.embed_tokens(x) if self.ids else x
        if self.placed:
            x = x + self.pos_embed[: x.shape[1]]
        if self.again is not None and self.place == "first":
            x = x + self.again(x)
        x = self.final(self._layers(x))
        if self.again is not None and self.place == "last":
            x = x + self.again(x)
        out = self._head(torch.tanh(x) if self.ending == "tanh before" else x)
        if self.ending == "scaled in place":
            out *= 0.7
        elif self.ending == "capped":
            out = 2 * torch.tanh(out / 2)
        elif self.ending == "twice":
            out = out + self._head(torch.sin(x))
        elif self.ending == "added to the inputs":
            out = out + given.sum(-1, keepdim=True)
        elif self.ending == "position by position":
            out = torch.stack([self._head(x[:, n]) for n in range(x.shape[1])], 1)
        if not self.penalised:
            return out
        several = torch.stack([p.square().mean() for p in self.parameters()])
        return torch.cat([out, several.square().sum().expand(len(out), 1, out.shape[-1])], 1)


def specimen(seed: int) -> Specimen:
    """The module, data and loss of a seed."""
    draw = Draw(seed)
    d, length, sequences = draw.of(3, 3, 4, 4, 4, 6), draw.number(3, 5), draw.number(1, 3)
    classes = draw.chance(0.6)
    ids = draw.number(3, 5) if draw.chance(0.3) else 0
    outputs = ids if ids and draw.chance(0.6) else draw.number(2, 4)
    penalised = draw.rare("penalty on a stack of weights", 0.08)
    network = partial(Network, draw, d, length, ids, outputs, penalised)
    model = with_random_weights(network(), seed % 1000, draw.of(0.5, 0.7, 0.9))
    data = [_batch(seed, 0, sequences, length, d, ids, outputs, classes)]
    if draw.chance(0.15):
        more = (draw.number(1, 3), draw.number(2, length))
        data.append(_batch(seed, 1, *more, d, ids, outputs, classes))
    loss = _loss(draw, classes, penalised)
    options: dict[str, Any] = {"verify": draw.chance(0.15)}  # the modules here hide no derivative from autograd
    if loss == "cross_entropy" and draw.rare("chunked logits", 0.15):
        options["logits"] = "chunked"
    return Specimen(model, data, loss, options, tuple(dict.fromkeys(draw.traits)))


def _batch(seed: int, number: int, sequences: int, length: int, d: int, ids: int, outputs: int, classes: bool) -> Batch:
    generator = torch.Generator().manual_seed(31 * seed + number)
    shape = (sequences, length)
    x = torch.randint(ids, shape, generator=generator) if ids else randn(*shape, d, seed=37 * seed + number)
    if classes:
        return x, torch.randint(outputs, shape, generator=generator)
    return x, randn(*shape, outputs, seed=41 * seed + number)


def _loss(draw: Draw, classes: bool, penalised: bool) -> Loss:
    ordinary, odd = (CLASSES, ODD_CLASSES) if classes else (NUMBERS, ODD_NUMBERS)
    usual = ("cross_entropy",) * 6 if classes else ("square",) * 4
    name = draw.way((*usual, *ordinary), tuple(odd), 0.2)
    if not penalised:
        return LOSSES.get(name, name)
    return with_penalty(LOSSES.get(name, CLASSES["smoothed"] if classes else NUMBERS["pseudo-Huber"]))
