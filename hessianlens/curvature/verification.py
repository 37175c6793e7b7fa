"""`verify`: whether autograd's second derivatives are those of the function, once a problem.

They are if every step is one of PyTorch's own and was seen by autograd (`hessianlens.derivatives.step_check`). Where
that is not certain, differences of the gradient decide: a backward that saved a detached tensor, a kernel that autograd
cannot look into, a straight-through step each leave autograd with a second derivative that lacks a part, and no error.
The gradient itself knows better: along random directions in every layer its finite difference must be
``G v + (H - G) v``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from hessianlens.curvature.excerpts import Piece, candidates, excerpt, representative_sequence, sequences_with_steps
from hessianlens.curvature.linearisation import Linearisation
from hessianlens.curvature.missing_derivatives import locate_missing_derivative
from hessianlens.derivatives import missing_derivative_reason
from hessianlens.derivatives.difference import (
    VALUE,
    Agreement,
    DerivativeComparison,
    DirectionSample,
    Rows,
    compare,
    confirm,
    hides_a_derivative,
    random_direction,
    scale_of,
)
from hessianlens.derivatives.graph import kinds, narrower, padding
from hessianlens.derivatives.step_check import StepCheck
from hessianlens.errors import expect
from hessianlens.problems import Problem, layer_of

Asked = tuple[frozenset[str], frozenset[str]]


_DIRECTIONS = 2
"""Random directions in every layer: along a single one what is missing may be small by chance."""


@dataclass(frozen=True)
class Steps:
    """What the passes of some products have shown.

    Attributes:
        doubt: Why their derivatives are not certainly right; empty if they are.
        kinds: The kinds of their steps.
    """

    doubt: str
    kinds: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Known:
    """What a check has found out.

    Attributes:
        wrong: What is wrong with the second derivatives; empty if nothing is known to be.
        kinds: The kinds of steps that were looked at; None if nothing could be.
    """

    wrong: str
    kinds: frozenset[str] | None


_done: WeakKeyDictionary[Problem, dict[Asked, _Known]] = WeakKeyDictionary()
"""By what was asked of a problem."""


def verify(
    problem: Problem, rows: Sequence[str], columns: Sequence[str] | None = None, seen: Sequence[Steps] = ()
) -> None:
    """Make sure that autograd sees every second derivative between some parameters, once; `InputError` if not.

    The steps of an excerpt of one sequence are looked at, or those of products that were made of all data. Where these
    leave a doubt, derivatives are compared with differences on the excerpt, in float64 where the model can, which takes
    about five gradients of it a layer; on the whole sequence, which takes longer, before anything is called wrong. It
    is remembered with the problem, and left out if the problem has ``verify=False``.

    Args:
        problem: From `hessianlens.problem`.
        rows: Parameters that index the rows.
        columns: Parameters that index the columns; default: the rows.
        seen: What products with all of the data have shown already.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> verify(problem, ["blocks.0.attention.W_Q"])
    """
    problem.finish_model_check()
    if is_verified(problem, rows, columns):
        return
    asked = (frozenset(rows), frozenset(rows if columns is None else columns))
    known = _done.setdefault(problem, {})
    if seen and not any(steps.doubt for steps in seen):
        known[asked] = _Known("", frozenset().union(*(steps.kinds for steps in seen)))
    elif asked not in known:
        known[asked] = _known_to_all(problem, asked, bool(seen))
    expect(not known[asked].wrong, known[asked].wrong)


def is_verified(problem: Problem, rows: Sequence[str], columns: Sequence[str] | None = None) -> bool:
    """Whether second derivatives between some parameters are known to be seen, or nobody wants to know."""
    asked = (frozenset(rows), frozenset(rows if columns is None else columns))
    known = _done.get(problem, {})
    covered = (asked[0] <= seen[0] and asked[1] <= seen[1] for seen, found in known.items() if not found.wrong)
    return not problem.verify or any(covered)


def verify_steps(at: Linearisation) -> None:
    """Check sequences of a batch that take steps of kinds which what `verify` looked at did not; `InputError` if wrong.

    Args:
        at: The graph of the batch.
    """
    problem, names = at.problem, frozenset(at.leaves)
    known = _done.get(problem, {})
    looked_at = {asked: found for asked, found in known.items() if names <= asked[0] | asked[1]}
    if not any(found.kinds is not None for found in looked_at.values()):
        return
    taken = kinds(at.loss)
    for asked, found in looked_at.items():
        if found.kinds is None or found.wrong or taken <= found.kinds:
            continue
        wrong = ""
        for batch in sequences_with_steps(problem, at.batch, list(at.leaves), taken - found.kinds):
            wrong = wrong or _thoroughly(replace(problem, data=[batch]), asked, cut=False).wrong
        if not wrong or problem.ranks.size == 1:  # what one process knows by itself must not change what it asks next
            known[asked] = _Known(wrong, found.kinds | taken)
        expect(not wrong, wrong)


def _known_to_all(problem: Problem, asked: Asked, in_doubt: bool) -> _Known:
    """What is found here; where processes share the data, and one of them finds something wrong, that is wrong."""
    own: list[_Known] = []

    def look() -> str:
        own.append(_examined(problem, asked, in_doubt) if problem.data else _Known("", None))
        return own[0].wrong

    found = problem.ranks.all_gather("second derivatives", look)
    elsewhere = next((f"rank {rank}: {wrong}" for rank, wrong in enumerate(found) if wrong), "")
    return own[0] if own[0].wrong else replace(own[0], wrong=elsewhere)


def _examined(problem: Problem, asked: Asked, in_doubt: bool) -> _Known:
    """What is known of the second derivatives between some parameters; differences decide where there is a doubt.

    Args:
        problem: What is differentiated.
        asked: The parameters.
        in_doubt: Whether steps of the batches are in doubt: if those of a piece are not, it does not do what they do.
    """
    found = _looked_at_steps(problem, asked)
    if found is not None and in_doubt:
        known = [_thoroughly(replace(problem, data=[batch]), asked, cut=False) for batch in problem.data]
        taken = frozenset().union(*(one.kinds or () for one in known))
        return next((one for one in known if one.wrong), _Known("", taken))
    try:
        found = _compared_on_excerpt(problem, asked) if found is None else found
    except Exception:  # whatever a model says of an excerpt, the whole sequence will say it again
        found = None
    return _thoroughly(problem, asked) if found is None else _Known("", found)


def _looked_at_steps(problem: Problem, asked: Asked) -> frozenset[str] | None:
    """The kinds of steps of a piece of the data, if they are PyTorch's own and every parameter plays a part in them."""
    rows, columns = _ordered(problem, asked)
    names = list(dict.fromkeys([*rows, *columns]))
    for batch in candidates(problem.data[0]):
        check = StepCheck()
        try:
            gradient = Linearisation(problem, batch, names, check).gradient(names)
        except Exception:  # whatever a model says of a piece, the whole will say it again
            continue
        if check.doubt:
            return None
        if all(bool(part.any()) for part in gradient.values()):
            return check.kinds
    return None


