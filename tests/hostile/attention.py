"""Attention as users write it: projections, heads, scores and what is done beside them, drawn from a seed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from tests.hostile.draw import Draw
from tests.hostile.ways import ODD, ORDINARY, WAYS

NAMES = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value", "dense"),
    ("to_q", "to_k", "to_v", "to_out"),
    ("W_Q", "W_K", "W_V", "W_O"),
    ("q", "k", "v", "o"),
    ("alpha", "beta", "gamma", "delta"),
)
"""What the four maps are called; the last ones are found by nobody."""

SIDES = (
    "side path around the output projection",
    "weights on the tokens",
    "entropy gate",
    "query shortcut",
    "key shortcut",
    "value shortcut",
    "scores in a gate",
    "heads read twice",
    "log-sum-exp of the scores",
    "queries in the scores",
    "keys in the scores",
    "talking heads",
    "values after the weights",
    "weights squared in the output",
    "loss of the weights in the first feature",
)


class Maps(nn.Module):
    """The projections of an attention layer: how their weights are held and act."""

    def __init__(self, draw: Draw, d: int, widths: tuple[int, int, int], out: int) -> None:
        super().__init__()
        self.names, self.widths = draw.of(*NAMES, *NAMES[:2]), widths
        raw = self.names[0].startswith("W_") or draw.chance(0.2)
        self.style = "raw" if raw else "linear"
        if draw.rare("one parameter, sliced", 0.12):
            self.style = "sliced"
        elif draw.rare("q, k, v concatenated when they run", 0.12):
            self.style = "joined"
        elif not raw and draw.chance(0.2):
            self.style = "packed"
        self.ways = [draw.way(tuple(ORDINARY), tuple(ODD), 0.1 if raw else 0.0, "way") for _ in range(4)]
        biased = draw.chance(0.4)
        total = sum(widths)
        if self.style == "sliced":
            self.W = nn.Parameter(torch.zeros(d, total))
        elif self.style == "packed":
            self.qkv_proj = nn.Linear(d, total, bias=biased)
        for name, width in zip(self.names[:3], widths, strict=True):
            if self.style in ("raw", "joined"):
                self.register_parameter(name, nn.Parameter(torch.zeros(d, width)))
            elif self.style == "linear":
                self.add_module(name, nn.Linear(d, width, bias=biased))
        if self.style in ("raw", "joined"):
            self.register_parameter(self.names[3], nn.Parameter(torch.zeros(out, d)))
        else:
            self.add_module(self.names[3], nn.Linear(out, d, bias=biased))
        square = len({d, *widths, out}) == 1
        self.tied = square and draw.rare("keys share the queries' weight", 0.1)
        self.back = square and draw.rare("the output projection is the values' transpose", 0.1)

    def _weight(self, number: int) -> Tensor:
        held = getattr(self, self.names[number])
        return held.weight.T if isinstance(held, nn.Linear) else held

    def operands(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.style == "packed":
            if memory is x:
                return self.qkv_proj(x).split(self.widths, -1)
            return tuple(  # type: ignore[return-value]
                self.qkv_proj(y).split(self.widths, -1)[n] for n, y in enumerate((x, memory, memory))
            )
        if self.style == "sliced":
            starts = (0, self.widths[0], self.widths[0] + self.widths[1])
            pairs = zip((x, memory, memory), starts, self.widths, strict=True)
            q, k, v = (y @ self.W[:, a : a + w] for y, a, w in pairs)
            return q, k, v
        if self.style == "joined" and memory is x:
            return (x @ torch.cat([self._weight(n) for n in range(3)], 1)).split(self.widths, -1)
        if self.style == "linear" and not self.tied:
            q, k, v = (getattr(self, name)(y) for name, y in zip(self.names, (x, memory, memory), strict=False))
            return q, k, v
        sources = (0, 0, 2) if self.tied else (0, 1, 2)
        q, k, v = (
            WAYS[self.ways[n]](y, self._weight(source))
            for n, (y, source) in enumerate(zip((x, memory, memory), sources, strict=True))
        )
        return q, k, v

    def out(self, z: Tensor) -> Tensor:
        if self.back and self.style in ("raw", "linear"):
            return z @ self._weight(2).T + 0.1 * z @ self._weight(3)
        if isinstance(getattr(self, self.names[3]), nn.Linear):
            return getattr(self, self.names[3])(z)
        return WAYS[self.ways[3]](z, self._weight(3))


class ZooAttention(Maps):
    """Attention drawn from a seed."""

    def __init__(self, draw: Draw, d: int, length: int) -> None:
        side = draw.of(*SIDES) if draw.rare("side", 0.3, "side") else ""
        if side:
            draw.traits[-1] = side
        heads = 2 if d % 2 == 0 and draw.chance(0.5) else 1
        e = d // heads
        kv = 1 if heads > 1 and draw.chance(0.25) else heads
        super().__init__(draw, d, (heads * e, kv * e, kv * e), heads * e)
        self.heads, self.kv, self.e = heads, kv, e
        self.layout = draw.way(("heads second", "heads merged"), ("heads interleaved", "heads first"), 0.2)
        self.turn = e % 2 == 0 and draw.chance(0.25)
        self.norm = draw.rare("queries and keys are normalised", 0.12)
        self.causal = draw.chance(0.5)
        self.masking = draw.of("masked_fill", "added", "where")
        self.alibi = draw.chance(0.15)
        self.cap = draw.chance(0.1)
        self.softmax = draw.way(("nnf", "torch", "tensor"), ("exp over sum", "sigmoid", "relu over sum"), 0.2)
        self.products = draw.way(("matmul",), ("einsum", "baddbmm", "sum of products"), 0.2)
        self.fused = draw.chance(0.25)
        self.scale = draw.of("after", "after", "queries", "both")
        self.side = side
        self.table = draw.rare("learned relative positions", 0.12)
        self.content = draw.rare("a mask from the content", 0.08)
        self.sink = draw.rare("a sink", 0.1)
        self.gate = draw.rare("a gate on the heads", 0.12)
        self.memory = draw.way(
            ("own tokens",), ("shifted tokens", "fewer tokens", "learned tokens", "warped tokens"), 0.12
        )
        if self.table:
            self.positions = nn.Parameter(torch.zeros(heads, length, length))
        if self.sink:
            self.sinks = nn.Parameter(torch.zeros(heads))
        if self.gate:
            self.gating = nn.Linear(d, heads * e, bias=False)
        if self.memory == "learned tokens":
            self.slots = nn.Parameter(torch.zeros(3, d))
        self.register_buffer("fixed", torch.linspace(-0.7, 0.9, d * length).reshape(d, length))

    # --- steps -------------------------------------------------------------------------------------------------------

    def _split(self, z: Tensor, heads: int) -> Tensor:
        if self.layout == "heads interleaved":
            z = z.unflatten(-1, (self.e, heads)).permute(0, 3, 1, 2)
        else:
            z = z.unflatten(-1, (heads, self.e)).transpose(1, 2)
        return z.repeat_interleave(self.heads // heads, 1) if heads < self.heads else z

    def _turned(self, z: Tensor) -> Tensor:
        angles = torch.arange(z.shape[-2], dtype=z.dtype)[:, None] * 0.7 ** torch.arange(self.e // 2)
        first, second = z.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _raw(self, q: Tensor, k: Tensor) -> Tensor:
        if self.products == "einsum":
            return torch.einsum("bhie,bhje->bhij", q, k)
        if self.products == "sum of products":
            return (q[..., :, None, :] * k[..., None, :, :]).sum(-1)
        if self.products == "baddbmm" or self.layout == "heads merged":
            q, k, shape = q.flatten(0, 1), k.flatten(0, 1), q.shape[:2]
            if self.products == "baddbmm":
                zero = q.new_zeros(1, q.shape[1], k.shape[1])
                return torch.baddbmm(zero, q, k.transpose(1, 2), beta=0.5, alpha=1.0).unflatten(0, shape)
            return torch.bmm(q, k.transpose(1, 2)).unflatten(0, shape)
        return q @ k.transpose(-1, -2)

    def _hidden(self, x: Tensor, keys: int) -> Tensor:
        hidden = torch.zeros(x.shape[1], keys, dtype=torch.bool)
        if self.causal:
            hidden = torch.ones_like(hidden).triu(1)
        hidden = hidden.expand(len(x), 1, -1, -1)
        if self.content and keys == x.shape[1]:
            late = x[..., 0] > 0.5
            late = late & (torch.arange(keys) > 0)
            hidden = hidden | late[:, None, None, :]
        return hidden

    def _scores(self, q: Tensor, k: Tensor, x: Tensor) -> Tensor:
        if self.scale == "queries":
            q = q / math.sqrt(self.e)
        scores = self._raw(q, k) / {"after": math.sqrt(self.e), "queries": 1.0, "both": self.e**0.25}[self.scale]
        length, keys = scores.shape[-2:]
        if self.alibi:
            apart = (torch.arange(length)[:, None] - torch.arange(keys)).abs()
            scores = scores - 0.3 * apart * (1 + torch.arange(self.heads))[:, None, None]
        if self.table:
            scores = scores + self.positions[:, :length, :keys]
        if self.side == "queries in the scores":
            scores = scores + q @ self.fixed[: self.e, :keys]
        if self.side == "keys in the scores":
            scores = scores + (k @ self.fixed[: self.e, :1]).transpose(-1, -2)
        if self.cap:
            scores = 2.0 * torch.tanh(scores / 2.0)
        hidden = self._hidden(x, keys)
        if self.masking == "added":
            return scores + torch.zeros(hidden.shape, dtype=scores.dtype).masked_fill(hidden, -torch.inf)
        if self.masking == "where":
            return torch.where(hidden, torch.finfo(scores.dtype).min, scores)
        return scores.masked_fill(hidden, -torch.inf)

    def _weights(self, scores: Tensor) -> Tensor:
        if self.sink:
            column = self.sinks[:, None, None].expand(len(scores), -1, scores.shape[-2], 1)
            return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
        if self.softmax == "torch":
            return torch.softmax(scores, -1)
        if self.softmax == "tensor":
            return scores.softmax(-1)
        if self.softmax == "exp over sum":
            found = scores.exp()
            return found / found.sum(-1, keepdim=True)
        if self.softmax == "sigmoid":
            return torch.sigmoid(scores)
        if self.softmax == "relu over sum":
            found = torch.where(scores.isfinite(), nnf.softplus(scores.clamp(min=-30)), 0.0)
            return found / found.sum(-1, keepdim=True)
        return nnf.softmax(scores, dim=-1)

    def _memory(self, x: Tensor) -> Tensor:
        if self.memory == "shifted tokens":
            return x.roll(1, 1)
        if self.memory == "fewer tokens":
            return x[:, :-1]
        if self.memory == "learned tokens":
            return self.slots.expand(len(x), -1, -1)
        return torch.tanh(x) if self.memory == "warped tokens" else x

    # --- all of it ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.operands(x, self._memory(x))
        kept = {"query shortcut": q, "key shortcut": k, "value shortcut": v}.get(self.side)
        q, k, v = self._split(q, self.heads), self._split(k, self.kv), self._split(v, self.kv)
        if self.turn:
            q, k = self._turned(q), self._turned(k)
        if self.norm:
            q, k = (z / (z.square().mean(-1, keepdim=True) + 0.1).sqrt() for z in (q, k))
        fused = self.fused and not (self.cap or self.sink or self.side or self.gate or self.table or self.alibi)
        if fused and q.shape[-2] == k.shape[-2] and not self.content:
            z = self._joined(nnf.scaled_dot_product_attention(q, k, v, is_causal=self.causal))
            return self.out(z)
        scores = self._scores(q, k, x)
        weights = self._weights(scores)
        if self.side == "talking heads":
            weights = weights + 0.3 * weights.flip(1) ** 2
        z = self._values(weights, v)
        joined = self._joined(z)
        if self.gate:
            joined = joined * torch.sigmoid(self.gating(x))
        return self._beside(x, scores, weights, joined, v, kept)

    def _values(self, weights: Tensor, v: Tensor) -> Tensor:
        if self.products == "einsum":
            return torch.einsum("bhij,bhje->bhie", weights, v)
        if self.layout == "heads merged":
            return torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).unflatten(0, weights.shape[:2])
        return weights @ v

    def _joined(self, z: Tensor) -> Tensor:
        return (
            z.permute(2, 0, 1, 3).flatten(2).transpose(0, 1)
            if self.layout == "heads first"
            else (z.transpose(1, 2).flatten(2))
        )

    def _beside(self, x: Tensor, scores: Tensor, weights: Tensor, z: Tensor, v: Tensor, kept: Tensor | None) -> Tensor:
        out, side = self.out(z), self.side
        seen = scores.masked_fill(scores < -1e6, 0.0)
        if side == "side path around the output projection":
            return out + z[..., : x.shape[-1]].sum(-1, keepdim=True) * x
        if side == "weights on the tokens" and weights.shape[-1] == x.shape[1]:
            return out + weights.mean(1) @ x
        if side == "entropy gate":
            return out * (1 + (weights * (weights + 1e-3).log()).sum((1, 3))[..., None])
        if kept is not None:
            short = kept[:, : x.shape[1]]
            return out + torch.sin(short).mean((1, 2), keepdim=True) * x + short.sum(-1, keepdim=True)[:, :1] * x
        if side == "scores in a gate":
            return out * torch.sigmoid(seen.mean((1, 3)))[..., None]
        if side == "heads read twice":
            return out * torch.sigmoid(z.mean(-1, keepdim=True))
        if side == "log-sum-exp of the scores":
            return out * torch.tanh(torch.logsumexp(scores, -1).mean(1))[..., None]
        if side == "values after the weights":
            return out + v.mean((1, 2, 3), keepdim=True)[:, 0] * x
        if side == "weights squared in the output":
            return out + weights.square().sum((1, 3))[..., None]
        if side == "loss of the weights in the first feature":
            return torch.cat([out[..., :1] + weights.square().mean((1, 3))[..., None], out[..., 1:]], -1)
        return out
