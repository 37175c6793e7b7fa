"""Claimed derivatives against finite differences, with a verdict only where the difference itself can be trusted.

The difference ``D(h) = (f(x + h v) - f(x)) / h`` is wrong where h is too large (bends), too small (rounding, also of
steps that a model computes in a narrower dtype) or where a kink lies within the step, or right at x. What is wrong for
such a reason changes with the size of h, its sign or the direction. So a claim is right if it agrees with D at *some*
step, and it is wrong only if D stays the same over several steps of very different sizes, both ways, and the claim is
far from all of them, in several directions. Anything else is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from hessianlens.derivatives.graph import is_refusal, narrower, once_only, padding

Rows = Mapping[str, Tensor]
"""A gradient, or its derivative along a direction, by the name of the variable."""
VALUE = ""
"""The name of the row that stands for the function itself."""
Difference = tuple[float, tuple[Tensor, Tensor]]
"""The size of a step, and the differences of a row over a step of this size there and back."""

_ROUNDING = 30.0
"""Times the machine precision to which a gradient is computed, at worst."""
_NARROWER = 2.0 * torch.finfo(torch.float32).eps
"""Relative size of a change that a step in a narrower dtype may not feel."""
_CLEARLY = 10.0
"""How far a claim must be from a difference, in units of the difference's own uncertainty, to be wrong."""
_DIRECTIONS = 3
"""In how many of one more a claim must be wrong."""
_COARSE = 0.03
"""Agreement that is enough where a difference is visibly no better than that."""


@dataclass(frozen=True)
class StepSizes:
    """Sizes of steps relative to the point, and what is asked of a claim.

    Attributes:
        sizes: From small to large.
        felt: The smallest that is felt also where a step of the function is computed in a narrower dtype.
        relative: Agreement asked for.
    """

    sizes: tuple[float, ...]
    felt: float
    relative: float


STEPS = {
    torch.float64: StepSizes((3e-9, 3e-8, 3e-7, 3e-6, 3e-5, 3e-4, 3e-3, 3e-2), 3e-7, 1e-4),
    torch.float32: StepSizes((3e-4, 1e-3, 3e-3, 1e-2, 3e-2), 3e-4, 2e-2),
}
"""By dtype; half precision has no differences to speak of."""


class Agreement(Enum):
    """What a finite difference says about claimed derivatives."""

    RIGHT = 0
    OPEN = 1
    WRONG = 2


@dataclass(frozen=True)
class DerivativeComparison:
    """The verdict, and for a wrong claim the row, its norm by difference and as claimed."""

    verdict: Agreement
    row: str = VALUE
    found: float = 0.0
    claimed: float = 0.0


@dataclass(frozen=True, eq=False)
class DirectionSample:
    """A function somewhere along a direction, as autograd sees it.

    Attributes:
        value: Its value.
        slope: Its gradient times the direction.
        gradient: Rows of its gradient.
    """

    value: Tensor
    slope: Tensor
    gradient: Rows


def compare(
    sample: Callable[[float], DirectionSample],
    claim: Rows,
    scales: Mapping[str, float],
    dtype: torch.dtype,
    narrower: bool = False,
) -> DerivativeComparison:
    """The slope, and a claimed derivative of the gradient along a direction, against differences.

    Args:
        sample: From a step along the direction to the function there.
        claim: The derivative of the gradient along the direction, as claimed.
        scales: Size of the variable that belongs to each row of the gradient; in these units rows can be compared.
        dtype: Precision in which the function is computed.
        narrower: Whether some of it may be computed in a narrower dtype; small steps then pass it by.
    """
    steps, start = STEPS[dtype], sample(0.0)
    sizes = _Sizes(start, claim, scales, _ROUNDING * torch.finfo(dtype).eps, _NARROWER if narrower else 0.0)
    smallest = steps.felt if narrower else steps.sizes[0]
    quick = steps.felt if narrower else steps.sizes[1]  # kinks ask for small steps
    claimed = {VALUE: start.slope, **claim}
    first = _differences(start, sample(quick), quick)
    found: dict[str, list[Difference]] = {
        row: [] for row in claimed if not _agrees(first[row], claimed[row], steps.relative, sizes.rounding(row, quick))
    }
    if not found:
        return DerivativeComparison(Agreement.RIGHT)
    for h in steps.sizes:
        there, back = (_differences(start, sample(step), step) for step in (h, -h))
        for row, differences in found.items():
            differences.append((h, (there[row], back[row])))
    verdicts = [_judged(row, claimed[row], D, smallest, steps.relative, sizes) for row, D in found.items()]
    return max(verdicts, key=lambda one: one.verdict.value)


