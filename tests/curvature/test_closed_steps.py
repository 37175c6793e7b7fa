"""Closed forms as steps of a tape: both derivatives at once, against autograd through everything written out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.curvature.tape import Tape
from hessianlens.curvature.tape.single_operation import ClosedFormStep
from tests.attention.test_scaled_dot_product import BEYOND_TORCH, CASES, TINY
from tests.losses.test_linear_cross_entropy import CASES as HEADS
from tests.losses.test_linear_cross_entropy import ours, plain
from tests.oracles.comparison import assert_same
from tests.oracles.plain_attention import plain_attention
from tests.variants import randn

Function = Callable[[Mapping[str, Tensor]], Tensor]


def _attention(name: str) -> tuple[Function, Function, dict[str, Tensor]]:
    inputs, how = {**CASES, **BEYOND_TORCH}[name]

    def of(attend: Callable[..., Tensor], **more: Any) -> Function:
        return lambda at: attend(at["q"], at["k"], at["v"], **how, **more)

    leaves = dict(zip("qkv", inputs, strict=True))
    return of(hl.scaled_dot_product_attention, memory=TINY), of(plain_attention), leaves


def _head(name: str) -> tuple[Function, Function, dict[str, Tensor]]:
    (h, W, b, y), how = HEADS[name]
    how = {**how, "reduction": "none"}
    leaves = {"h": h, "W": W} if b is None else {"h": h, "W": W, "b": b}
    return (
        lambda at: ours(at["h"], at["W"], at.get("b"), y, **how),
        lambda at: plain(at["h"], at["W"], at.get("b"), y, **how),
        leaves,
    )


STEPS = {
    # A tape watches every operation, and what vmap does inside of a user's function it cannot.
    **{f"attention, {name}": (_attention, name) for name in (*CASES, *BEYOND_TORCH) if "user" not in name},
    **{f"cross-entropy, {name}": (_head, name) for name in HEADS if name != "one token"},
}


@pytest.mark.parametrize("name", STEPS)
def test_both_derivatives(name: str) -> None:
    make, case = STEPS[name]
    function, expected, leaves = make(case)
    tape = Tape(function, leaves)
    assert any(isinstance(step, ClosedFormStep) for step in tape.steps)
    v = {key: randn(*x.shape, seed=20 + k) for k, (key, x) in enumerate(leaves.items())}
    g, u = (randn(*tape.output.shape, seed=k) for k in (7, 8))
    tape.keep(g)
    moves = tape.forward(v)

    def vjp(at: dict[str, Tensor], g: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = torch.func.vjp(expected, at)[1](g)[0]
        return found

    change = torch.func.jvp(lambda at: vjp(at, g), (leaves,), (v,))[1]
    first, tangent = vjp(leaves, u), torch.func.jvp(expected, (leaves,), (v,))[1]
    result = tape.result(moves)
    assert result is not None
    assert_same(result, tangent, f"{name}, tangent", 1e-9)
    for key, found in tape.backward(u, moves, list(leaves)).items():
        assert_same(found, first[key] + change[key], f"{name}, both, {key}", 1e-9)
    for key, found in tape.backward(u, None, list(leaves)).items():
        assert_same(found, first[key], f"{name}, first, {key}", 1e-9)
    for key, found in tape.backward(None, moves, list(leaves)).items():
        assert_same(found, change[key], f"{name}, second, {key}", 1e-9)


def test_a_cotangent_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from hessianlens.attention.sdpa.call import AttentionForm

    right = AttentionForm.hvp
    monkeypatch.setattr(AttentionForm, "hvp", lambda *args, of_g=None, **how: right(*args, **how))
    with pytest.raises(AssertionError):
        test_both_derivatives("attention, causal")
