"""Closed forms with factors of maps, smooth values and weights of other layers: against HVPs and dense autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hessianlens as hl
from hessianlens.attention.sides import FactorLink
from hessianlens.network.routes.last_attention import ExactAttention, exact_attention
from hessianlens.problems import Block, Problem
from tests.curvature import networks
from tests.curvature.networks import LENGTH, WIDTH, scrambled
from tests.variants import randn

HEADS, NOPE, ROPE, VALUE, RANK = 2, 2, 2, 2, 3


def _normed(z: Tensor) -> Tensor:
    return z * (z.square().mean(-1, keepdim=True) + 1e-2).rsqrt()


def _turned(z: Tensor) -> Tensor:
    """Rotary positions on the last axis."""
    angle = torch.arange(z.shape[-2], dtype=z.dtype)[:, None] * torch.tensor([0.7], dtype=z.dtype)
    first, second = z.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def _by_head(z: Tensor) -> Tensor:
    return z.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Latent(nn.Module):
    """DeepSeek's attention: factored queries, one factor for keys and values, a rotary part beside."""

    norm: Callable[[Tensor], Tensor] = staticmethod(_normed)
    bias = False

    def __init__(self) -> None:
        super().__init__()
        self.q_a_proj = nn.Linear(WIDTH, RANK, bias=self.bias)
        self.q_b_proj = nn.Linear(RANK, HEADS * (NOPE + ROPE), bias=False)
        self.kv_a_proj = nn.Linear(WIDTH, RANK + ROPE, bias=self.bias)
        self.kv_b_proj = nn.Linear(RANK, HEADS * (NOPE + VALUE), bias=False)
        self.o_proj = nn.Linear(HEADS * VALUE, WIDTH, bias=False)

    def heads(self, x: Tensor) -> Tensor:
        norm = type(self).norm
        q, k = _by_head(self.q_b_proj(norm(self.q_a_proj(x)))).split([NOPE, ROPE], -1), self.kv_a_proj(x)
        latent, shared = k.split([RANK, ROPE], -1)
        own, v = _by_head(self.kv_b_proj(norm(latent))).split([NOPE, VALUE], -1)
        rotary = _turned(shared)[:, None].expand(-1, HEADS, -1, -1)
        queries = torch.cat([q[0], _turned(q[1])], -1)
        return nn.functional.scaled_dot_product_attention(queries, torch.cat([own, rotary], -1), v, is_causal=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.heads(x).transpose(1, 2).flatten(2))


class LatentWithoutNorm(Latent):
    """Products of two matrices, with biases of the first."""

    norm = staticmethod(lambda z: z)
    bias = True


class LatentGated(Latent):
    """A gate made of the tokens, beside queries that are made of a latent."""

    def __init__(self) -> None:
        super().__init__()
        self.g_proj = nn.Linear(WIDTH, HEADS * VALUE, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.heads(x).transpose(1, 2).flatten(2) * torch.sigmoid(self.g_proj(x)))