def _compared_on_excerpt(problem: Problem, asked: Asked) -> frozenset[str] | None:
    """The kinds of steps of an excerpt in which differences say that all is right; None if they do not."""
    rows, columns = _ordered(problem, asked)
    short = excerpt(problem, list(dict.fromkeys([*rows, *columns])))
    if short is None:
        return None
    check = _Check(*short, rows, columns)
    right = all(
        check.along(chosen, number).verdict is Agreement.RIGHT
        for chosen in _layers(problem, columns)
        for number in range(_DIRECTIONS)
    )
    return kinds(short[0].loss) if right else None


def _thoroughly(problem: Problem, asked: Asked, cut: bool = True) -> _Known:
    """What a whole sequence says, or the batch if it is not to be cut."""
    rows, columns = _ordered(problem, asked)
    one = representative_sequence(problem, list(dict.fromkeys([*rows, *columns])), cut)
    return _Known("", None) if one is None else _Known(_wrong(problem, one, rows, columns), kinds(one[0].loss))


def _ordered(problem: Problem, asked: Asked) -> tuple[list[str], list[str]]:
    rows, columns = ([name for name in problem.params if name in names] for names in asked)
    return rows, columns


def _wrong(problem: Problem, one: Piece, rows: list[str], columns: list[str]) -> str:
    """What is wrong with the second derivatives between some parameters; empty if nothing is known to be."""
    names = list(dict.fromkeys([*rows, *columns]))
    at, left_open = one[0], False
    check = _Check(*one, rows, columns)
    for chosen in _layers(problem, columns):
        found = confirm(partial(check.along, chosen))
        left_open = left_open or found.verdict is Agreement.OPEN
        if found.verdict is Agreement.WRONG:
            where = locate_missing_derivative(at.problem, at.batch, names, hides_a_derivative)
            return _message(where or f"model: a step between {chosen[0]} and the loss", found)
    # A module by itself may be judged where the network as a whole, with all its kinks, cannot.
    where = locate_missing_derivative(at.problem, at.batch, names, hides_a_derivative) if left_open else None
    return "" if where is None else _message(where)


