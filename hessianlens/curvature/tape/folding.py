"""Numbers that a product of matrices is multiplied with, moved into its factors, which are smaller than the product."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import Tensor

from hessianlens.curvature.tape.elementwise import ElementwiseStep
from hessianlens.curvature.tape.products import MatrixProduct
from hessianlens.curvature.tape.step import LinearStep, Step


def folded(steps: Sequence[Step]) -> list[Step]:
    """The same steps, with ``y = c (a b)`` as one of them, also where the product is seen in another shape between."""
    maker = {step.output: step for step in steps}
    uses = Counter(node for step in steps for node in step.inputs)
    gone: set[Step] = set()
    for step in steps:
        if not isinstance(step, ElementwiseStep) or step.bend is not None or not _is_number(step.slope):
            continue
        before = maker.get(step.inputs[0])
        source = _source(before, maker, uses)
        if before is not None and source is not None and source.absorbs:
            source.scale(float(step.slope))
            before.output = step.output
            maker[step.output] = before
            gone.add(step)
    return [step for step in steps if step not in gone]


def _is_number(slope: Tensor | float) -> bool:
    return isinstance(slope, float) and slope != 1


def _source(step: Step | None, maker: dict[int, Step], uses: Counter[int]) -> MatrixProduct | None:
    """The product that a step passes on, if nobody else reads it on the way."""
    while step is not None and uses[step.output] == 1:
        if isinstance(step, MatrixProduct):
            return step
        step = maker.get(step.inputs[0]) if isinstance(step, LinearStep) else None
    return None