class Plain(nn.Module):
    """Queries, keys and values of a map each."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q_proj": 2 * HEADS, "k_proj": 2 * HEADS, "v_proj": 2 * HEADS}
        for name, size in sizes.items():
            setattr(self, name, nn.Linear(WIDTH, size, bias=True))
        self.o_proj = nn.Linear(2 * HEADS, WIDTH, bias=False)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (_by_head(proj(x)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        return _normed(q), k, v

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.scaled_dot_product_attention(*self.qkv(x), is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class NormedValues(Plain):
    """Values behind a norm, as in Gemma 4."""

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(x)
        return q, k, _normed(v)


class KeysAreValues(Plain):
    """Values are keys behind a norm."""

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, _ = super().qkv(x)
        return q, k, _normed(k) + 0 * self.v_proj(x).sum()


class ScaledValues(Plain):
    """Values times a number."""

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(x)
        return q, k, 0.7 * v


class MixedKeys(Plain):
    """Keys that a convolution mixes: they are no parameters of the closed form, queries and values are."""

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(x)
        return q, k + 0.5 * nn.functional.pad(k, (0, 0, 1, 0))[:, :, :-1], v


class SinkByLogSum(Plain):
    """A sink that is a factor of the outputs, as in Granite."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.tensor([0.3, -0.4]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        scores = (q @ k.mT).masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -torch.inf)
        scale = torch.sigmoid(torch.logsumexp(scores, -1) - self.sinks[:, None])
        y = (scores.softmax(-1) @ v) * scale[..., None]
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Difference(Plain):
    """Weights that are taken twice, with one half of the values each, as in DiffLlama."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        halves = [nn.functional.scaled_dot_product_attention(q, k, v[:, [h, h]], is_causal=True) for h in range(HEADS)]
        first, second = torch.cat(halves, -1).chunk(2, 1)
        return self.o_proj(_normed(first - 0.4 * second).transpose(1, 2).flatten(2))


CASES: dict[str, tuple[type[nn.Module], set[str]]] = {
    "latent": (Latent, {"q_a", "q_b", "kv_a", "kv_b", "o"}),
    "latent without a norm": (LatentWithoutNorm, {"q_a", "q_b", "kv_a", "kv_b", "o"}),
    "latent with a gate": (LatentGated, {"q_a", "q_b", "kv_a", "kv_b", "g"}),
    "norm of the values": (NormedValues, {"q", "k", "v", "o"}),
    "keys that are values": (KeysAreValues, {"q", "k", "o"}),
    "values times a number": (ScaledValues, {"q", "k", "v", "o"}),
    "keys of several positions": (MixedKeys, {"q", "v", "o"}),
    "a sink by the logarithm of the sum": (SinkByLogSum, {"q", "k", "v", "o"}),
    "weights taken twice": (Difference, {"q", "k", "v"}),
}
FACTORED = {name for name in CASES if name.startswith("latent")}


def _problem(kind: type[nn.Module]) -> Problem:
    model = networks.NanoGPT(layers=1)
    model.transformer["h"][0].attn = kind()
    return hl.problem(scrambled(model.double()), networks.pairs(2), "cross_entropy")


def _located(name: str) -> tuple[Problem, ExactAttention, list[Block]]:
    kind, roles = CASES[name]
    problem = _problem(kind)
    found = exact_attention(problem, factored=name in FACTORED)
    assert isinstance(found, ExactAttention), found
    blocks = {b.parameter: b for b in problem.blocks.values() if found.covers([b]) and "head" not in b.name}
    owned = {p.split(".attn.")[1].partition("_proj")[0] for p in blocks if p.endswith("weight")}
    assert owned == roles
    return problem, found, list(blocks.values())


def _dense(problem: Problem, blocks: list[Block]) -> dict[tuple[str, str], Tensor]:
    """All Hessian blocks by double backward."""
    leaves = {b.parameter: problem.params[b.parameter].detach().clone().requires_grad_() for b in blocks}
    params = {**{name: p.detach() for name, p in problem.params.items()}, **leaves}
    with problem.scope(), torch.enable_grad():
        total = sum(problem.loss(problem.forward(params, batch), batch) for batch in problem.data)
        slopes = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
        found = {}
        for row, slope in zip(blocks, slopes, strict=True):
            lines = [
                torch.autograd.grad(each, list(leaves.values()), retain_graph=True, materialize_grads=True)
                for each in slope.flatten()
            ]
            for k, column in enumerate(blocks):
                found[row.name, column.name] = torch.stack([line[k].flatten() for line in lines])
    return found


@pytest.mark.expensive
@pytest.mark.parametrize("name", CASES)
def test_every_pair_by_three_ways(name: str) -> None:
    problem, found, blocks = _located(name)
    dense = _dense(problem, blocks)
    for row in blocks:
        for column in blocks:
            expected, V = dense[row.name, column.name], randn(column.numel, 2)
            size = max(float(expected.norm()), 1e-6)
            closed = found.operator("full", row, column)
            hvps = hl.hessian(problem, row.name, column.name, method="hvp") @ V
            for way in (closed.to_dense() @ V, closed @ V, hvps):
                assert float((way - expected @ V).norm()) <= 1e-9 * size * float(V.norm()), f"{row.name} {column.name}"
            parts = found.operator("ggn", row, column) @ V, found.operator("functional", row, column) @ V
            wanted = hl.ggn(problem, row.name, column.name, method="hvp") @ V
            assert float((parts[0] - wanted).norm()) <= 1e-9 * max(float(wanted.norm()), size)
            assert float((parts[0] + parts[1] - expected @ V).norm()) <= 1e-9 * size * float(V.norm())


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["latent", "keys that are values", "norm of the values"])
def test_the_public_calls_take_the_closed_form(name: str) -> None:
    problem, _, blocks = _located(name)
    norms = hl.block_norms(problem, [block.name for block in blocks])
    for block in blocks:
        op = hl.hessian(problem, block.name)
        if block.name.endswith("k.bias"):
            assert "changes none of its weights" in op.why or "attention" in op.why
            continue
        assert "last attention layer" in op.why or block.name.endswith("attn.o"), op.why
        assert abs(norms[block.name, "full"].value / float(op.to_dense().norm()) - 1) < 1e-9
        if block.name.endswith("weight"):
            trace, diagonal = float(op.trace()), op.to_dense().diagonal().sum()
            assert abs(trace - float(diagonal)) <= 1e-9 * float(op.to_dense().norm()) * block.numel


def test_a_link_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees the second derivative between two factors."""
    init = FactorLink.__init__
    monkeypatch.setattr(
        FactorLink, "__init__", lambda self, outer, inner, jacobian: init(self, outer, inner, 0 * jacobian)
    )
    with pytest.raises(AssertionError, match="proj"):
        test_every_pair_by_three_ways("latent")
