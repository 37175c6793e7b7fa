r"""`directional`: the curvature of an update, taken apart by pairs of blocks.

With an update ``d = sum_a d_a`` over groups of weights, gradient g and Hessian ``H = G + F``,

    loss(w + t d) = loss(w) + t sum_a g' d_a + t^2 / 2 sum_ab d_a' H d_b + ...

One HVP per group gives a whole column of ``d_a' H d_b``, because the rows are inner products with what is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hessianlens.curvature import Repeated, loss_gradient, verify
from hessianlens.errors import check_choice, check_number, check_that, expect
from hessianlens.network.base.progress import Watch, watching
from hessianlens.parts import PARTS, check_parts
from hessianlens.problems import Problem, check_problem
from hessianlens.problems.block import layer_of
from hessianlens.state_guard import restores_state
from hessianlens.updates.update import Direction, Update, as_direction
from hessianlens.updates.update_curvature import UpdateCurvature

Tangents = dict[str, Tensor]

GROUPINGS = ("block", "layer", "head")
OTHER = "other"
"""What lies in no block."""
ALONG = (0.25, 0.5, 1.0, 2.0)
"""Multiples of the update at which the loss is computed."""


@restores_state
def directional(
    problem: Problem,
    update: Update,
    *,
    by: str = "block",
    parts: Sequence[str] = PARTS,
    along: Sequence[float] = ALONG,
    progress: bool | Watch = False,
) -> UpdateCurvature:
    """First and second derivative of the loss along an update, by block, layer or head, and the true loss along it.

    Every number is exact up to rounding. The cost is one HVP per group, and one GGN-vector product if `parts` needs it.

    Args:
        problem: From `hessianlens.problem`, on the data whose loss you want to decompose.
        update: What is added to the weights: tensors by parameter name; a list of tensors in the model's order; the
            optimiser, for the step that it is about to make (from its parameters' gradients or, if there are none, the
            gradient of this problem's loss); a function that maps the gradients by name to the updates by name; or a
            pair of state dictionaries or models, before and after.
        by: Groups of weights: "block", "layer" or "head", which splits the blocks of attention.
        parts: Any of "full", "ggn" and "functional".
        along: Multiples t of the update at which the true loss is computed.
        progress: Whether to display a progress bar.

    >>> import hessianlens as hl
    >>> model, task = hl.models.Transformer(d_model=8, d_mlp=16, dtype=torch.float64), hl.tasks.Addition(digits=2)
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> step = directional(problem, optimizer, by="layer")
    >>> step.groups, step.slope < 0 < step.curvature("ggn")
    (('embed', 'pos', 'unembed', 'unembed.bias', 'layer0'), True)
    >>> torch.allclose(step.pairs("full"), step.pairs("ggn") + step.pairs("functional"))
    True
    """
    check_problem(problem)
    check_choice("by", by, GROUPINGS)
    parts = check_parts(parts)
    multiples = _multiples(along)
    direction = as_direction(problem, update, lambda: loss_gradient(problem, _differentiable(problem))[1])
    with watching(progress) as watch:
        return _measured(direction, _groups(direction, by), parts, multiples, watch)


def _measured(
    direction: Direction, groups: Mapping[str, Tangents], parts: tuple[str, ...], along: Sequence[float], watch: Watch
) -> UpdateCurvature:
    problem, names = direction.problem, list(direction.tangents)
    verify(problem, names, names)
    asked = parts if len(parts) == 1 else ("ggn", "functional")
    size = len(groups)

    def share() -> list[Tensor]:
        total = [torch.zeros(size, dtype=torch.float64), *(torch.zeros(size, size, dtype=torch.float64) for _ in asked)]
        for batch in problem.data:
            at = Repeated(problem, batch, names)
            at.expect(size)
            total[0] += _inner(at.graph.gradient(names), groups)
            for column, (name, tangents) in enumerate(groups.items()):
                watch.step(name)
                for matrix, product in zip(total[1:], _products(at, asked, tangents, names), strict=True):
                    matrix[:, column] += _inner(product, groups)
                watch.products(1 / len(problem.data))
        return total

    slopes, *matrices = problem.ranks.all_reduce("the curvature of an update", share)
    found = {part: (m + m.T) / 2 for part, m in zip(asked, matrices, strict=True)}
    if len(parts) > 1 and "full" in parts:
        found["full"] = found["ggn"] + found["functional"]
    watch.end()
    losses = [(t, _loss(direction, t)) for t in sorted((0.0, *along))]
    lengths = [math.sqrt(sum(float(x.double().square().sum()) for x in d.values())) for d in groups.values()]
    return UpdateCurvature(
        groups=tuple(groups),
        slopes=tuple(slopes.tolist()),
        lengths=tuple(lengths),
        matrices={part: found[part] for part in parts},
        losses=tuple(losses),
        notes=direction.notes,
    )


def _products(
    at: Repeated, parts: Sequence[str], tangents: Tangents, names: Sequence[str]
) -> Sequence[Mapping[str, Tensor]]:
    """The parts of the Hessian times a tangent, on all parameters."""
    if len(parts) > 1:
        return at.split(tangents, names)
    (part,) = parts
    return [{"full": at.hessian, "ggn": at.gauss_newton, "functional": at.functional}[part](tangents, names)]


def _inner(product: Mapping[str, Tensor], groups: Mapping[str, Tangents]) -> Tensor:
    """The inner product with every group, added up in double precision."""
    sums = [
        sum(float((product[name].double() * x.double()).sum()) for name, x in tangents.items())
        for tangents in groups.values()
    ]
    return torch.tensor(sums, dtype=torch.float64)


def _loss(direction: Direction, t: float) -> float:
    params = direction.problem.params
    return float(direction.problem.total_loss({name: params[name] + t * x for name, x in direction.tangents.items()}))


def _multiples(along: Sequence[float]) -> list[float]:
    check_that(isinstance(along, Sequence) and not isinstance(along, str), "along", along, "numbers, e.g. (0.5, 1.0)")
    return sorted({check_number("along", t) for t in along} - {0.0})


# --- groups of weights -----------------------------------------------------------------------------------------------


def _groups(direction: Direction, by: str) -> dict[str, Tangents]:
    """The update cut into pieces that add up to it; groups that it leaves alone are left out."""
    problem, found = direction.problem, dict[str, Tangents]()
    left = {name: tensor.clone() for name, tensor in direction.tangents.items()}
    covered = {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in left.items()}
    for block in problem.blocks.values():
        if block.parameter not in left:
            continue
        for piece in (problem.parts.get(block.name) or [block]) if by == "head" else [block]:
            tangent = piece.embed(piece.take(left[block.parameter]), left[block.parameter]).clone()
            mask = piece.embed(torch.ones(piece.shape, dtype=torch.bool), covered[block.parameter])
            expect(not (covered[block.parameter] & mask).any(), f"by: {piece.name} shares entries with another block.")
            covered[block.parameter] |= mask
            name = (layer_of(piece.name) or piece.name) if by == "layer" else piece.name
            own = found.setdefault(name, {})
            own[block.parameter] = own[block.parameter] + tangent if block.parameter in own else tangent
    rest = {name: torch.where(covered[name], 0, tensor) for name, tensor in left.items()}
    found[OTHER] = {name: tensor for name, tensor in rest.items() if not covered[name].all()}
    return {name: own for name, own in found.items() if any(bool((x != 0).any()) for x in own.values())}


def _differentiable(problem: Problem) -> list[str]:
    return list(dict.fromkeys(block.parameter for block in problem.blocks.values()))
