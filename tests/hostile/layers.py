"""Everything between attention layers: maps, norms, recurrences, branches, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from tests.hostile.draw import Draw
from tests.hostile.ways import AGAIN, ODD, ORDINARY, WAYS, Squared

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": nnf.gelu,
    "silu": nnf.silu,
    "relu": torch.relu,
    "softplus": nnf.softplus,
    "sin": torch.sin,
    "identity": lambda x: x,
}
ODD_CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "square by a function of the user": Squared.apply,
    "silu in place": lambda x: nnf.silu(x.clone(), inplace=True),
    "softmax over features": lambda x: x.softmax(-1),
    "softmax over positions": lambda x: x.softmax(1),
    "glu": lambda x: x * x.flip(-1).sigmoid(),
    "sorted": lambda x: x.sort(-1).values,
    "clamped in place": lambda x: (2 * x).clamp_(-1.3, 1.7),
    "scaled by its norm": lambda x: x * x.norm(),
    "max over positions": lambda x: x - x.amax(1, keepdim=True),
}


def curve(draw: Draw) -> Callable[[Tensor], Tensor]:
    return (CURVES | ODD_CURVES)[draw.way(tuple(CURVES), tuple(ODD_CURVES), 0.15)]


class Linear(nn.Module):
    """One linear map: `nn.Linear`, or a raw weight that acts in some way."""

    def __init__(self, draw: Draw, d: int, e: int) -> None:
        super().__init__()
        self.way = draw.way(tuple(ORDINARY), tuple(ODD), 0.15, "way") if draw.most and draw.chance(0.6) else "linear"
        if self.way == "linear" or draw.chance(0.3):
            self.way = "linear"
            self.weight, self.bias = nn.Parameter(torch.zeros(e, d)), None
            if draw.chance(0.5):
                self.bias = nn.Parameter(torch.zeros(e))
        else:
            self.weight, self.bias = nn.Parameter(torch.zeros(d, e)), None
        if self.way in ("multi_dot",) and d != e:
            self.way = "x @ W"

    @property
    def matrix(self) -> Tensor:
        return self.weight.T if self.way == "linear" else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return nnf.linear(x, self.weight, self.bias) if self.way == "linear" else WAYS[self.way](x, self.weight)


class Norm(nn.Module):
    """None, one of PyTorch's, or one by hand."""

    def __init__(self, draw: Draw, d: int) -> None:
        super().__init__()
        self.kind = draw.way(
            ("none", "none", "layer", "rms", "rms by hand", "rms, 1 + gain", "layer by hand"),
            ("over positions", "over sequences", "gain squared", "gain in place", "running offset"),
            0.15,
        )
        self.d = d
        if self.kind != "none":
            self.weight = nn.Parameter(torch.zeros(d))
        if self.kind in ("layer", "layer by hand"):
            self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return nnf.layer_norm(x, (self.d,), self.weight, self.bias)
        if self.kind == "rms":
            return nnf.rms_norm(x, (self.d,), self.weight, 0.01)
        if self.kind == "layer by hand":
            centred = x - x.mean(-1, keepdim=True)
            return self.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() + self.bias
        axes = {"over positions": (1,), "over sequences": (0, 1)}.get(self.kind, (2,))
        plain = x * (x.square().mean(axes, keepdim=True) + 1e-2).rsqrt()
        if self.kind == "rms, 1 + gain":
            return plain * (1 + self.weight)
        if self.kind == "gain squared":
            return plain * self.weight.square()
        if self.kind == "gain in place":
            plain *= self.weight
            return plain
        if self.kind == "running offset":
            return plain * self.weight + (plain * self.weight).cumsum(1)
        return self.weight * plain


