"""Softmax as models write it down step by step, found again as one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hessianlens.curvature.tape.recording import Call, Ref


def with_softmax(calls: Sequence[Call], values: Mapping[int, Tensor]) -> list[Call]:
    """The same calls, with softmax for ``exp(t) / sum(exp(t))`` and without masks that it makes superfluous.

    What nothing reads any more is left in place. A mask in front of softmax changes no derivative: the weights that it
    makes zero are factors of everything that passes there, both ways.
    """
    made = {number: call for call in calls for number in call.outputs if number is not None}
    found = [_as_softmax(call, made) or call for call in calls]
    return [_unmasked(call, made, values) if call.name in _SOFTMAX else call for call in found]


_SOFTMAX = ("_softmax", "_safe_softmax")


def _as_softmax(call: Call, made: Mapping[int, Call]) -> Call | None:
    """A quotient, if it is one of exponentials and their sum."""
    if call.name != "div" or call.kwargs or not all(isinstance(side, Ref) for side in call.args):
        return None
    top, bottom = (made.get(side.node) for side in call.args)
    if bottom is not None and bottom.name == "where" and isinstance(bottom.args[2], Ref) and len(bottom.refs) == 1:
        bottom = made.get(bottom.args[2].node)  # a sum of nothing is replaced where a row is hidden
    if top is None or bottom is None or top.name != "exp" or bottom.name != "sum" or bottom.refs != [call.args[0].node]:
        return None
    axes, keeps = bottom.args[1:3] if len(bottom.args) > 2 else (None, False)
    if not axes or len(axes) != 1 or not keeps:
        return None
    return replace(call, func=torch.ops.aten._softmax.default, args=(top.args[0], axes[0], False))


def _unmasked(call: Call, made: Mapping[int, Call], values: Mapping[int, Tensor]) -> Call:
    """Softmax of the scores before they were masked or shifted by constants."""
    scores, (output,) = call.args[0], call.outputs
    while isinstance(scores, Ref) and output is not None:
        before = made.get(scores.node)
        if before is None or before.refs != [first.node for first in before.args[:1] if isinstance(first, Ref)]:
            break
        if values[before.refs[0]].shape != values[output].shape or values[before.refs[0]].dtype != values[output].dtype:
            break
        hides = before.name == "masked_fill" and not bool((values[output] * before.args[1]).any())
        if not hides and before.name not in ("add", "sub"):
            break
        scores = before.args[0]
    return replace(call, args=(scores, *call.args[1:]))
