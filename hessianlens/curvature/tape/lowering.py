"""From the calls of a recording to the steps of a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hessianlens.curvature.tape.elementwise import ElementwiseStep, derivatives
from hessianlens.curvature.tape.products import EntrywiseProduct, MatrixProduct, Sum, fuse_scaled_products
from hessianlens.curvature.tape.rearranging import rearrangement_steps
from hessianlens.curvature.tape.recording import Call, Recording, Ref, with_softmax
from hessianlens.curvature.tape.rows import LogSoftmax, SoftmaxStep, Standardised
from hessianlens.curvature.tape.single_operation import ClosedFormStep, Local
from hessianlens.curvature.tape.step import Step
from hessianlens.derivatives.one_operation import form_of


def lower_to_steps(recording: Recording) -> list[Step]:
    """The steps between the leaves and the output, in order; what leads nowhere is left out.

    Calls that act on every entry by itself, one after the other, become one step with two derivatives.
    """
    return _Lowering(recording).steps()


class _Lowering:
    def __init__(self, recording: Recording) -> None:
        self.values = dict(recording.values)
        self.calls = _alive(with_softmax(recording.calls, self.values), recording.output)
        self.maker = {number: call for call in self.calls for number in call.outputs if number is not None}
        self.roots = self._find_roots()
        self.last = recording.output
        self.used = {self.last, *(ref for call in self.calls for ref in call.refs)}
        self._next = max(self.values, default=0) + 1

    def steps(self) -> list[Step]:
        inner = self._inside_of_chains()
        found: list[Step] = []
        for call in self.calls:
            if not (len(call.outputs) == 1 and call.outputs[0] in inner):
                found.extend(self._steps_of(call))
        return fuse_scaled_products(found)

    # --- chains of calls that act on every entry by itself ------------------------------------------------------------

    def _find_roots(self) -> dict[int, int]:
        """For every result of such a call the tensor that the first of the chain is given."""
        roots: dict[int, int] = {}
        for call in self.calls:
            refs, (output, *more) = set(call.refs), call.outputs
            if more or output is None or torch.Tag.pointwise not in call.func.tags:
                continue
            found = {roots.get(ref, ref) for ref in refs}
            same = all(self.values[ref].shape == self.values[output].shape for ref in refs)
            same = same and all(self.values[ref].dtype == self.values[output].dtype for ref in refs)
            if len(found) == 1 and same:
                roots[output] = found.pop()
        return roots

    def _inside_of_chains(self) -> set[int]:
        """Results that only the chain that they belong to goes on with."""
        used_outside = {self.last}
        for call in self.calls:
            root = self.roots.get(call.outputs[0]) if call.outputs[0] is not None else None
            used_outside.update(ref for ref in call.refs if root is None or self.roots.get(ref) != root)
        return set(self.roots) - used_outside

    def _chain(self, output: int) -> Step:
        root = self.roots[output]
        x = self.values[root]
        calls = self._calls_to(output, root)
        slope: Tensor | float | None = 1.0
        for call in calls:
            slope = _affine(call, slope) if slope is not None and len(call.refs) == 1 else None
        if slope is not None:
            return ElementwiseStep([root], output, slope, None)

        def function(x: Tensor) -> Tensor:
            at = {root: x}
            for call in calls:
                (made,) = call.outputs
                assert made is not None
                at[made] = call.replay(at.__getitem__)
            return at[output]

        return ElementwiseStep([root], output, *derivatives(function, x))

    def _calls_to(self, output: int, root: int) -> list[Call]:
        """The calls of a chain, in order: later ones have larger numbers."""
        found: dict[int, Call] = {}
        left = [output]
        while left:
            number = left.pop()
            if number not in found and number != root:
                found[number] = self.maker[number]
                left += found[number].refs
        return [found[number] for number in sorted(found)]

    # --- single calls ------------------------------------------------------------------------------------------------

    def _steps_of(self, call: Call) -> list[Step]:
        output = call.outputs[0]
        if output in self.roots:
            assert output is not None
            return [self._chain(output)]
        known = _KNOWN.get(call.name)
        found = (known(self, call) if known is not None else None) or rearrangement_steps(call, self.values.__getitem__)
        return found or [
            self._local(call, k, n) for k, n in enumerate(call.outputs) if n is not None and n in self.used
        ]

    def value(self, argument: Any) -> Any:
        """The tensor that an argument stands for."""
        return self.values[argument.node] if isinstance(argument, Ref) else argument

    def new(self, value: Tensor) -> int:
        """A number for a tensor that the recording does not know."""
        self._next += 1
        self.values[self._next] = value
        return self._next

    def _local(self, call: Call, number: int, output: int) -> Step:
        refs = list(dict.fromkeys(call.refs))

        def function(values: Sequence[Tensor]) -> Tensor:
            at = dict(zip(refs, values, strict=True))
            found = call.replay(at.__getitem__)
            result: Tensor = found[number] if isinstance(found, (tuple, list)) else found
            return result

        return Local(refs, output, function, [self.values[ref] for ref in refs], call.name)

    def bilinear(self, kind: type[EntrywiseProduct | MatrixProduct], left: Any, right: Any, output: int) -> Step:
        """A product of two arguments, one of which may be a constant."""
        refs = [side.node for side in (left, right) if isinstance(side, Ref)]
        active = (isinstance(left, Ref), isinstance(right, Ref))
        return kind(refs, output, self.value(left), self.value(right), active)

    def sum(self, terms: Sequence[tuple[Any, float]], output: int) -> Step:
        """A sum of arguments with factors; constants have no derivative."""
        own = [(term.node, factor) for term, factor in terms if isinstance(term, Ref)]
        shapes = [self.values[node].shape for node, _ in own]
        return Sum([n for n, _ in own], output, [f for _, f in own], shapes, self.values[output].shape)


def _alive(calls: Sequence[Call], output: int | None) -> list[Call]:
    """Calls that the output depends on."""
    wanted, found = {output}, []
    for call in reversed(calls):
        if wanted.intersection(number for number in call.outputs if number is not None):
            found.append(call)
            wanted.update(call.refs)
    return found[::-1]


def _affine(call: Call, slope: Tensor | float) -> Tensor | float | None:
    """The slope behind a call on one tensor that multiplies it with a constant or adds one; None if it does more."""
    first, *rest = call.args
    other: Any = rest[0] if rest else None
    on_left = isinstance(first, Ref)
    if call.name == "neg":
        return -slope
    if call.name in ("add", "sub"):
        factor = call.kwargs.get("alpha", rest[1] if len(rest) > 1 else 1)
        return slope if on_left else slope * (factor if call.name == "add" else -factor)
    if call.name == "mul":
        return slope * (other if on_left else first)
    if call.name == "div" and on_left and not call.kwargs:
        return slope / other
    return None


# --- what is known of single operations ------------------------------------------------------------------------------

Known = Callable[[_Lowering, Call], "list[Step] | None"]


def _output(call: Call) -> int:
    (number,) = call.outputs
    assert number is not None
    return number


def _added(at: _Lowering, call: Call) -> list[Step] | None:
    left, right, *more = call.args
    factor = float(call.kwargs.get("alpha", more[0] if more else 1))
    return [at.sum([(left, 1.0), (right, factor if call.name == "add" else -factor)], _output(call))]


def _multiplied(at: _Lowering, call: Call) -> list[Step] | None:
    left, right = call.args
    if not all(isinstance(at.value(side), Tensor) for side in (left, right)):
        return None
    return [at.bilinear(EntrywiseProduct, left, right, _output(call))]


def _divided(at: _Lowering, call: Call) -> list[Step] | None:
    left, right = call.args
    if call.kwargs or not isinstance(at.value(right), Tensor):
        return None
    if not isinstance(right, Ref):
        return [at.bilinear(EntrywiseProduct, left, right.reciprocal(), _output(call))]
    bottom = at.values[right.node]
    inverse = at.new(bottom.reciprocal())
    first = ElementwiseStep([right.node], inverse, *derivatives(torch.reciprocal, bottom))
    numerator = left if isinstance(left, (Ref, Tensor)) else bottom.new_tensor(left)
    return [first, at.bilinear(EntrywiseProduct, numerator, Ref(inverse), _output(call))]


def _matrices(at: _Lowering, call: Call) -> list[Step] | None:
    left, right = call.args
    return [at.bilinear(MatrixProduct, left, right, _output(call))]


def _matrices_and_more(at: _Lowering, call: Call) -> list[Step] | None:
    added, left, right = call.args
    beta, alpha = (float(call.kwargs.get(name, 1)) for name in ("beta", "alpha"))
    output, product = _output(call), [isinstance(side, Ref) for side in (left, right)]
    if not any(product):
        return [at.sum([(added, beta)], output)]
    if alpha == 1 and not isinstance(added, Ref):
        return [at.bilinear(MatrixProduct, left, right, output)]
    inner = at.new(at.values[output])
    return [at.bilinear(MatrixProduct, left, right, inner), at.sum([(added, beta), (Ref(inner), alpha)], output)]


def _softmax(at: _Lowering, call: Call) -> list[Step] | None:
    output = _output(call)
    kind = LogSoftmax if call.name == "_log_softmax" else SoftmaxStep
    if at.values[output].dtype != at.value(call.args[0]).dtype:
        return None
    return [kind(call.refs, output, at.values[output], call.args[1])]


def _layer_norm(at: _Lowering, call: Call) -> list[Step] | None:
    x, shape, gain, shift, _ = call.args
    output = call.outputs[0]
    assert output is not None
    values = at.value(x)
    steps: list[Step] = []
    if isinstance(x, Ref):
        mean, scale = (at.values[number] for number in call.outputs[1:] if number is not None)
        standardised = (values - mean) * scale
        own = at.new(standardised) if gain is not None or isinstance(shift, Ref) else output
        steps.append(Standardised([x.node], own, standardised, scale, len(shape)))
        y: Any = Ref(own)
    else:
        y = torch.nn.functional.layer_norm(values, shape, eps=call.args[4])
    if gain is not None and (isinstance(y, Ref) or isinstance(gain, Ref)):
        own = at.new(at.values[output]) if isinstance(shift, Ref) else output
        steps.append(at.bilinear(EntrywiseProduct, y, gain, own))
        y = Ref(own)
    if isinstance(shift, Ref):
        steps.append(at.sum([(y, 1.0), (shift, 1.0)], output))
    return steps


def _closed(at: _Lowering, call: Call) -> list[Step] | None:
    if call.func.namespace != "hessianlens":
        return None
    *tensors, number = call.args
    form = form_of(number)
    places = [k for k, tensor in enumerate(tensors) if isinstance(tensor, Ref)]
    if max(places) >= form.inputs:
        return None
    return [ClosedFormStep(call.refs, _output(call), form, [at.value(tensor) for tensor in tensors], places)]


MATRIX_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
"""Names of the calls that multiply matrices; which of them are made depends on shapes."""

_KNOWN: dict[str, Known] = {
    "add": _added,
    "sub": _added,
    "mul": _multiplied,
    "div": _divided,
    "mm": _matrices,
    "bmm": _matrices,
    "addmm": _matrices_and_more,
    "baddbmm": _matrices_and_more,
    "_softmax": _softmax,
    "_safe_softmax": _softmax,
    "_log_softmax": _softmax,
    "native_layer_norm": _layer_norm,
    "attention": _closed,
    "linear_cross_entropy": _closed,
}