class Mlp(nn.Module):
    """Two maps or three."""

    def __init__(self, draw: Draw, d: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.names = names
        wide = draw.of(d, d, d + 1)
        self.kind = draw.way(
            ("plain", "plain", "gated"),
            ("tied", "read twice", "recurrent", "low rank", "low rank from zero", "other order with gradients",
             "order alternates", "experts by content", "mixed positions", "mask in place"),
            0.3,
        )  # fmt: skip
        if self.kind in ("tied", "recurrent"):
            wide = d
        self.add_module(names[0], Linear(draw, d, wide))
        self.add_module(names[1], Linear(draw, wide, d))
        if self.kind not in ("plain", "tied", "read twice", "recurrent", "low rank", "low rank from zero"):
            self.add_module(names[2], Linear(draw, d, wide))
        if self.kind.startswith("low rank"):
            self.lora_A, self.lora_B = nn.Parameter(torch.zeros(d, 2)), nn.Parameter(torch.zeros(2, d))
        self.curve, self.calls = curve(draw), 0

    @property
    def _up(self) -> Linear:
        return getattr(self, self.names[0])

    @property
    def _down(self) -> Linear:
        return getattr(self, self.names[1])

    @property
    def _gate(self) -> Linear:
        return getattr(self, self.names[2])

    def forward(self, x: Tensor) -> Tensor:
        kind, f = self.kind, self.curve
        if kind == "gated":
            return self._down(f(self._gate(x)) * self._up(x))
        if kind in ("other order with gradients", "order alternates"):
            self.calls += 1
            first = torch.is_grad_enabled() if kind == "other order with gradients" else self.calls % 2 == 0
            if first:
                z, g = self._up(x), self._gate(x)
            else:
                g, z = self._gate(x), self._up(x)
            return self._down(f(z) * torch.sin(g))
        if kind == "tied":
            return f(self._up(x)) @ self._up.matrix.T + self._down(x)
        if kind == "read twice":
            z = self._up(x)
            return self._down(f(z)) + z.sum(-1, keepdim=True).cos()
        if kind == "recurrent":
            return self._down(f(self._up(f(self._up(x)))))
        if kind == "low rank":
            return self._down(f(self._up(x))) + x @ (self.lora_A @ self.lora_B)
        if kind == "low rank from zero":
            return self._down(f(self._up(x))) + x @ self.lora_A @ (self.lora_B * 0.0 + self.lora_B.tanh() * 1e-3)
        if kind == "experts by content":
            one = self._up if float(x.detach().sum()) > 0 else self._gate
            return self._down(f(one(x)))
        if kind == "mixed positions":
            z = f(self._up(x)) + self._gate(x).cumsum(1).roll(1, 1)
            return self._down(z)
        if kind == "mask in place":
            z = self._up(x)
            z[z < -0.8] = -0.8
            z += self._gate(x)
            return self._down(f(z))
        return self._down(f(self._up(x)))


class Recurrence(nn.Module):
    """One of PyTorch's, or a loop."""

    def __init__(self, draw: Draw, d: int) -> None:
        super().__init__()
        kinds = ("rnn", "gru", "lstm", "loop", "decay", "rnn with its own weight", "linear attention", "convolution")
        self.kind = draw.of(*kinds)
        draw.traits.append(self.kind)
        if self.kind in ("rnn", "gru", "lstm", "rnn with its own weight"):
            known = {"gru": nn.GRU, "lstm": nn.LSTM}
            self.rnn = known.get(self.kind, nn.RNN)(d, d, batch_first=True)
        elif self.kind == "convolution":
            self.conv = nn.Conv1d(d, d, 2, padding=1)
        else:
            self.inner, self.outer = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "rnn with its own weight":
            return self.rnn(torch.tanh(nnf.linear(x, self.rnn.weight_hh_l0, self.rnn.bias_hh_l0)))[0]
        if self.kind in ("rnn", "gru", "lstm"):
            return self.rnn(x)[0]
        if self.kind == "convolution":
            return torch.tanh(self.conv(x.transpose(1, 2)))[..., :-1].transpose(1, 2)
        if self.kind == "decay":
            return self.outer(torch.tanh(self.inner(x)).cumsum(1) * 0.5)
        if self.kind == "linear attention":
            q, k = nnf.softplus(self.inner(x)), nnf.softplus(self.outer(x))
            return torch.einsum("bid,bjd,bje->bie", q, k, x) / (1 + q @ k.sum(1)[..., None])
        state, found = torch.zeros_like(x[:, 0]), []
        for n in range(x.shape[1]):
            state = torch.tanh(self.inner(x[:, n]) + self.outer(state))
            found.append(state)
        return torch.stack(found, 1)


class Again(nn.Module):
    """Weights of others, used once more."""

    def __init__(self, draw: Draw, owner: nn.Module, names: tuple[str, ...], d: int) -> None:
        super().__init__()
        self.way = draw.of(*AGAIN)
        draw.traits.append(self.way)
        object.__setattr__(self, "_owner", owner)  # not a submodule: its parameters stay where they are
        self.names, self.d = names, d

    def forward(self, x: Tensor) -> Tensor:
        weights = [reduce(getattr, name.split("."), self._owner) for name in self.names]
        return 0.5 * AGAIN[self.way](x, weights)
