"""The curvature at the maps behind the last attention layer, backpropagated from the end of the network.

With g and H the gradient and the Hessian of the loss at what some maps put out, and a map i with ``z_i = a_i W``, its
inputs a function of its sources p, q, ...: where i is done with,

    H_pq  +=  J_p^T W H_ii W^T J_q  +  J_p^T W H_iq  +  (J_q^T W H_ip)^T  +  sum_k (W g_i)_k  d^2 a_k / dz_p dz_q

at every position by itself. So what all maps share is looked at once, where products would go through the whole of the
network for every feature of every map. The curvature of an MLP's wide layer is never formed: its two maps are taken as
one, with ``J = W_1 diag(phi') W_2`` and ``W_1 diag(phi'' * W_2 g) W_1^T``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.memory import available_bytes
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.linear_map.batch_graph import (
    Column,
    Graphs,
    InputMotion,
    SiteCurvature,
    site_curvatures,
)
from hessianlens.network.routes.linear_map.plan import KEPT_BYTES, LinearMapPlan
from hessianlens.network.routes.linear_map.readout import Readout
from hessianlens.network.routes.linear_map.steps import EntryByEntry, FollowingSteps, Form, MapStep, downstream_steps
from hessianlens.problems import Problem

_CHUNK_BYTES = 2**22
"""Room for one matrix per position; some ten of them are held at once."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A matrix at some positions, ``[position, feature, feature]``: its Gauss-Newton part and the rest, if any."""

    ggn: Tensor
    functional: Tensor | None = None

    def __add__(self, other: Parts) -> Parts:
        given = [part for part in (self.functional, other.functional) if part is not None]
        return Parts(self.ggn + other.ggn, given[0] + given[1] if len(given) == 2 else next(iter(given), None))

    def plus(self, functional: Tensor) -> Parts:
        """The same with something more in the functional part."""
        return Parts(self.ggn, functional if self.functional is None else self.functional + functional)

    @property
    def T(self) -> Parts:
        """Transposed."""
        return Parts(self.ggn.mT, None if self.functional is None else self.functional.mT)

    def left(self, factor: Tensor) -> Parts:
        """``F A`` with F one matrix, or one a position."""
        return self.each(lambda part: factor @ part)

    def scaled(self, gains: Tensor | None) -> Parts:
        """``diag(w) A`` with w one vector, or one a position; None stands for ones."""
        return self if gains is None else self.each(lambda part: gains[..., None] * part)

    def each(self, turn: Callable[[Tensor], Tensor]) -> Parts:
        """The same done with both parts."""
        return Parts(turn(self.ggn), None if self.functional is None else turn(self.functional))


