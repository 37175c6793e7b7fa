"""Many HVPs with one batch: by a tape that passes its test, or else through autograd's graph.

Where a model is large enough a tape multiplies faster than the graph. It is tested on an HVP that came from the graph,
by which a model with derivatives of its own making is found out, and stays with the graph. A single HVP is cheapest
through the graph: the first ones come from there, and are the test; unless whoever knows how many will follow says so
(`Repeated.expect`), and they are many. Then an excerpt of the batch is the test, and the tape is made before the first
HVP. A tape with steps of kinds that were not in the test is tested on the batch.

In small models calls from Python take the time. There several vectors go through the graph at once. How many is counted
from sizes, never from a clock: the same calls give the same numbers, bit by bit. Every graph's first vector is also
multiplied by itself, and must give the same.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.curvature import thresholds
from hessianlens.curvature.excerpts import candidates
from hessianlens.curvature.linearisation import Linearisation
from hessianlens.curvature.tape import TapedLinearisation, Unrecordable
from hessianlens.curvature.thresholds import largest_size, matrix_entries, tape_can_pay_off
from hessianlens.curvature.verification import Steps, verify_steps
from hessianlens.derivatives.step_check import StepCheck
from hessianlens.errors import InputError
from hessianlens.memory import lacks_memory
from hessianlens.problems import Batch, Problem

_SMALL = "its tensors are so small that a tape would be no faster"
_ROUNDING = 1e3
"""Units in the last place of the longest product by which both ways may differ."""

Tangents = Mapping[str, Tensor]
Parts = tuple[dict[str, Tensor], ...]


@dataclass(frozen=True, eq=False)
class _Request:
    """A product that is asked for."""

    kind: str
    tangents: Tangents
    names: tuple[str, ...]

    def of(self, source: Linearisation | TapedLinearisation) -> Parts:
        """The answer of a graph or a tape."""
        found = getattr(source, self.kind)(self.tangents, self.names)
        return found if self.kind == "split" else (found,)

    def of_several(self, graph: Linearisation) -> Parts:
        """The answers of a graph, along an axis in front."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # of a step that is then looped over
            found = getattr(graph, self.kind)(self.tangents, self.names, several=True)
        return found if self.kind == "split" else (found,)

    def single(self, k: int) -> _Request:
        """The same for one of several vectors."""
        return _Request(self.kind, {name: v[k] for name, v in self.tangents.items()}, self.names)


@dataclass(frozen=True, eq=False)
class _Reference:
    """What was asked of the graph of some sequences, its answer, and about how much work a forward pass of them is."""

    batch: Batch
    asked: _Request
    parts: Parts
    work: float


@dataclass(frozen=True)
class TapeTest:
    """Why there is no tape, empty if there is one; and the kinds of steps that were in its test."""

    why: str
    kinds: frozenset[str] = frozenset()


class GraphTests(dict[frozenset[str], str]):
    """Why several vectors cannot go through the graphs of some parameters at once; empty where they can."""


class TapeTests(dict[frozenset[str], TapeTest]):
    """The tests of the tapes of a problem, by the parameters that they differentiate."""


