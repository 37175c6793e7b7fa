"""One measurement of a model in training: the weights of the moment, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

from hessianlens.curvature import HessianOperator, loss_gradient
from hessianlens.monitor.arguments import Effort
from hessianlens.monitor.edge_of_stability import Edge, NormEdge
from hessianlens.monitor.plan import FEWEST_HVPS_PER_SEARCH, MeasurementPlan, whole_plan
from hessianlens.monitor.records import HEAD_QUANTITIES, MODEL, Reading
from hessianlens.network.head_health import attention_health
from hessianlens.problems import Block, Problem
from hessianlens.spectra import Estimate, LeadingEigenpair, Probes, RitzPairs, SpectralDensity
from hessianlens.spectra.densities import density_iteration
from hessianlens.spectra.geometry import ascent_iteration
from hessianlens.spectra.inertia_shares import RELATIVE_ZERO, inertia_of
from hessianlens.spectra.lanczos_quadrature import lanczos_room
from hessianlens.spectra.largest_eigenvalue import eigenpair_iteration
from hessianlens.spectra.norms import norm_from_lengths
from hessianlens.spectra.products import LinearOperator, announce, multiply
from hessianlens.spectra.reverse_communication import Iteration
from hessianlens.spectra.summation import paired_inner_products, row_lengths

T = TypeVar("T")

TOGETHER_ENTRIES = 2**21
"""Entries of all Lanczos vectors up to which all probes are multiplied at once: through one graph of a small model."""


class CountingOperator:
    """An operator that counts its products."""

    SELF_ADJOINT = True

    def __init__(self, op: LinearOperator) -> None:
        self.op, self.shape, self.dtype, self.device, self.products = op, op.shape, op.dtype, op.device, 0

    def __matmul__(self, X: Tensor) -> Tensor:
        self.products += X.shape[1]
        return self.op @ X


class WorkPiece(NamedTuple):
    """A piece of work that is done at once.

    Attributes:
        work: "gradient", "attention", "first HVP" (of a matrix, with its graph) or "HVP".
        matrix: The model as a whole, or a block; empty where that makes no difference.
        vectors: Vectors that are multiplied.
    """

    work: str
    matrix: str = ""
    vectors: int = 1


Pieces: TypeAlias = Generator[WorkPiece, None, T]
"""Work that may pause: it says what comes next, and does that when it is asked to go on."""


def all_at_once(pieces: Pieces[T]) -> T:
    """The result of work without a pause."""
    try:
        while True:
            next(pieces)
    except StopIteration as end:
        result: T = end.value
        return result


@dataclass(eq=False)
class Measurer:
    """Measures one model again and again; the eigenvectors that it found last are where it begins the next time.

    Attributes:
        quantities: Among `hessianlens.monitor.arguments.QUANTITIES`.
        effort: How much goes into them.
        vectors: By matrix, the eigenvector found last.
        products: Products with Hessians so far.
        searched: Those of them that went into largest eigenvalues.
    """

    quantities: Sequence[str]
    effort: Effort
    vectors: dict[str, Tensor] = field(default_factory=dict)
    products: int = 0
    searched: int = 0
    # Memory for long vectors stays from one measurement to the next: to be given it anew costs a gradient per vector.
    _spaces: dict[str, RitzPairs] = field(default_factory=dict)
    _rooms: dict[str, Tensor] = field(default_factory=dict)

    def curvature(
        self,
        problem: Problem,
        name: str,
        blocks: Sequence[Block],
        edge: Edge | None,
        plan: MeasurementPlan,
        found: dict[str, Reading],
    ) -> Pieces[None]:
        """The spectrum's numbers of one matrix, and with an edge the sharpness that the optimiser sees."""
        if not plan.sampled and "top" not in plan.quantities and edge is None:
            return
        op = CountingOperator(HessianOperator(problem, blocks, blocks))
        space = self._spaces.setdefault(name, RitzPairs(each=1))
        space.hold(0)
        if plan.spectral:
            announce(op.op, plan.effort.probes * plan.effort.steps)
            spectrum = yield from self._answered(op, name, self._quadrature(op, name, space, plan))
            found.update(_from_spectrum(spectrum, plan))
        elif plan.sampled:
            announce(op.op, plan.effort.probes)
            found.update((yield from self._answered(op, name, _trace_and_norm(op, space, plan))))
        if "top" in plan.quantities:
            found["top"] = _top((yield from self._leading(op, name, name, space, plan)))
        if isinstance(edge, NormEdge):
            found.update((yield from self._in_norm(problem, name, edge, plan)))
        elif edge is not None:
            seen = edge.seen(op)
            if seen is op and "top" in found:
                found["sharpness"] = found["top"]
            else:
                edge.see_pairs(space)
                as_seen = f"{name}, as seen"
                found["sharpness"] = _top((yield from self._leading(seen, name, as_seen, space, plan)))
            found["edge"] = Reading.of(edge.limit)

    def _answered(self, op: LinearOperator, name: str, iteration: Iteration[T]) -> Pieces[T]:
        """The result of an iteration, with a pause in front of every product."""
        try:
            vectors = next(iteration)
            while True:
                yield WorkPiece("HVP" if _counted(op).products else "first HVP", name, vectors.shape[1])
                product = multiply(op, vectors)
                self.products += vectors.shape[1]
                vectors = iteration.send(product)
        except StopIteration as end:
            result: T = end.value
            return result

    def _quadrature(
        self, op: CountingOperator, name: str, space: RitzPairs, plan: MeasurementPlan
    ) -> Iteration[SpectralDensity]:
        probes, steps = _probes(op, plan), min(plan.effort.steps, int(op.shape[1]))
        chunk = probes.count if probes.dim * probes.count * steps <= TOGETHER_ENTRIES else 1
        if name not in self._rooms:
            self._rooms[name] = lanczos_room(probes.dim, chunk, steps, op.dtype, op.device)
        return density_iteration(probes, steps, chunk, space, self._rooms[name])

    def _in_norm(
        self, problem: Problem, name: str, edge: NormEdge, plan: MeasurementPlan
    ) -> Pieces[dict[str, Reading]]:
        """The largest curvature that a step of an optimiser's own norm meets, searched from its last direction.

        The second start is the direction of the step itself, so that the curvature along it is never missed.
        """
        yield WorkPiece("gradient")
        gradient = self.gradient(problem, edge.blocks)
        op = CountingOperator(HessianOperator(problem, edge.blocks, edge.blocks))
        step = torch.cat([block.take(gradient[block.parameter]).flatten() for block in edge.blocks])
        key = f"{name}, in the {edge.geometry} norm"
        before = self.vectors.get(key) if self.effort.warm else None
        begin = [v.to(step) for v in (before, step) if v is not None and bool(v.any())]
        if not begin:
            begin = [Probes(len(step), 1, self.effort.seed, "gaussian", op.dtype, op.device).vector(0)]
        shapes = [tuple(block.shape) for block in edge.blocks]
        made = self.products
        most = max(FEWEST_HVPS_PER_SEARCH, plan.effort.most // (len(begin) if plan.limited else 1))
        ascent = ascent_iteration(edge.geometry, shapes, begin, most)
        found = yield from self._answered(edge.seen(op), name, ascent)
        self.vectors[key] = found.direction
        self.searched += self.products - made
        return {"sharpness": Reading.of(found.value), "edge": Reading.of(edge.limit(gradient))}

    def gradient(self, problem: Problem, blocks: Sequence[Block]) -> Mapping[str, Tensor]:
        """The gradient of some blocks."""
        return loss_gradient(problem, list(dict.fromkeys(block.parameter for block in blocks)))[1]

    def _leading(
        self, op: LinearOperator, matrix: str, name: str, space: RitzPairs, plan: MeasurementPlan
    ) -> Pieces[LeadingEigenpair]:
        """The largest eigenvalue, from the last eigenvector and from what the random vectors have met.

        The latter see an eigenvalue that has overtaken the one that was followed.
        """
        effort = plan.effort
        if not effort.warm:
            space.hold(0)
        fresh = Probes(int(op.shape[1]), 1, effort.seed, "gaussian", op.dtype, op.device)
        start = self.vectors.get(name) if effort.warm else None
        made = self.products
        search = eigenpair_iteration(fresh, start, space, rtol=effort.rtol, most=effort.most)
        pair = yield from self._answered(op, matrix, search)
        self.searched += self.products - made
        self.vectors[name] = pair.vector
        return pair

    def sizes(
        self, problem: Problem, blocks: Mapping[str, Sequence[Block]]
    ) -> tuple[float, dict[str, dict[str, Reading]]]:
        """The loss on the probe batch, and by name the lengths of gradients and weights."""
        gradient: Mapping[str, Tensor] = {}
        if "gradient" in self.quantities:
            names = list(dict.fromkeys(block.parameter for parts in blocks.values() for block in parts))
            loss, gradient = loss_gradient(problem, names)
        else:
            with torch.no_grad():
                loss = float(problem.total_loss())
        found: dict[str, dict[str, Reading]] = {name: {} for name in blocks}
        for quantity, tensors in (("gradient", gradient), ("weight", problem.params)):
            if quantity in self.quantities:
                for name, parts in blocks.items():
                    found[name][quantity] = Reading.of(
                        _length([block.take(tensors[block.parameter]) for block in parts])
                    )
        return loss, found

    def attention(self, problem: Problem, notes: list[str]) -> dict[str, dict[str, Reading]]:
        """Entropies by layer, and what every head looks at; what is left out is noted."""
        health = attention_health(problem)
        notes.extend(health.left_out)
        found: dict[str, dict[str, Reading]] = {}
        if "entropy" in self.quantities:
            for name, means in health.layers.items():
                found[f"{name}.attn"] = {
                    "entropy": Reading.of(means.entropy),
                    "entropy_lowest_head": Reading.of(means.lowest),
                    "entropy_share": Reading.of(means.share),
                    "saturated": Reading.of(means.saturated),
                }
        if "heads" in self.quantities:
            for head in health.heads:
                numbers = {quantity: float(getattr(head, name)) for quantity, name in HEAD_QUANTITIES.items()}
                known = {quantity: Reading.of(v) for quantity, v in numbers.items() if math.isfinite(v)}
                found[head.name] = known
        return found


def measurement_pieces(
    measurer: Measurer,
    problem: Problem,
    whole: Sequence[Block],
    blocks: Sequence[Block],
    edges: Mapping[str, Edge],
    notes: list[str],
    plan: MeasurementPlan,
    found: dict[str, dict[str, Reading]],
) -> Pieces[None]:
    """All numbers of a measurement by what they belong to, piece by piece.

    Args:
        measurer: What to measure, and what it remembers.
        problem: The model as it is now.
        whole: All trained parameters, or none if they are not asked for.
        blocks: Blocks that are watched one by one.
        edges: How the optimiser sees the whole and the blocks, by name; what it does not see is left out.
        notes: Is added to: what was left out, and why.
        plan: How much is measured this time.
        found: Is added to: the numbers, as soon as they are there.
    """
    parts: dict[str, Sequence[Block]] = {MODEL: whole} if whole else {}
    parts |= {block.name: [block] for block in blocks}
    yield WorkPiece("gradient")
    loss, sizes = measurer.sizes(problem, parts)
    found.update(sizes)
    found.setdefault(MODEL, {})["probe_loss"] = Reading.of(loss)
    if "entropy" in measurer.quantities or "heads" in measurer.quantities:
        yield WorkPiece("attention")
        found.update(measurer.attention(problem, notes))
    for name, members in parts.items():
        yield from measurer.curvature(problem, name, members, edges.get(name), plan, found[name])


def _counted(op: Any) -> CountingOperator:
    """The operator within one that an optimiser sees."""
    return op if isinstance(op, CountingOperator) else _counted(op.op)


def _probes(op: CountingOperator, plan: MeasurementPlan) -> Probes:
    return Probes(int(op.shape[1]), plan.effort.probes, plan.effort.seed, "rademacher", op.dtype, op.device)


def _trace_and_norm(op: CountingOperator, space: RitzPairs, plan: MeasurementPlan) -> Iteration[dict[str, Reading]]:
    """Trace and norm from one product per probe; the vectors and products are where searches begin."""
    probes = _probes(op, plan)
    along, lengths = [], []
    for V in probes.chunks(1):
        v = V.T
        product = (yield V).reshape(1, -1)
        along.append(paired_inner_products(v[:, None], product[:, None])[:, 0])
        lengths.append(row_lengths(product))
        space.add(v[0], product[0])
    traces = Estimate.from_samples(torch.cat(along), probes.count, probes.seed, "hutchinson")
    numbers = {"trace": Reading.of(traces), "norm": Reading.of(norm_from_lengths(torch.cat(lengths), seed=probes.seed))}
    return {name: reading for name, reading in numbers.items() if name in plan.quantities}


def _from_spectrum(spectrum: SpectralDensity, plan: MeasurementPlan) -> dict[str, Reading]:
    n, found = spectrum.dimension, {}
    if "trace" in plan.quantities:
        found["trace"] = _times(spectrum.moment(1), n)
    if "norm" in plan.quantities:
        lengths = (n * (spectrum.weights * spectrum.nodes.square()).sum(1)).sqrt()
        exact = Estimate.exactly(float(lengths[0])) if spectrum.exact else None
        found["norm"] = Reading.of(exact or norm_from_lengths(lengths, seed=spectrum.seed))
    if "negative" in plan.quantities:
        signs = inertia_of(spectrum, relative=RELATIVE_ZERO)
        shares = {"negative": signs.negative, "zero": signs.zero, "positive": signs.positive}
        found |= {name: Reading.of(share) for name, share in {**shares, "negative_mass": signs.mass}.items()}
    return found


def rehearse(
    measurer: Measurer, problem: Problem, blocks: Sequence[Block], clock: Callable[[], float]
) -> Iterator[tuple[WorkPiece, float]]:
    """What is done once before the first measurement, and then pieces of work with the seconds that they take.

    Args:
        measurer: What will be measured.
        problem: The model as it is before the run.
        blocks: All that is watched.
        clock: Seconds that pass.
    """
    for known in (False, True):  # the first gradient also makes what stays
        began = clock()
        measurer.gradient(problem, blocks)
        if known:
            yield WorkPiece("gradient"), clock() - began
    plan = whole_plan(measurer.quantities, measurer.effort)
    if not plan.sampled and not {"top", "edge"} & set(plan.quantities):
        return
    op = HessianOperator(problem, blocks, blocks)
    announce(op, plan.effort.probes * plan.effort.steps)
    vector = Probes(op.shape[1], 1, measurer.effort.seed, "rademacher", op.dtype, op.device).matrix(0, 1)
    for known in (False, True):  # with the check of second derivatives, and the test of a tape
        began = clock()
        multiply(op, vector)
        if known:
            yield WorkPiece("HVP", MODEL), clock() - began


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64)) ** 2 for t in tensors))


def _times(estimate: Estimate, factor: float) -> Reading:
    low, high = estimate.interval()
    return Reading(factor * estimate.value, factor * low, factor * high)


def _top(pair: LeadingEigenpair) -> Reading:
    """A Ritz value is never above the largest eigenvalue; there is an eigenvalue within the residual."""
    return Reading(pair.value, pair.value - pair.residual, pair.value + pair.residual)
