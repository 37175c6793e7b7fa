"""One measurement of a model in training: the weights of the moment, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from hessianlens.curvature import HessianOperator, TapeTests, loss_gradient
from hessianlens.errors import InputError
from hessianlens.monitor.arguments import Effort
from hessianlens.monitor.edge_of_stability import Edge, NormEdge
from hessianlens.monitor.records import HEAD_QUANTITIES, MODEL, Reading
from hessianlens.network.head_health import attention_health
from hessianlens.problems import Block, Problem, check_problem
from hessianlens.spectra import Estimate, LeadingEigenpair, RitzPairs, SpectralDensity, density, leading_eigenpair
from hessianlens.spectra.geometry import sharpness
from hessianlens.spectra.inertia_shares import RELATIVE_ZERO, inertia_of
from hessianlens.spectra.norms import norm_from_lengths
from hessianlens.spectra.products import LinearOperator

HVPS_PER_SEARCH = 4
"""HVPs of the first search for a largest eigenvalue, about."""
GRADIENTS_PER_HVP = 4.0
"""Gradients of the probe batch that an HVP takes with the work on its vectors, at most about."""
GRADIENTS_OF_VERIFICATION = 40.0
"""Gradients that the check of second derivatives and further first calls take, about."""
_FROM_SPECTRUM = ("trace", "norm", "negative")


class CountingOperator:
    """An operator that counts its products."""

    SELF_ADJOINT = True

    def __init__(self, op: LinearOperator) -> None:
        self.op, self.shape, self.dtype, self.device, self.products = op, op.shape, op.dtype, op.device, 0

    def __matmul__(self, X: Tensor) -> Tensor:
        self.products += X.shape[1]
        return self.op @ X


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

    def curvature(self, problem: Problem, name: str, blocks: Sequence[Block], edge: Edge | None) -> dict[str, Reading]:
        """The spectrum's numbers of one matrix, and with an edge the sharpness that the optimiser sees."""
        wanted = [quantity for quantity in ("top", *_FROM_SPECTRUM) if quantity in self.quantities]
        if not wanted and edge is None:
            return {}
        op = CountingOperator(HessianOperator(problem, blocks, blocks))
        found: dict[str, Reading] = {}
        known = RitzPairs()
        if any(quantity in self.quantities for quantity in _FROM_SPECTRUM):
            found |= self._from_spectrum(self._spectrum(op, known))
        if "top" in self.quantities:
            found["top"] = _top(self._leading(op, name, known))
        if isinstance(edge, NormEdge):
            found |= self._in_norm(problem, name, edge)
        elif edge is not None:
            seen = edge.seen(op)
            same = seen is op and "top" in found
            found["sharpness"] = (
                found["top"] if same else _top(self._leading(seen, f"{name}, as seen", edge.seen_pairs(known)))
            )
            found["edge"] = Reading.of(edge.limit)
        self.products += op.products
        return found

    def _in_norm(self, problem: Problem, name: str, edge: NormEdge) -> dict[str, Reading]:
        """The largest curvature that a step of an optimiser's own norm meets, searched from its last direction.

        The second start is the direction of the step itself, so that the curvature along it is never missed.
        """
        gradient = self.gradient(problem, edge.blocks)
        op = CountingOperator(HessianOperator(problem, edge.blocks, edge.blocks))
        step = torch.cat([block.take(gradient[block.parameter]).flatten() for block in edge.blocks])
        key = f"{name}, in the {edge.geometry} norm"
        before = self.vectors.get(key) if self.effort.warm else None
        begin = [v.to(step) for v in (before, step) if v is not None and bool(v.any())]
        found = sharpness(
            edge.seen(op),
            edge.geometry,
            shapes=[tuple(block.shape) for block in edge.blocks],
            start=torch.stack(begin, 1) if begin else None,
            starts=0 if begin else 1,
            most=self.effort.most,
            seed=self.effort.seed,
        )
        self.vectors[key] = found.direction
        self.searched += found.products
        self.products += op.products
        return {"sharpness": Reading.of(found.value), "edge": Reading.of(edge.limit(gradient))}

    def gradient(self, problem: Problem, blocks: Sequence[Block]) -> Mapping[str, Tensor]:
        """The gradient of some blocks, from which a measurement's price is forecast."""
        return loss_gradient(problem, list(dict.fromkeys(block.parameter for block in blocks)))[1]

    def gradients(self, whole: bool, blocks: int) -> float:
        """Gradients that a first measurement takes, about."""
        effort, spectra = self.effort, any(quantity in self.quantities for quantity in _FROM_SPECTRUM)
        each = effort.probes * effort.steps if spectra else 0
        searches = ("top" in self.quantities) * (blocks + whole) + ("edge" in self.quantities) * (blocks + whole)
        hvps = each * (blocks + whole) + HVPS_PER_SEARCH * searches
        return GRADIENTS_PER_HVP * hvps + GRADIENTS_OF_VERIFICATION

    def _spectrum(self, op: CountingOperator, known: RitzPairs) -> SpectralDensity:
        effort = self.effort
        return density(op, effort.probes, effort.steps, effort.seed, check_symmetry=False, keep=known)

    def _from_spectrum(self, spectrum: SpectralDensity) -> dict[str, Reading]:
        n, found = spectrum.dimension, {}
        if "trace" in self.quantities:
            found["trace"] = _times(spectrum.moment(1), n)
        if "norm" in self.quantities:
            lengths = (n * (spectrum.weights * spectrum.nodes.square()).sum(1)).sqrt()
            exact = Estimate.exactly(float(lengths[0])) if spectrum.exact else None
            found["norm"] = Reading.of(exact or norm_from_lengths(lengths, seed=spectrum.seed))
        if "negative" in self.quantities:
            signs = inertia_of(spectrum, relative=RELATIVE_ZERO)
            shares = {"negative": signs.negative, "zero": signs.zero, "positive": signs.positive}
            found |= {name: Reading.of(share) for name, share in {**shares, "negative_mass": signs.mass}.items()}
        return found

    def _leading(self, op: LinearOperator, name: str, known: RitzPairs) -> LeadingEigenpair:
        """The largest eigenvalue, from the last eigenvector and from what the random vectors have met.

        The latter see an eigenvalue that has overtaken the one that was followed.
        """
        effort, warm = self.effort, self.effort.warm
        start = self.vectors.get(name) if warm else None
        pair = leading_eigenpair(
            op, start, rtol=effort.rtol, most=effort.most, seed=effort.seed, known=known if warm else None
        )
        self.searched += pair.products
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