def backpropagate_curvature(readout: Readout, steps: FollowingSteps, others: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Both parts of the curvature at a map, and at some behind it that are not wide, ``[position, f, f]``.

    Args:
        readout: The network's last map and the cross-entropy behind it.
        steps: What follows the map.
        others: Maps behind it whose curvature is wanted too, at the most; the nearest.
    """
    wide = {one.site for step in steps.by_site.values() for one in _wide(steps, step) or ()}
    kept = {steps.site, *sorted(set(steps.by_site) - wide)[:others]}
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for chosen in _chunks(readout):
        for at, parts in _Backpropagation(steps, chosen).on_the_way(readout):
            if at in kept:
                ggn, functional = found.setdefault(at, _room(parts, len(readout.at)))
                ggn[chosen] = parts.ggn
                if parts.functional is not None:
                    functional[chosen] = parts.functional
    return found


def _room(parts: Parts, positions: int) -> tuple[Tensor, Tensor]:
    shape = (positions, *parts.ggn.shape[1:])
    none = parts.ggn.new_zeros(()).expand(shape)
    return parts.ggn.new_empty(shape), none if parts.functional is None else parts.ggn.new_empty(shape)


def _chunks(readout: Readout) -> Iterator[slice]:
    positions, width = readout.at.shape
    size = max(1, _CHUNK_BYTES // (width**2 * readout.at.element_size()))
    for start in range(0, positions, size):
        yield slice(start, min(start + size, positions))


@dataclass(eq=False)
class _Backpropagation:
    """Some positions, on the way to the front.

    Attributes:
        steps: What there is to pass.
        chosen: The positions.
        hessian: Between what two maps put out, the later one first.
        gradient: At what each puts out.
    """

    steps: FollowingSteps
    chosen: slice
    hessian: dict[tuple[int, int], Parts] = field(default_factory=dict)
    gradient: dict[int, Tensor] = field(default_factory=dict)

    def on_the_way(self, readout: Readout) -> Iterator[tuple[int, Parts]]:
        """Map after map, the last one first."""
        self._pass(self.steps.last, Parts(readout.curvature_at(self.chosen)), {}, readout.gradient[self.chosen])
        while (at := max(self.gradient)) > self.steps.site:
            yield at, self.hessian[at, at]
            self._leave(self.steps.by_site[at])
        yield at, self.hessian[at, at]

    def _leave(self, step: MapStep) -> None:
        """From what a map puts out to what goes into it, and on to its sources."""
        own = self.hessian.pop((step.site, step.site))
        g = self.gradient.pop(step.site)
        others = {k: self.hessian.pop((step.site, k)) for k in list(self.gradient) if (step.site, k) in self.hessian}
        if (wide := _wide(self.steps, step)) is None:
            W, form, second_derivative = step.weight, step.form, None
            g = W * g if step.gain else g @ W.T
        else:
            W, second_derivative, g = self._through(step, wide, g)
            form = wide[0].form
        turn = Parts.scaled if step.gain else Parts.left
        turned = turn(turn(own, W).T, W)  # H is symmetric, and so is this
        if second_derivative is not None:
            turned = turned.plus(second_derivative)
        self._pass(form, turned, {k: turn(part, W) for k, part in others.items()}, g)

    def _through(self, step: MapStep, wide: Sequence[MapStep], g: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Jacobian, functional curvature and gradient at the inputs of an MLP."""
        form = step.form
        assert isinstance(form, EntryByEntry)
        g = g @ step.weight.T
        J: Tensor | None = None
        gradient: Tensor | None = None
        second_derivative: Tensor | None = None
        for one in wide:
            slope = form.first[one.site]
            # [position, input, output]: the weight of the first map, scaled, times that of the second
            scaled = one.weight.expand(len(g), -1, -1) if slope is None else one.weight * slope[self.chosen, None]
            J = _sum(J, scaled @ step.weight)
            gradient = _sum(gradient, (g if slope is None else g * slope[self.chosen]) @ one.weight.T)
        weights = {one.site: one.weight for one in wide}
        for (p, q), second in form.second.items():
            found = (weights[p] * (second[self.chosen] * g)[:, None]) @ weights[q].T
            second_derivative = _sum(second_derivative, found if p == q else found + found.mT)
        assert J is not None and gradient is not None
        return J, second_derivative, gradient

    def _pass(self, form: Form, own: Parts, others: dict[int, Parts], g: Tensor) -> None:
        """From the inputs of a map to its sources."""
        if isinstance(form, EntryByEntry):
            slopes = {p: None if s is None else s[self.chosen] for p, s in form.first.items()}
            for p, q in combinations_with_replacement(form.sources, 2):
                vjp = own.scaled(slopes[p]).T.scaled(slopes[q]).T
                for pair in {(p, q), (q, p)} & set(form.second):
                    vjp = vjp.plus(torch.diag_embed(form.second[pair][self.chosen] * g))
                self._add(p, q, vjp)
            for p, slope in slopes.items():
                self.gradient[p] = _sum(self.gradient.get(p), g if slope is None else g * slope)
                for k, part in others.items():
                    self._cross(p, k, part.scaled(slope))
            return

        def pull(parts: Parts) -> Parts:
            return parts.each(lambda part: form.vjp(part, self.chosen))

        both = pull(pull(own).T).plus(form.second_derivative(g, self.chosen))
        slope = form.vjp(g[..., None], self.chosen)[..., 0]
        crossed = {k: pull(part) for k, part in others.items()}
        for p, q in combinations_with_replacement(form.sources, 2):
            self._add(p, q, both)
        for p in form.sources:
            self.gradient[p] = _sum(self.gradient.get(p), slope)
            for k, part in crossed.items():
                self._cross(p, k, part)

    def _cross(self, p: int, k: int, part: Parts) -> None:
        self._add(p, k, part + part.T if p == k else part)

    def _add(self, p: int, q: int, parts: Parts) -> None:
        key, parts = ((p, q), parts) if p >= q else ((q, p), parts.T)
        self.hessian[key] = self.hessian[key] + parts if key in self.hessian else parts


def _wide(steps: FollowingSteps, step: MapStep) -> list[MapStep] | None:
    """The first maps of an MLP whose last map a step is, if they have more outputs and the same inputs."""
    form = step.form
    if not isinstance(form, EntryByEntry) or step.gain or len(step.weight) <= step.weight.shape[1]:
        return None
    first = [steps.by_site.get(source) for source in form.sources]
    known = [one for one in first if one is not None and not one.gain]
    alike = len(known) == len(first) and len({one.inputs for one in known}) == 1
    elsewhere = [steps.last, *(one.form for one in steps.by_site.values() if one is not step)]
    alone = not any(set(form.sources) & set(other.sources) for other in elsewhere)
    return known if alike and alone else None


def _sum(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more


_ROOM = 2**29
"""Bytes of curvature at other maps that are kept for later."""
_SHARE = 0.25
"""Share of the free memory that they may take."""

Curvature = tuple[Tensor, Tensor]
"""Gauss-Newton and functional part, ``[position, feature, feature]``."""


class BackpropagatedCurvature:
    """What lies behind the last attention layer of a problem.

    Args:
        problem: From `hessianlens.problem`.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._known: dict[tuple[int, int], Curvature] = {}
        self._refused: set[tuple[int, int]] = set()
        self._before: dict[tuple[int, str], int] = {}

    def curvature(
        self, number: int, use: Use, readout: Readout, agrees: Callable[[Curvature], bool]
    ) -> Curvature | None:
        """The curvature at what a map puts out; None if what lies behind it has no simple form.

        Args:
            number: Of the batch.
            use: The map, or a bias that is added behind one.
            readout: The network's last map.
            agrees: Whether a curvature is that of the network, by a product with it.
        """
        key = number, self._before.get((number, use.parameter), use.site)
        if (number, use.site) in self._refused:
            return None
        if key not in self._known:
            found = self._found(number, use, readout)
            if found is None or not agrees(found):
                self._refused.add((number, use.site))
                self._known.pop(key, None)
                return None
            return found
        return self._known[key]

    def _found(self, number: int, use: Use, readout: Readout) -> Curvature | None:
        steps = downstream_steps(self.problem, self.problem.data[number], use, readout.use)
        if steps is None:
            return None
        self._before |= {(number, parameter): site for parameter, site in steps.shifted.items()}
        self._known.clear()  # before there is more
        each = 2 * readout.at.element_size() * len(readout.at) * len(readout.weight) ** 2
        room = min(_ROOM, int(_SHARE * available_bytes(self.problem.device)))
        found = backpropagate_curvature(readout, steps, others=room // each)
        self._known |= {(number, site): parts for site, parts in found.items()}
        return found[steps.site]


class Curvatures:
    """Second derivatives between what maps put out, as many as there is room for.

    Args:
        problem: From `hessianlens.problem`.
        graphs: Its graphs.
        last_site: Gives the last map of the network.
        tick: Is called after every product.
    """

    def __init__(
        self, problem: Problem, graphs: Graphs, last_site: Callable[[], int], tick: Callable[[], None]
    ) -> None:
        self._graphs, self._last_site, self._tick = graphs, last_site, tick
        self._backpropagated = BackpropagatedCurvature(problem)
        self._known: dict[tuple[object, ...], SiteCurvature | InputMotion] = {}

    def between(self, plan: LinearMapPlan, number: int) -> SiteCurvature:
        """Between what the two maps of a plan put out, at a batch."""
        if (passed := self._from_last_map(plan, number)) is not None:
            return passed
        found = self._known_or_found(plan, number)
        assert isinstance(found, SiteCurvature)
        return found

    def motion(self, plan: LinearMapPlan, number: int) -> InputMotion:
        """How the inputs of the last map move with what the row of a plan puts out, at a batch."""
        found = self._known_or_found(plan, number)
        assert isinstance(found, InputMotion)
        return found

    def _known_or_found(self, plan: LinearMapPlan, number: int) -> SiteCurvature | InputMotion:
        if (key := _key(plan, number)) not in self._known:
            self.find([plan], number)
        return self._known[key]

    def find(self, plans: Sequence[LinearMapPlan], number: int) -> None:
        """The curvature of plans with the same row, from the same products."""
        row, groups = plans[0].row[number], plans[0].groups[number][0]
        needed = [plan for plan in plans if not plan.same_site or self._from_last_map(plan, number) is None]
        missing = {key: plan for plan in needed if (key := _key(plan, number)) not in self._known}
        if not missing:
            return
        columns = [
            Column(
                plan.column[number], plan.groups[number][1], self._graphs.readout(number) if plan.reads_out else None
            )
            for plan in missing.values()
        ]
        pieces = (row, *(column.piece for column in columns if column.readout is None))
        hooked = self._graphs.hooked_batch(number, pieces, plans[0].products)
        found = site_curvatures(hooked, row, groups, columns, self._tick)
        size = sum(one.held_bytes for one in found)
        while self._known and size + self._held() > KEPT_BYTES:
            del self._known[next(iter(self._known))]
        self._known |= dict(zip(missing, found, strict=True))

    def _held(self) -> int:
        return sum(found.held_bytes for found in self._known.values())

    def _from_last_map(self, plan: LinearMapPlan, number: int) -> SiteCurvature | None:
        """The curvature at one map from all that lies behind it, step by step; None if that has no simple form."""
        row, column, (grouping, _) = plan.row[number], plan.column[number], plan.groups[number]
        if row.use.kind is Kind.LOOK_UP or row.use.site != column.use.site or grouping.members > 1:
            return None
        if row.use.site >= self._last_site():
            return None
        readout = self._graphs.readout(number)
        # A few features of a wide map are found sooner by products.
        if readout is None or not row.use.outputs[-1] <= len(readout.weight) <= 2 * len(row.features):
            return None

        def agrees(parts: tuple[Tensor, Tensor]) -> bool:
            return self._graphs.hooked_batch(number, (row,)).agrees(row.use.site, parts)

        whole = self._backpropagated.curvature(number, row.use, readout, agrees)
        if whole is None:
            return None
        if min(len(row.features), len(column.features)) < row.use.outputs[-1]:
            whole = whole[0][:, row.features][..., column.features], whole[1][:, row.features][..., column.features]
        return SiteCurvature(whole[0][:, None, :, None], whole[1][:, None, :, None], None)


def _key(plan: LinearMapPlan, number: int) -> tuple[object, ...]:
    """What the curvature between two maps is known by."""
    row, column = plan.row[number], plan.column[number]
    sides = [(piece.use.site, tuple(piece.features.tolist())) for piece in (row, column)]
    return (
        number,
        plan.reads_out,
        *sides,
        () if plan.same_site else (column.use.parameter, tuple(column.inputs.tolist())),
    )
