"""Many products with one batch: the first ones through autograd's graph, the others by the tape that stands its test.

A single product is no cheaper without the graph. Where more are made, a tape is, and it must prove itself on the last
product that came from the graph: a model with derivatives of its own making is found out there, and stays with the
graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.curvature.tape import Taped, Unrecordable
from hessianlens.problems import Batch, Problem

PATIENCE = 2
"""Products through the graph before a tape is made; it costs about three of them."""
WORTHWHILE = 3e8
"""Multiply-adds of a forward pass below which the graph, with fewer calls from Python, is as fast."""
_ROUNDING = 1e3
"""Units in the last place of the longest product by which both ways may differ."""

Tangents = Mapping[str, Tensor]
Parts = tuple[dict[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class _Product:
    """What was asked of the graph, and its answer."""

    kind: str
    tangents: Tangents
    names: tuple[str, ...]
    parts: Parts


class Repeated:
    """The products of a `Linearisation`, made for many of them.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: Parameters with respect to which derivatives will be asked for.
    """

    def __init__(self, problem: Problem, batch: Batch, names: Sequence[str]) -> None:
        self.problem, self.batch, self.names = problem, batch, tuple(names)
        self.taped: Taped | None = None
        self._graph: Linearisation | None = None
        self._made = 0
        self._last: _Product | None = None
        self._verdicts: dict[frozenset[str], str] = problem.remembered.setdefault("taped", {})

    @property
    def graph(self) -> Linearisation:
        """Autograd's graph, made when it is first needed."""
        if self._graph is None:
            self._graph = Linearisation(self.problem, self.batch, self.names)
        return self._graph

    @property
    def refusal(self) -> str | None:
        """Why there is no tape for these parameters, in words; empty if there is one; None if nobody has tried."""
        return self._verdicts.get(frozenset(self.names))

    @property
    def way(self) -> str:
        """How products are made now, and why, in words; empty as long as there were too few to choose."""
        if self.taped is not None:
            return "repeated products by tangent passes over a tape, which gives the same as autograd's graph"
        return f"repeated products through autograd's graph: {self.refusal}" if self.refusal else ""

    def hessian(self, tangents: Tangents, names: Sequence[str]) -> dict[str, Tensor]:
        """``H v``: rows `names`, columns those of `tangents`."""
        return self._product("hessian", tangents, names)[0]

    def gauss_newton(self, tangents: Tangents, names: Sequence[str]) -> dict[str, Tensor]:
        """``G v``."""
        return self._product("gauss_newton", tangents, names)[0]

    def functional(self, tangents: Tangents, names: Sequence[str]) -> dict[str, Tensor]:
        """``(H - G) v``, which is no difference."""
        return self._product("functional", tangents, names)[0]

    def split(self, tangents: Tangents, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """``G v`` and ``(H - G) v`` from what they share."""
        gauss_newton, rest = self._product("split", tangents, names)
        return gauss_newton, rest

    def release_graph(self) -> None:
        """Drop the graph; it is made anew if it is needed again."""
        self._graph = None

    def release(self) -> None:
        """Drop the graph and the tape."""
        self._graph = self.taped = None

    @property
    def held_bytes(self) -> int:
        """Memory of the tape, if there is one."""
        return 0 if self.taped is None else self.taped.held_bytes

    def _product(self, kind: str, tangents: Tangents, names: Sequence[str]) -> Parts:
        # A tape that has stood its test for another batch costs no more than a graph, even for a single product.
        if self.taped is None and (self.refusal == "" or (self._made >= PATIENCE and self.refusal is None)):
            self._try()
        if self.taped is not None:
            return _parts(self.taped, kind, tangents, names)
        found = _parts(self.graph, kind, tangents, names)
        self._made += 1
        if self._made == PATIENCE and self.refusal is None:
            self._last = _Product(kind, dict(tangents), tuple(names), found)
        return found

    def _try(self) -> None:
        """Make a tape and put it to the test, or remember why not."""
        verdict = self.refusal
        if verdict is None and self._work() < WORTHWHILE:
            verdict = "its tensors are so small that a tape would be no faster"
        if not verdict:
            self.release_graph()  # never both at once
            try:
                self.taped = Taped(self.problem, self.batch, self.names)
                verdict = "" if self._last is None else self._differs(self._last, self.taped)
            except (Unrecordable, NotImplementedError) as error:
                verdict = f"a tape does not fit, {error}"
            if verdict:
                self.taped = None
        self._verdicts[frozenset(self.names)] = verdict
        self._last = None

    def _work(self) -> float:
        """Multiply-adds of a forward pass, roughly: every weight meets every position of the outputs."""
        outputs = self.graph.outputs
        positions = outputs.numel() / (outputs.shape[-1] if outputs.ndim else 1)
        return positions * sum(tensor.numel() for tensor in self.problem.params.values() if tensor.ndim > 1)

    def _differs(self, product: _Product, taped: Taped) -> str:
        """How a tape contradicts a product of the graph, in words; empty if it does not."""
        found = _parts(taped, product.kind, product.tangents, product.names)
        size = max(_length(part) for part in product.parts)
        error = max(_length(_difference(*both)) for both in zip(found, product.parts, strict=True))
        if error <= _ROUNDING * torch.finfo(self.problem.dtype).eps * size:
            return ""
        return f"its derivatives are not those of its steps (a product differs by {error / max(size, 1e-300):.1g})"


def _parts(source: Linearisation | Taped, kind: str, tangents: Tangents, names: Sequence[str]) -> Parts:
    if kind == "split":
        return source.split(tangents, names)
    found: dict[str, Tensor] = getattr(source, kind)(tangents, names)
    return (found,)


def _length(tensors: Mapping[str, Tensor]) -> float:
    return sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5


def _difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] - other[name] for name in one}
