"""Random attention layers, tokens and losses: as the library takes them and, beside it, as the JavaScript form does."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention.activations import ACTIVATIONS, Activation, ElementwiseFunction, Sigmoid, SoftCapped

BESIDE_NAMES = ("sigmoid with bias", "softmax with cap", "tanh with offset")
ALL_ACTIVATIONS = (*ACTIVATIONS, *BESIDE_NAMES)
SCALE_FREE = {"relu_normalised", "row_sum"}
"""Their weights do not move with a query that is a single number: blocks that are zero, and rounding in either form."""
MASKS = ("none", "causal", "boolean", "both")
LOSSES = ("mean", "sum", "held residual", "by token")
KINDS = ("two matrices", "one matrix")


def activation(name: str, draw: random.Random) -> tuple[str | Activation, Any]:
    """An activation of this name, twice."""
    if name == "sigmoid with bias":
        bias = draw.uniform(-2, 2)
        return Sigmoid(bias), {"name": "sigmoid", "bias": bias}
    if name == "softmax with cap":
        cap = draw.uniform(0.5, 3)
        return SoftCapped(cap), {"name": "softmax", "cap": cap}
    if name == "tanh with offset":
        offset = draw.uniform(0, 1)
        return ElementwiseFunction(lambda t: t.tanh() + offset, "raised"), {"name": "tanh", "offset": offset}
    return name, name


@dataclass(frozen=True)
class Setting:
    """A question to both forms.

    Attributes:
        choices: What it is made of.
        H: The library's answer.
        given: The same layer, tokens and loss as lists of numbers.
        value: The loss, where it is known.
        X: The tokens.
        layer: The layer.
    """

    choices: tuple[object, ...]
    H: hl.layer.AttentionHessian
    given: dict[str, Any]
    value: float | None
    X: Tensor
    layer: Any


def setting(k: int) -> Setting:
    """Number k of an endless list; neighbours differ in the activation, every few in the mask, the loss, the kind."""
    draw, source = random.Random(k), torch.Generator().manual_seed(k)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    names = [ALL_ACTIVATIONS[(k + h) % len(ALL_ACTIVATIONS)] for h in range(draw.choice((1, 1, 2, 3)))]
    least = 2 if SCALE_FREE.intersection(names) else 1
    L, d, d_v = draw.randint(1, 6), draw.randint(least, 4), draw.randint(1, 4)
    heads, given, choices = [], [], []
    for h, name in enumerate(names):
        mask, kind = MASKS[(k + h) // 3 % len(MASKS)], draw.choice(KINDS)
        python, javascript = activation(name, draw)
        temperature = math.exp(draw.uniform(-1, 1))
        seen = torch.rand(L, L, generator=source) < 0.7
        options: dict[str, Any] = {"activation": python, "temperature": temperature, "causal": mask in MASKS[1::2]}
        options |= {"mask": seen} if mask in MASKS[2:] else {}
        d_k = draw.randint(least, 4)
        weights = {"QK": normal(d, d)} if kind == KINDS[1] else {"Q": normal(d, d_k), "K": normal(d, d_k)}
        weights["V"] = normal(d, d_v)
        make = hl.SingleMatrixAttention if kind == KINDS[1] else hl.SelfAttention
        heads.append(make(**{f"W_{key}": value for key, value in weights.items()}, **options))
        plain = {key: value.tolist() for key, value in weights.items()}
        as_lists = {"mask": seen.tolist()} if "mask" in options else {}
        given.append({**options, **as_lists, "activation": javascript, "weights": plain})
        choices += [name, mask, kind]
    layer = heads[0] if len(heads) == 1 else hl.MultiHeadAttention(heads)
    X, target = normal(L, d), normal(L, d_v)
    loss = LOSSES[k // 7 % len(LOSSES)]
    if loss in ("mean", "sum"):
        known = hl.SquareLoss(target, loss)
        H, value = hl.attention_hessian(layer, X, known), float(known.value(layer(X)[None]))
        asked: dict[str, Any] = {"targets": target.tolist(), "reduction": loss}
    elif loss == "held residual":
        factor, value = 2 / target.numel(), float(target.square().mean())
        H = hl.attention_hessian(layer, X, grad=factor * target, curvature=factor)
        asked = {"residual": target.tolist()}
    else:
        factors = normal(L, d_v, d_v)
        C, value = factors + factors.mT, None
        H = hl.attention_hessian(layer, X, grad=target, curvature=C)
        asked = {"gradient": target.tolist(), "curvature": C.tolist()}
    return Setting((*choices, loss), H, {"heads": given, "X": X.tolist(), "loss": asked}, value, X, layer)


ANSWER = """
const matrixOf = (value) => (Array.isArray(value?.[0]) && !Array.isArray(value[0][0]) ? lens.matrix(value) : value);
const matrices = (object) => Object.fromEntries(Object.entries(object).map(([key, value]) => [key, matrixOf(value)]));
const prepared = ({ weights, ...head }) => ({ ...head, weights: matrices(weights) });
const layerOf = (heads) => (heads.length > 1 ? { heads: heads.map(prepared) } : prepared(heads[0]));
const lossOf = ({ curvature, ...loss }) => ({ ...matrices(loss), curvature: curvature?.map(lens.matrix) });
"""
"""Functions of a page that make typed arrays of lists of numbers."""


def module_page(source: str) -> str:
    """A page with the module as `lens`, so that a test can call it."""
    return f'<!doctype html><meta charset="utf-8"><script type="module">{source}\nwindow.lens = numbers();</script>'