def _message(where: str, found: DerivativeComparison | None = None) -> str:
    measured = ""
    if found is not None:
        what = "the loss" if found.row == VALUE else f"the gradient of {found.row}"
        measured = f" (in a random direction {what} changes by {found.found:.3g}, by autograd {found.claimed:.3g})"
    reason = missing_derivative_reason(where, measured)
    return f"{reason}, or verify=False in hessianlens.problem for numbers that lack this part."


# --- what is compared ------------------------------------------------------------------------------------------------


def _layers(problem: Problem, columns: Sequence[str]) -> list[list[str]]:
    """Parameters layer by layer, and those outside of layers."""
    of: dict[str, str] = {}
    for block in problem.blocks.values():
        of.setdefault(block.parameter, layer_of(block.name) or "")
    layers: dict[str, list[str]] = {}
    for name in columns:
        layers.setdefault(of.get(name, ""), []).append(name)
    return list(layers.values())


class _Check:
    """Products against differences of the gradient at a piece of the data.

    Args:
        at: The piece.
        gradient: The gradient there.
        rows: Parameters that index the rows.
        columns: Parameters that index the columns.
    """

    def __init__(self, at: Linearisation, gradient: Rows, rows: Sequence[str], columns: Sequence[str]) -> None:
        self.at, self.gradient, self.rows, self.columns = at, gradient, rows, columns
        self.params, self.names = at.problem.params, list(at.leaves)
        found = {name: scale_of(self.params[name], otherwise=0.0) for name in self.names}
        usual = max(found.values()) or 1.0
        self.scales = {name: scale or usual for name, scale in found.items()}
        self.left_out, self.narrower = padding(at.loss), narrower(at.loss)

    def along(self, chosen: Sequence[str], number: int) -> DerivativeComparison:
        """The verdict on ``G v + (H - G) v`` in a random direction of the chosen parameters."""
        # Zero in the other columns, so that all layers share one graph.
        v = {name: torch.zeros_like(self.params[name]) for name in self.columns}
        for name in chosen:
            seed = zlib.crc32(f"{name} {number}".encode())
            v[name] = random_direction(self.at.leaves[name], self.scales[name], seed, self.left_out)

        def there(step: float) -> DirectionSample:
            value, gradient = self._moved(step, v, chosen) if step else (self.at.loss.detach(), self.gradient)
            slope = torch.stack([(gradient[name] * v[name]).sum() for name in chosen]).sum()
            return DirectionSample(value, slope, {name: gradient[name] for name in self.rows})

        return compare(there, self._product(v), self.scales, self.at.problem.dtype, self.narrower)

    def _product(self, v: Mapping[str, Tensor]) -> Rows:
        gauss_newton, rest = self.at.split(v, self.rows)
        return {name: gauss_newton.pop(name) + rest.pop(name) for name in self.rows}

    def _moved(self, step: float, v: Mapping[str, Tensor], chosen: Sequence[str]) -> tuple[Tensor, Rows]:
        """Loss and gradient with the chosen parameters changed."""
        changed = {name: self.params[name] + step * v[name] for name in chosen}
        problem = replace(self.at.problem, params={**self.params, **changed})
        here = Linearisation(problem, self.at.batch, self.names)
        return here.loss.detach(), here.gradient(self.names)