class Repeated:
    """The products of a `Linearisation`, made for many of them.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: Parameters with respect to which derivatives will be asked for.
    """

    def __init__(self, problem: Problem, batch: Batch, names: Sequence[str]) -> None:
        self.problem, self.batch, self.names = problem, batch, tuple(names)
        self.taped: TapedLinearisation | None = None
        self._graph: Linearisation | None = None
        self._check: StepCheck | None = None
        self._made = self._coming = 0
        self._last: _Reference | None = None
        self._excerpts = True  # until they turn out to say nothing
        self._tests = problem.cached(TapeTests, TapeTests)
        self._graph_tests = problem.cached(GraphTests, GraphTests)

    @property
    def graph(self) -> Linearisation:
        """Autograd's graph, made when it is first needed."""
        if self._graph is None:
            self._graph = Linearisation(self.problem, self.batch, self.names, self._check)
            if self._check is None:
                verify_steps(self._graph)
        return self._graph

    def watch(self) -> bool:
        """Have the steps of the products that follow looked at; False where these do not come from the graph."""
        if self.taped is not None or self._due:
            return False
        self._graph, self._check = None, StepCheck()
        return True

    def seen_steps(self) -> Steps:
        """What `watch` has shown; no more is looked at."""
        check, self._check = self._check, None
        assert check is not None
        if self._graph is not None:
            self._graph.check = None
        return Steps(check.doubt, check.kinds)

    @property
    def _test(self) -> TapeTest | None:
        """On these parameters, or on more, as far as a tape fits them; None if nobody has tried."""
        own = frozenset(self.names)
        wider = (found for names, found in self._tests.items() if own <= names and not found.why)
        return self._tests.get(own) or next(wider, None)

    @property
    def refusal(self) -> str | None:
        """Why there is no tape for these parameters, as text; empty if there is one; None if nobody has tried."""
        found = self._test
        return None if found is None else found.why

    @property
    def way(self) -> str:
        """How products are made now, and the reason; empty as long as there were too few to choose."""
        if self.taped is not None:
            return "repeated HVPs by tangent passes over a tape, which gives the same as autograd's graph"
        if self._graph_tests.get(frozenset(self.names)) == "":
            return "repeated HVPs through autograd's graph, several vectors at once, since its tensors are small"
        return f"repeated HVPs through autograd's graph: {self.refusal}" if self.refusal else ""

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

    def several(self, kind: str, tangents: Tangents, names: Sequence[str]) -> Parts:
        """Products with several vectors, along an axis in front; one after the other where `vectors_at_once` is one.

        Args:
            kind: "hessian", "gauss_newton", "functional" or "split", which has two parts.
            tangents: By parameter, the vectors.
            names: Parameters of the rows.
        """
        asked = _Request(kind, dict(tangents), tuple(names))
        count = len(next(iter(tangents.values())))
        if count > 1 and self.vectors_at_once(count) > 1:
            found = self._at_once(asked)
            if found is not None:
                self._made, self._coming = self._made + count, self._coming - count
                return found
        singles = [self._product(kind, asked.single(k).tangents, names) for k in range(count)]
        return tuple(
            {name: torch.stack([one[name] for one in part]) for name in names} for part in zip(*singles, strict=True)
        )

    def vectors_at_once(self, count: int) -> int:
        """How many of so many vectors go through the graph at once; counted from sizes."""
        if self.taped is not None or self._graph_tests.get(frozenset(self.names)):
            return 1
        if self.problem.device.type == "meta" or tape_can_pay_off(self.problem, self.batch):
            return 1
        work = max(largest_size(self.batch), 1) * matrix_entries(self.problem)
        fewest, most = thresholds.VECTORS_AT_ONCE
        if work * fewest > thresholds.VECTORS_MULTIPLY_ADDS or not self.graph.takes_several:
            return 1
        work = max(work, self.graph.end.positions * matrix_entries(self.problem), 1)
        width = min(count, most, int(thresholds.VECTORS_MULTIPLY_ADDS // work))
        return width if width >= fewest else 1

    def _at_once(self, asked: _Request) -> Parts | None:
        """The products by one vectorised pass; None where that fails, or is not what a single pass gives."""
        key = frozenset(self.names)
        try:
            found = asked.of_several(self.graph)
        except (RuntimeError, NotImplementedError, InputError) as error:  # a step that cannot be vectorised
            if lacks_memory(error):
                raise
            self._graph_tests[key] = "a step cannot be vectorised"
            return None
        if key not in self._graph_tests:
            single = asked.single(0).of(self.graph)
            first = tuple({name: part[name][0] for name in part} for part in found)
            same = _same(first, single, self.problem.dtype)
            self._graph_tests[key] = "" if same else "vectorised, a step has other derivatives"
            return found if same else None
        return found

    def expect(self, products: int) -> None:
        """Say how many products will follow at least."""
        self._coming = products

    def release_graph(self) -> None:
        """Drop the graph; it is made anew if it is needed again."""
        self._graph = None

    def release(self) -> None:
        """Drop the graph and the tape."""
        self._graph = self.taped = None

    @property
    def next_seconds(self) -> float:
        """Time that the next product through the graph takes, as far as the last one tells; zero if there is none."""
        return 0.0 if self._graph is None else self._graph.product_seconds

    @property
    def held_bytes(self) -> int:
        """Memory of the tape, if there is one."""
        return 0 if self.taped is None else self.taped.held_bytes

    def _product(self, kind: str, tangents: Tangents, names: Sequence[str]) -> Parts:
        asked = _Request(kind, dict(tangents), tuple(names))
        if self.taped is None and self._due:
            self._try(asked)
        self._coming -= 1
        if self.taped is not None:
            return asked.of(self.taped)
        found = asked.of(self.graph)
        self._made += 1
        if self._made == thresholds.TAPE_MIN_HVPS_DONE and self.refusal is None:
            self._last = self._reference(self.batch, self.graph, asked, found)
        return found

    @property
    def _due(self) -> bool:
        """Whether a tape is to be tried; one that stood its test for another batch costs no more than a graph."""
        many = self._coming >= thresholds.TAPE_MANY_HVPS
        if self.refusal is not None and not (many and self.refusal == _SMALL):
            return self.refusal == ""
        if self.problem.device.type == "meta":  # without contents there is nothing to compare
            return False
        if self._made >= thresholds.TAPE_MIN_HVPS_DONE and self.refusal is None:
            return True
        if self._coming < thresholds.TAPE_MIN_HVPS_BY_EXCERPT:
            return False
        if not tape_can_pay_off(self.problem, self.batch, self._least_work):
            return False
        cheap = self._excerpts and self._smallest <= thresholds.EXCERPT_MAX_SHARE
        return cheap or self._coming >= thresholds.TAPE_MIN_HVPS_EXPECTED

    @property
    def _least_work(self) -> float:
        """Multiply-adds of a forward pass below which a tape is no faster."""
        least, if_many = thresholds.TAPE_MIN_MULTIPLY_ADDS, thresholds.TAPE_MIN_MULTIPLY_ADDS_IF_MANY
        return min(least, if_many) if self._coming >= thresholds.TAPE_MANY_HVPS else least

    @property
    def _smallest(self) -> float:
        """Share of the batch that its smallest piece is."""
        return largest_size(next(candidates(self.batch))) / max(largest_size(self.batch), 1)

    def _try(self, asked: _Request) -> None:
        """Make a tape and put it to the test, or remember why not."""
        test = None if self.refusal == _SMALL else self._test
        try:
            if test is None:
                reference = self._last or self._reference_of_excerpt(asked)
                if reference is None:
                    self._excerpts = False
                    return
                test = self._tested(reference)
            if not test.why and self.taped is None:
                test = self._made_for(test, asked)
        except (Unrecordable, NotImplementedError) as error:
            test = TapeTest(f"a tape does not fit, {error}")
        self._tests[frozenset(self.names)] = test
        self._last = None

    def _made_for(self, test: TapeTest, asked: _Request) -> TapeTest:
        """The tape of the batch, after a test on a piece of it; on the batch itself if it has steps of other kinds."""
        self.release_graph()  # never both at once
        taped = TapedLinearisation(self.problem, self.batch, self.names)
        if taped.kinds <= test.kinds:
            self.taped = taped
            return test
        del taped
        found = self._tested(self._reference(self.batch, self.graph, asked, asked.of(self.graph)))
        return found if found.why else TapeTest("", found.kinds | test.kinds)

    def _reference_of_excerpt(self, asked: _Request) -> _Reference | None:
        """The graph's answer for a piece of the batch that says something; else for the batch, if many will follow."""
        for batch in candidates(self.batch):
            if batch is self.batch:
                break
            try:
                graph = Linearisation(self.problem, batch, self.names)
                found = asked.of(graph)
            except Exception:  # whatever a model says of a piece, the batch will say it again
                continue
            if 0 < max(_length(part) for part in found) < math.inf:
                return self._reference(batch, graph, asked, found)
        if self._coming < thresholds.TAPE_MIN_HVPS_EXPECTED:
            return None
        return self._reference(self.batch, self.graph, asked, asked.of(self.graph))

    def _reference(self, batch: Batch, graph: Linearisation, asked: _Request, found: Parts) -> _Reference:
        """Every weight meets every position of the outputs: that is the work, roughly, in multiply-adds."""
        return _Reference(batch, asked, found, graph.end.positions * matrix_entries(self.problem))

    def _tested(self, reference: _Reference) -> TapeTest:
        """Whether a tape gives what the graph gives; if the test was with the whole batch, the tape stays."""
        whole = reference.batch is self.batch
        if reference.work * largest_size(self.batch) < self._least_work * largest_size(reference.batch):
            return TapeTest(_SMALL)
        if whole:
            self.release_graph()  # never both at once
        taped = TapedLinearisation(self.problem, reference.batch, self.names)
        found = reference.asked.of(taped)
        if not _same(found, reference.parts, self.problem.dtype):
            off = f"a product differs by {_relative_difference(found, reference.parts):.1g}"
            return TapeTest(f"its derivatives are not those of its steps ({off})")
        self.taped = taped if whole else None
        return TapeTest("", taped.kinds)


def _relative_difference(found: Parts, expected: Parts) -> float:
    """Between products, of the longest part."""
    size = max(_length(part) for part in expected)
    return max(_length(_difference(*both)) for both in zip(found, expected, strict=True)) / max(size, 1e-300)


def _same(found: Parts, expected: Parts, dtype: torch.dtype) -> bool:
    """Whether products are the same up to rounding."""
    return _relative_difference(found, expected) <= _ROUNDING * torch.finfo(dtype).eps


def _length(tensors: Mapping[str, Tensor]) -> float:
    return sum(float(tensor.double().square().sum()) for tensor in tensors.values()) ** 0.5


def _difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one[name] - other[name] for name in one}