def confirm(in_direction: Callable[[int], DerivativeComparison]) -> DerivativeComparison:
    """The verdict in two directions; if it is that a claim is wrong in one, only if it is the same in enough others.

    Along a single direction a part that is missing may be small by chance.

    Args:
        in_direction: From the number of a direction to the comparison there.
    """
    found = [in_direction(0), in_direction(1)]
    wrong = [one for one in found if one.verdict is Agreement.WRONG]
    for number in range(2, _DIRECTIONS + 1):
        if wrong and len(wrong) < _DIRECTIONS:
            found.append(in_direction(number))
            wrong += [found[-1]] if found[-1].verdict is Agreement.WRONG else []
    if wrong:
        return wrong[0] if len(wrong) == _DIRECTIONS else DerivativeComparison(Agreement.OPEN)
    return max(found, key=lambda one: one.verdict.value)


def _differences(start: DirectionSample, there: DirectionSample, step: float) -> dict[str, Tensor]:
    """Differences of the rows; that of the value as far as the slopes at both ends do not explain it.

    Where a kink lies between them a true slope changes at once, and the value with it.
    """
    mean = (there.value - start.value) / step
    between = torch.clamp(mean, torch.minimum(start.slope, there.slope), torch.maximum(start.slope, there.slope))
    rows = {row: (value - start.gradient[row]) / step for row, value in there.gradient.items()}
    return {VALUE: start.slope + (mean - between), **rows}


class _Sizes:
    """The sizes that rounding is measured by: a gradient is a sum of terms as large as itself and its derivative."""

    def __init__(
        self, start: DirectionSample, claim: Rows, scales: Mapping[str, float], rounding: float, unfelt: float
    ) -> None:
        self.scales, self._rounding, self._unfelt = scales, rounding, max(rounding, unfelt)
        self.value = _norm(start.value)
        self.gradient = max(self._total(rows) for rows in (start.gradient, claim))

    def _total(self, rows: Rows) -> float:
        return sum((self.scales[row] * _norm(value)) ** 2 for row, value in rows.items()) ** 0.5

    def rounding(self, row: str, step: float) -> float:
        """Error of a difference by rounding, at worst."""
        return self._rounding * self._size(row) / step

    def unfelt(self, row: str, step: float) -> float:
        """A derivative that may be there and not show in a difference."""
        return self._unfelt * self._size(row) / step

    def _size(self, row: str) -> float:
        """Of the numbers that a row is made of; a gradient may be what is left of them after they cancel."""
        return (self.value + self.gradient) / (1.0 if row == VALUE else self.scales[row])


def _agrees(found: Tensor, claimed: Tensor, relative: float, otherwise: float) -> bool:
    return _distance(found, claimed) <= relative * max(_norm(found), _norm(claimed)) + otherwise


def _judged(
    row: str, claimed: Tensor, differences: Sequence[Difference], smallest: float, relative: float, sizes: _Sizes
) -> DerivativeComparison:
    """The verdict on one row: it is right if it agrees with a difference at some step from `smallest` on.

    Where a difference is visibly coarse its agreement may be as well, but not where others are sharp and far away.
    """
    felt = [
        (step, D, next_D)
        for (step, found), (_, further) in pairwise(differences)
        for D, next_D in zip(found, further, strict=True)
        if step >= smallest
    ]
    if any(_agrees(D, claimed, relative, sizes.rounding(row, step)) for step, D, _ in felt):
        return DerivativeComparison(Agreement.RIGHT)
    for k in range(len(differences) - 3):
        if _settled(row, claimed, differences[k : k + 3], differences[k + 3 :], relative, sizes):
            return DerivativeComparison(Agreement.WRONG, row, _norm(differences[k + 1][1][0]), _norm(claimed))
    for step, D, next_D in felt:
        coarse = min(_distance(D, next_D), _COARSE * _norm(D))
        if _agrees(D, claimed, relative, sizes.rounding(row, step) + coarse):
            return DerivativeComparison(Agreement.RIGHT)
    return DerivativeComparison(Agreement.OPEN)


