"""Norms of the blocks of an attention layer at any scale of weights, tokens, gradient and curvature.

Powers of two that leave the scores as they are, ``X 2^x``, ``W_Q 2^q``, ``W_K 2^-(q+2x)``, ``W_V 2^v``, ``g 2^y`` and
``C 2^c``, multiply every block by a power of two: what a norm has to be is known without forming anything large.
"""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.operators.exponent_scaling import ldexp
from tests.variants import ALL_ACTIVATIONS, randn

WIDTH, KEYS, LENGTH = 3, 2, 4
SCALES = [  # x, q, v, y, c in bits of float64, where 1024 is the end of the range
    (0, 0, 0, 0, 0),
    (0, 480, 0, 0, 0),
    (0, -450, 0, 0, 0),
    (0, 480, -450, -400, 0),
    (0, -300, 350, 100, -900),
    (200, -300, -350, -200, 0),
    (-200, 300, 350, 200, 0),
    (-150, 400, -300, 500, 900),
]
CASES = [(dtype, scale) for dtype in (torch.float64, torch.float32) for scale in SCALES]


def hessian(
    activation: object, dtype: torch.dtype, scale: tuple[int, ...], heads: int = 1, length: int = LENGTH
) -> hl.layer.AttentionHessian:
    """The Hessian of a layer at these scales; float32 has an eighth of the bits."""
    x, q, v, y, c = (bits if dtype == torch.float64 else bits // 8 for bits in scale)

    def one(head: int) -> hl.SelfAttention:
        W_Q, W_K = randn(WIDTH, KEYS, seed=5 * head + 1).to(dtype), randn(WIDTH, KEYS, seed=5 * head + 2).to(dtype)
        W_V = randn(WIDTH, WIDTH, seed=5 * head + 3).to(dtype)
        weights = ldexp(W_Q, q), ldexp(W_K, -q - 2 * x), ldexp(W_V, v)
        return hl.SelfAttention(*weights, activation=activation)

    layer = one(0) if heads == 1 else hl.MultiHeadAttention([one(head) for head in range(heads)])
    X, g = randn(1, length, WIDTH, seed=7).to(dtype), randn(1, length, WIDTH, seed=8).to(dtype)
    root = randn(WIDTH, WIDTH, seed=9).to(dtype)
    C = ldexp((root @ root.T).expand(1, length, WIDTH, WIDTH).contiguous(), c)
    return hl.attention_hessian(layer, ldexp(X, x), grad=ldexp(g, y), curvature=C)


def exponents(scale: tuple[int, ...], dtype: torch.dtype, row: str, column: str) -> tuple[int, int]:
    """The powers of two of the outer-product and of the functional part of a block."""
    x, q, v, y, c = (bits if dtype == torch.float64 else bits // 8 for bits in scale)
    k = -q - 2 * x
    first = {"Q": 3 * x + v + k, "K": 3 * x + v + q, "V": x}
    score = {"Q": 2 * x + k, "K": 2 * x + q}
    if "V" in (row, column):
        other = score.get(row, score.get(column, 0))
        return first[row] + first[column] + c, x + other + y
    return first[row] + first[column] + c, score[row] + score[column] + x + v + y


def logarithm_of_norm(summands: list[tuple[Tensor, int]]) -> float:
    """``log2 |sum of tensor 2^exponent|``, in numbers of moderate size."""
    alive = [(tensor.double(), exponent) for tensor, exponent in summands if bool(tensor.any())]
    if not alive:
        return -math.inf
    top = max(exponent for _, exponent in alive)
    norm = float(sum(tensor * 2.0 ** max(exponent - top, -1000) for tensor, exponent in alive).norm())
    return math.log2(norm) + top if norm else -math.inf


def check_norm(op: hl.operators.Operator, expected: float, tolerance: float, what: str) -> None:
    """The norm is ``2^expected`` where that fits, and refused with its size where it does not."""
    limits = torch.finfo(op.dtype)
    if expected >= math.log2(limits.max):
        with pytest.raises(hl.InputError, match="frobenius_norm: it is about 10"):
            op.frobenius_norm()
        return
    found = float(op.frobenius_norm())
    if expected < math.log2(limits.tiny) + 24:  # few digits are left, or none
        assert found <= limits.tiny * 2.0**25, what
    else:
        assert found > 0 and math.log2(found) == pytest.approx(expected, abs=tolerance), what


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
@pytest.mark.parametrize("dtype, scale", CASES, ids=str)
def test_every_block_at_every_scale(dtype: torch.dtype, scale: tuple[int, ...], activation: str) -> None:
    plain = hessian(ALL_ACTIVATIONS[activation](), dtype, SCALES[0])
    scaled = hessian(ALL_ACTIVATIONS[activation](), dtype, scale)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-2
    for row, column in product("QKV", repeat=2):
        outer, functional = exponents(scale, dtype, row, column)
        parts = {
            "outer": [(plain.outer[row, column].to_dense(), outer)],
            "functional": [(plain.functional[row, column].to_dense(), functional)],
        }
        for part, summands in {**parts, "full": [*parts["outer"], *parts["functional"]]}.items():
            op = getattr(scaled, part)[row, column]
            check_norm(op, logarithm_of_norm(summands), tolerance, f"{part} {row} {column}")


@pytest.mark.parametrize("dtype, scale", CASES, ids=str)
@pytest.mark.parametrize("length", [2, 9])  # the form of the blocks depends on it
def test_heads_and_whole_matrices_at_every_scale(dtype: torch.dtype, scale: tuple[int, ...], length: int) -> None:
    plain = hessian("softmax", dtype, SCALES[0], heads=2, length=length)
    scaled = hessian("softmax", dtype, scale, heads=2, length=length)
    tolerance = 1e-8 if dtype == torch.float64 else 1e-2
    for part, kind in (("outer", 0), ("functional", 1)):
        every = []
        for (one, h), (two, k) in product(product("QKV", range(2)), repeat=2):
            block = getattr(plain, part)[(one, h), (two, k)].to_dense()
            every.append((block, exponents(scale, dtype, one, two)[kind]))
            op = getattr(scaled, part)[(one, h), (two, k)]
            check_norm(op, logarithm_of_norm(every[-1:]), tolerance, f"{part} {one}{h} {two}{k}")
        logarithms = [logarithm_of_norm([summand]) for summand in every]
        top = max(logarithms)
        total = top + math.log2(sum(4.0 ** (each - top) for each in logarithms)) / 2
        check_norm(getattr(scaled, part)[:], total, tolerance, part)


@pytest.mark.parametrize("dtype, score, bits", [(torch.float64, 370.0, 100), (torch.float32, 48.0, 20)])
@pytest.mark.parametrize("length, keys", [(4, 2), (3, 4)])
def test_exponentials_whose_squares_do_not_fit(
    dtype: torch.dtype, score: float, bits: int, length: int, keys: int
) -> None:
    """Weights of 1e160 beside keys of 1e-30: the matrix of the scores overflows, the block of the queries does not."""
    W_Q, W_K, W_V = (randn(WIDTH, width, seed=seed) for seed, width in ((1, keys), (2, keys), (3, WIDTH)))
    X, g = randn(1, length, WIDTH, seed=7), randn(1, length, WIDTH, seed=8)
    scores = (X @ W_Q @ (X @ W_K).mT).flatten() / math.sqrt(keys)
    largest = float(scores[scores.abs().argmax()])  # of either sign: it becomes the positive `score`
    weights = ldexp(W_Q * score / largest, bits), ldexp(W_K, -bits), W_V
    layer = hl.SelfAttention(*(weight.to(dtype) for weight in weights), activation="exp")
    C = torch.eye(WIDTH, dtype=dtype).expand(1, length, WIDTH, WIDTH).contiguous()
    H = hl.attention_hessian(layer, X.to(dtype), grad=g.to(dtype), curvature=C)
    for part in ("outer", "functional", "full"):
        op = getattr(H, part)["Q", "Q"]
        dense = op.to_dense()
        assert bool(torch.isfinite(dense).all())
        tolerance = 1e-8 if dtype == torch.float64 else 1e-2
        size = math.frexp(float(dense.abs().max()))[1]
        check_norm(op, logarithm_of_norm([(ldexp(dense.double(), -size), size)]), tolerance, part)
    for part, row, column in product(("outer", "full"), "KV", "KV"):
        with pytest.raises(hl.InputError, match="frobenius_norm: it is about 10"):
            getattr(H, part)[row, column].frobenius_norm()