def measure_all(
    measurer: Measurer,
    problem: Problem,
    whole: Sequence[Block],
    blocks: Sequence[Block],
    edges: Mapping[str, Edge],
    notes: list[str],
) -> dict[str, dict[str, Reading]]:
    """All numbers of a measurement by what they belong to.

    Args:
        measurer: What to measure, and what it remembers.
        problem: The model as it is now.
        whole: All trained parameters, or none if they are not asked for.
        blocks: Blocks that are watched one by one.
        edges: How the optimiser sees the whole and the blocks, by name; what it does not see is left out.
        notes: Called with what was left out, and why.
    """
    parts: dict[str, Sequence[Block]] = {MODEL: whole} if whole else {}
    parts |= {block.name: [block] for block in blocks}
    loss, found = measurer.sizes(problem, parts)
    found.setdefault(MODEL, {})["probe_loss"] = Reading.of(loss)
    for name, members in parts.items():
        found[name] |= measurer.curvature(problem, name, members, edges.get(name))
    if "entropy" in measurer.quantities or "heads" in measurer.quantities:
        found |= measurer.attention(problem, notes)
    return found


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(t.detach(), dtype=torch.float64)) ** 2 for t in tensors))


def _times(estimate: Estimate, factor: float) -> Reading:
    low, high = estimate.interval()
    return Reading(factor * estimate.value, factor * low, factor * high)


def _top(pair: LeadingEigenpair) -> Reading:
    """A Ritz value is never above the largest eigenvalue; there is an eigenvalue within the residual."""
    return Reading(pair.value, pair.value - pair.residual, pair.value + pair.residual)


class LiveProblem:
    """A problem whose weights are read anew from its model.

    Args:
        problem: From `hessianlens.problem`; what it was made from must still be there.
    """

    def __init__(self, problem: Problem) -> None:
        source = check_problem(problem).source
        if not isinstance(source, nn.Module):
            raise InputError(
                "problem: it has no model to be watched, expected one that hessianlens.problem(model, ...) made."
            )
        self.base, self.model = problem, source
        # Whether a tape may take over from autograd's graph is a property of the model's steps: it is tested once.
        self._tape_tests = TapeTests()
        self._verified = False

    def now(self) -> Problem:
        """The problem with the weights and buffers that the model has now."""
        state: dict[str, Tensor] = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        missing = [name for name in self.base.params if name not in state]
        if missing:
            raise InputError(
                f"model: {missing[0]} is gone since the monitor was made, expected the same parameters; make a new one."
            )
        params = {name: _like(state[name], old) for name, old in self.base.params.items()}
        fresh = replace(self.base, params=params, verify=self.base.verify and not self._verified)
        return fresh.with_cached(self._tape_tests)

    def verified(self) -> None:
        """Second derivatives have been checked: they are those of the same model ever after."""
        self._verified = True

    def trained(self) -> list[Block]:
        """Every parameter that is trained, as a block of its own."""
        named = dict(self.model.named_parameters())
        return [Block.of(name, name, p) for name, p in named.items() if p.requires_grad and name in self.base.params]


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    return tensor.detach().to(device=old.device, dtype=old.dtype)