def _settled(
    row: str,
    claimed: Tensor,
    close: Sequence[Difference],
    larger: Sequence[Difference],
    relative: float,
    sizes: _Sizes,
) -> bool:
    """Whether differences over three sizes are one, over a larger one not far from it, and the claim is.

    What all three may have failed to feel would show over the larger one.
    """
    found = [D for _, both in close for D in both]
    spread = max(_distance(one, other) for one in found for other in found)
    away = min(_distance(D, claimed) for D in found)
    size = max(_norm(claimed), *(_norm(D) for D in found))
    if away <= _CLEARLY * max(spread, relative * size, *(sizes.rounding(row, step) for step, _ in close)):
        return False
    felt = next((both for step, both in larger if _CLEARLY * sizes.unfelt(row, step) < away), ())
    return bool(felt) and all(_distance(D, found[0]) < away / 2 for D in felt)


def _norm(tensor: Tensor) -> float:
    return float(tensor.norm())


def _distance(one: Tensor, other: Tensor) -> float:
    return _norm(one - other)


Point = Mapping[str, Tensor]
Potential = Callable[[Point], Tensor]


def scale_of(tensor: Tensor, otherwise: float = 1.0) -> float:
    """Root mean square of a tensor; `otherwise` where it is zero throughout."""
    found = float(tensor.detach().double().square().mean().sqrt()) if tensor.numel() else 0.0
    return found if found > 0 else otherwise


def random_like(tensor: Tensor, seed: int = 0) -> Tensor:
    """Independent normal numbers in the shape, dtype and place of a tensor, the same on every device.

    >>> random_like(torch.zeros(2, dtype=torch.float64)).dtype
    torch.float64
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64, device="cpu").to(tensor)


def random_direction(leaf: Tensor, size: float, seed: int, left_out: Sequence[tuple[Tensor, int]]) -> Tensor:
    """A random direction at a leaf, zero in rows that PyTorch leaves out of its gradient on purpose."""
    drawn = size * random_like(leaf, seed).detach()
    for other, row in left_out:
        if other is leaf:
            drawn[row] = 0
    return drawn


def cannot_be_differentiated_twice(potential: Potential, point: Point) -> bool:
    """Whether autograd refuses, or would have to, to differentiate twice."""
    leaves = _leaves(point)
    value = potential(leaves)
    if once_only(value):
        return True
    try:
        slope = _slope(_gradient(value, leaves, graph=True), point)
        _gradient(slope, leaves, graph=False)
    except RuntimeError as error:
        return is_refusal(error)
    return False


def hides_a_derivative(potential: Potential, point: Point) -> bool:
    """Whether autograd's derivatives are clearly not those of the function."""
    return confirm(partial(_compared, potential, point)).verdict is Agreement.WRONG


def _compared(potential: Potential, point: Point, number: int) -> DerivativeComparison:
    """Autograd's first and second derivatives along a random direction, against differences."""
    scales = {name: scale_of(tensor) for name, tensor in point.items()}
    leaves = _leaves(point)
    value = potential(leaves)
    left_out = padding(value)
    seeds = {name: number * len(point) + k for k, name in enumerate(point)}
    v = {name: random_direction(leaf, scales[name], seeds[name], left_out) for name, leaf in leaves.items()}

    def there(step: float) -> DirectionSample:
        moved = _leaves({name: tensor + step * v[name] for name, tensor in point.items()})
        found = potential(moved)
        gradient = _gradient(found, moved, graph=False)
        return DirectionSample(found.detach(), _slope(gradient, v), gradient)

    claim = _gradient(_slope(_gradient(value, leaves, graph=True), v), leaves, graph=False)
    return compare(there, claim, scales, value.dtype, narrower(value))


def _leaves(point: Point) -> dict[str, Tensor]:
    return {name: tensor.detach().requires_grad_() for name, tensor in point.items()}


def _slope(gradient: Point, direction: Point) -> Tensor:
    return torch.stack([(gradient[name] * v).sum() for name, v in direction.items()]).sum()


def _gradient(value: Tensor, leaves: Point, graph: bool) -> dict[str, Tensor]:
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), create_graph=graph, allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if d is None else d for (name, leaf), d in pairs}
