"""A tape: the steps of a function at a point, run forwards with tangents and backwards with cotangents."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from hessianlens.curvature.tape.lowering import MATRIX_PRODUCTS, lower_to_steps
from hessianlens.curvature.tape.rearranging import REARRANGING
from hessianlens.curvature.tape.recording import Unrecordable, record_function
from hessianlens.curvature.tape.step import Cotangent, PartialCotangent, Step


class Tape:
    """A function of named tensors at a point, as straight steps with two derivatives each.

    Only what depends on the named tensors is on it: nothing below them is run again. With y the output and g a
    cotangent of it that is fixed once, it gives

        J v,    J^T u,    and    sum_k g_k d^2 y_k v.

    Args:
        function: From tensors to a tensor.
        leaves: The point.

    Attributes:
        kinds: The operations it is made of, but for those that rearrange numbers or multiply matrices.

    >>> tape = Tape(lambda at: at["x"].pow(3), {"x": torch.tensor([1.0, 2.0])})
    >>> tape.keep(torch.tensor([1.0, 10.0]))
    >>> moves = tape.forward({"x": torch.ones(2)})
    >>> tape.result(moves), tape.backward(None, moves, ["x"])["x"]
    (tensor([ 3., 12.]), tensor([  6., 120.]))
    """

    def __init__(self, function: Callable[[Mapping[str, Tensor]], Tensor], leaves: Mapping[str, Tensor]) -> None:
        recording = record_function(function, leaves)
        if recording.output is None or recording.output in recording.leaves.values():
            raise Unrecordable("its result does not depend on them through any step")
        self.output = recording.values[recording.output]
        self.kinds = recording.kinds - REARRANGING - MATRIX_PRODUCTS
        self._leaves, self._last = recording.leaves, recording.output
        self._shapes = {node: value.shape for node, value in recording.values.items()}
        self.steps: list[Step] = lower_to_steps(recording)
        self._zeros = {name: leaf.detach() for name, leaf in leaves.items()}
        self._held = {node for step in self.steps if step.reads_moved for node in step.inputs}
        self._held |= {step.output for step in self.steps if step.reads_result}
        self._uses = {node: k for k, step in enumerate(self.steps) for node in step.inputs}
        self._above: dict[tuple[str, ...], set[int]] = {}

    def keep(self, g: Tensor) -> None:
        """Fix the cotangent around which second derivatives are taken."""
        with torch.no_grad():
            sums = _Sums(self._last, g)
            inner = {step.output for step in self.steps}
            for step in reversed(self.steps):
                own = sums.pop(step.output)
                if own is None:
                    own = torch.zeros(self._shape(step), dtype=g.dtype, device=g.device)
                step.keep(own)
                wanted = [node in inner for node in step.inputs]
                if any(wanted):
                    sums.add_all(step, step.backward(own, (), None, wanted), wanted, self._shapes)

    def _shape(self, step: Step) -> torch.Size:
        return self._shapes[step.output]

    def forward(self, tangents: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Tangents of what the second derivative and the result need."""
        with torch.no_grad():
            moves = {self._leaves[name]: tangent for name, tangent in tangents.items() if name in self._leaves}
            for k, step in enumerate(self.steps):
                moved = [moves.get(node) for node in step.inputs]
                if any(dx is not None for dx in moved):
                    moves[step.output] = step.forward(moved)
                for node in step.inputs:
                    if self._uses[node] == k and node not in self._held:
                        moves.pop(node, None)
        return moves

    def result(self, moves: Mapping[int, Tensor]) -> Tensor | None:
        """``J v``; None if it is zero."""
        return moves.get(self._last)

    def backward(self, u: Tensor | None, moves: Mapping[int, Tensor] | None, names: Sequence[str]) -> dict[str, Tensor]:
        """``J^T u + sum_k g_k d^2 y_k v`` on some leaves; without `moves` the first term alone.

        Args:
            u: A cotangent of the output; None for zero.
            moves: What `forward` gave for v.
            names: The leaves.
        """
        above, given = self._depending(tuple(names)), moves or {}
        with torch.no_grad():
            sums = _Sums(self._last, u)
            for step in reversed(self.steps):
                if step.output not in above:
                    continue
                own = sums.pop(step.output)
                moved = [given.get(node) for node in step.inputs] if step.reads_moved and given else ()
                result = given.get(step.output) if step.reads_result else None
                if own is None and result is None and not any(dx is not None for dx in moved):
                    continue
                wanted = [node in above for node in step.inputs]
                sums.add_all(step, step.backward(own, moved, result, wanted), wanted, self._shapes)
            found = {name: sums.pop(self._leaves[name]) if name in self._leaves else None for name in names}
        return {name: torch.zeros_like(self._zeros[name]) if d is None else d for name, d in found.items()}

    def _depending(self, names: tuple[str, ...]) -> set[int]:
        """Everything that depends on some leaves."""
        if names not in self._above:
            above = {self._leaves[name] for name in names if name in self._leaves}
            for step in self.steps:
                if above.intersection(step.inputs):
                    above.add(step.output)
            self._above[names] = above
        return self._above[names]

    def held_bytes(self, others: Collection[int] = ()) -> int:
        """Memory of the distinct tensors that the steps hold.

        Args:
            others: Addresses of memory that is there anyway.
        """
        distinct = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for s in self.steps for t in s.tensors()
        }
        return sum(size for address, size in distinct.items() if address not in others)


class _Sums:
    """Cotangents by number, added up as they come."""

    def __init__(self, node: int, first: Tensor | None) -> None:
        self._found: dict[int, Tensor] = {} if first is None else {node: first}
        self._own: set[int] = set()

    def pop(self, node: int) -> Tensor | None:
        self._own.discard(node)
        return self._found.pop(node, None)

    def add_all(
        self, step: Step, found: Sequence[Cotangent], wanted: Sequence[bool], shapes: Mapping[int, torch.Size]
    ) -> None:
        for node, cotangent, want in zip(step.inputs, found, wanted, strict=True):
            if want and cotangent is not None:
                self._add(node, cotangent, shapes)

    def _add(self, node: int, cotangent: Tensor | PartialCotangent, shapes: Mapping[int, torch.Size]) -> None:
        before = self._found.get(node)
        if isinstance(cotangent, PartialCotangent):
            if node not in self._own:
                whole = cotangent.part.new_zeros(shapes[node]) if before is None else before.clone()
                self._found[node] = whole
                self._own.add(node)
            cotangent.place(self._found[node]).add_(cotangent.part)
        elif before is None:
            self._found[node] = cotangent
        elif node in self._own:
            before.add_(cotangent)
        else:
            self._found[node] = before + cotangent
            self._own.add(node)
