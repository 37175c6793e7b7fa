"""Terms: a coefficient times a product of factors, whose axes carry index letters, and their contraction.

The order of contraction is found by opt_einsum's dynamic programming and remembered for the shapes at hand, so
that one algebraic expression serves for a product with vectors, a trace, a diagonal or a Frobenius inner product,
and each of them runs at the cost a specialist would have chosen by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, prod

import opt_einsum
import torch
from torch import Tensor

from hessianlens.errors import InputError, check_that, check_whole
from hessianlens.notation import COLUMN_AXES, ROW_AXES


class Factor:
    """One factor of a product written in index notation, such as ``K[s,l,b]``.

    Args:
        name: What to call it when the algebra is printed.
        indices: One letter per axis.
        tensor: The numbers; ``None`` for an identity ``delta[x,y]``, which is never formed.
        size: For an identity, the size of its two axes.
    """

    __slots__ = ("indices", "name", "size", "tensor")

    def __init__(self, name: str, indices: str, tensor: Tensor | None, size: int = 0) -> None:
        check_that(tensor is None or isinstance(tensor, Tensor), "tensor", tensor, "a tensor or None")
        check_that(isinstance(name, str), "name", name, "a text")
        check_that(isinstance(indices, str), "indices", indices, "a letter for every axis")
        check_whole("size", size, 0)
        axes = 2 if tensor is None else tensor.ndim
        if len(indices) != axes:
            raise InputError(f"Factor {name}: got {len(indices)} index letters {indices!r} for {axes} axes.")
        self.name, self.indices, self.tensor, self.size = name, indices, tensor, size

    @classmethod
    def identity(cls, indices: str, size: int) -> Factor:
        """The identity ``delta[x,y]`` of a given size, kept symbolic."""
        return cls("δ", indices, None, size)

    def relabel(self, letters: Mapping[int, int | str]) -> Factor:
        """The same numbers under other index letters; `letters` is a table of `str.maketrans`."""
        check_that(isinstance(letters, Mapping), "letters", letters, "a table of letters, from str.maketrans")
        return Factor(self.name, self.indices.translate(letters), self.tensor, self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return (self.size, self.size) if self.tensor is None else tuple(self.tensor.shape)

    def slice(self, index: str, start: int, stop: int) -> Factor:
        """Restrict one index to a range; factors without it stay as they are."""
        check_that(isinstance(index, str), "index", index, "a letter")
        if self.tensor is None or index not in self.indices:
            return self
        axis = self.indices.index(index)
        return Factor(self.name, self.indices, self.tensor.narrow(axis, start, stop - start), self.size)

    def __str__(self) -> str:
        """The factor in index notation."""
        return f"{self.name}[{','.join(self.indices)}]" if self.indices else self.name


WORKSPACE_BYTES = 8 * 2**20
"""Intermediate tensors larger than this (and than the factors) are cut into slices, which then stay in cache."""

_SLICE_FIRST = "sSiIjJ"

Signature = tuple[tuple[str, tuple[int, ...], bool], ...]
"""Letters, shape, and whether it is an identity, of every factor."""


@dataclass(frozen=True)
class Program:
    """A contraction worked out for given letters and shapes.

    Attributes:
        extras: Shapes of identities and vectors of ones that have to be formed after all.
        steps: Pairs of positions and the einsum that contracts them; the result goes to the end.
        multiplicity: A number that comes from identities closed upon themselves.
        operations: Arithmetic operations in total.
        largest: Entries of the largest intermediate tensor.
        slice_index: The index to cut if that is too large, if there is one.
        slice_size: Its size.
    """

    extras: tuple[tuple[int, ...], ...]
    steps: tuple[tuple[tuple[int, ...], str], ...]
    multiplicity: int
    operations: float
    largest: int
    slice_index: str
    slice_size: int


def contract(factors: Sequence[Factor], output: str, coefficient: float = 1.0) -> Tensor:
    """Sum the product of `factors` over every index that is not in `output`.

    >>> x = Factor("x", "na", torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    >>> contract([x, Factor("x", "nc", x.tensor), Factor.identity("ac", 2)], "")
    tensor(30.)
    """
    program = compile_contraction(_signature(factors), output)
    operands = [tensor for f in factors if (tensor := f.tensor) is not None]
    itemsize = operands[0].element_size()
    budget = max(WORKSPACE_BYTES, itemsize * sum(t.numel() for t in operands))
    if program.largest * itemsize > budget and program.slice_index:
        return _contract_in_slices(factors, output, coefficient, program, ceil(program.largest * itemsize / budget))
    return _run(program, operands, coefficient)


def cost(factors: Sequence[Factor], output: str) -> float:
    """Arithmetic operations of `contract`, without running it."""
    return compile_contraction(_signature(factors), output).operations


def index_sizes(factors: Sequence[Factor]) -> dict[str, int]:
    """The size of every index that occurs in `factors`."""
    return {x: n for f in factors for x, n in zip(f.indices, f.shape, strict=True)}


def _signature(factors: Sequence[Factor]) -> Signature:
    return tuple((f.indices, f.shape, f.tensor is None) for f in factors)


def _run(program: Program, operands: list[Tensor], coefficient: float) -> Tensor:
    like = operands[0]
    scale = coefficient * program.multiplicity
    if scale != 1:
        smallest = min(range(len(operands)), key=lambda k: operands[k].numel())
        operands[smallest] = scale * operands[smallest]
    for shape in program.extras:
        make = torch.eye if len(shape) == 2 else torch.ones
        operands.append(make(shape[0], dtype=like.dtype, device=like.device))
    for positions, equation in program.steps:
        chosen = [operands.pop(p) for p in positions]
        operands.append(torch.einsum(equation, *chosen))
    return operands[0]


def _contract_in_slices(
    factors: Sequence[Factor], output: str, coefficient: float, program: Program, pieces: int
) -> Tensor:
    width = max(1, program.slice_size // pieces)
    total: Tensor | None = None
    for start in range(0, program.slice_size, width):
        stop = min(start + width, program.slice_size)
        part = contract([f.slice(program.slice_index, start, stop) for f in factors], output, coefficient)
        total = part if total is None else total + part
    assert total is not None
    return total


@lru_cache(maxsize=8192)
def compile_contraction(signature: Signature, output: str) -> Program:
    """Work out the cheapest pairwise contraction for factors of this signature."""
    sizes = {x: n for letters, shape, _ in signature for x, n in zip(letters, shape, strict=True)}
    terms, extras, multiplicity = _without_identities(signature, output, sizes)
    letters = [*terms.values(), *extras]
    shapes = [tuple(sizes[x] for x in term) for term in letters]
    _, info = opt_einsum.contract_path(",".join(letters) + "->" + output, *shapes, shapes=True, optimize="dp")
    steps = tuple((tuple(sorted(entry[0], reverse=True)), entry[2]) for entry in info.contraction_list)
    results = [equation.split("->")[1] for _, equation in steps]
    largest = max(results, key=lambda r: prod(sizes[x] for x in r))
    index = min(
        (x for x in largest if x not in output and sizes[x] > 1),
        key=lambda x: (_SLICE_FIRST.find(x) % (len(_SLICE_FIRST) + 1), -sizes[x]),
        default="",
    )
    return Program(
        extras=tuple(tuple(sizes[x] for x in term) for term in extras),
        steps=steps,
        multiplicity=multiplicity,
        operations=float(info.opt_cost),
        largest=prod(sizes[x] for x in largest),
        slice_index=index,
        slice_size=sizes.get(index, 0),
    )


def _without_identities(
    signature: Signature, output: str, sizes: dict[str, int]
) -> tuple[dict[int, str], list[str], int]:
    """Replace each ``delta[x,y]`` by renaming y to x; only one between two output indices has to be formed.

    Returns the letters of the remaining factors by position, those of identities and ones to be formed, and the
    multiplicity that comes from identities closed upon themselves (``sum_x delta[x,x]`` is the size of x).
    """
    terms = {k: letters for k, (letters, _, identity) in enumerate(signature) if not identity}
    identities = [letters for letters, _, identity in signature if identity]
    extras: list[str] = []
    touched: set[str] = set()
    while identities:
        letters = identities.pop()
        x, y = letters[0], letters[1]
        if x in output and y in output and x != y:
            extras.append(x + y)
            continue
        keep, drop = (y, x) if y in output else (x, y)
        terms = {k: letters.replace(drop, keep) for k, letters in terms.items()}
        identities = [letters.replace(drop, keep) for letters in identities]
        touched = {keep if z == drop else z for z in touched} | {keep}
    alone = touched - set("".join([*terms.values(), *extras]))
    extras += sorted(alone & set(output))
    return terms, extras, prod(sizes[x] for x in alone - set(output))


@dataclass(frozen=True, eq=False)
class Term:
    """A coefficient times a product of factors, summed over every index that is not a row or column axis."""

    coefficient: float
    factors: tuple[Factor, ...]

    def relabel(self, letters: Mapping[int, int | str]) -> Term:
        """The same term under other index letters."""
        return replace(self, factors=tuple(f.relabel(letters) for f in self.factors))

    def contract(self, output: str, *others: Factor) -> Tensor:
        """Contract the term, with further factors, down to `output`."""
        return contract((*self.factors, *others), output, self.coefficient)

    def sliced(self, index: str, start: int, stop: int) -> Term:
        """The part of the sum in which `index` runs over a range."""
        return replace(self, factors=tuple(f.slice(index, start, stop) for f in self.factors))

    def simplified(self) -> Term:
        """The same term without the identities that only rename a summed index."""
        factors = self.factors
        if all(f.tensor is not None for f in factors):
            return self
        for place, factor in enumerate(factors):
            if factor.tensor is None and not set(factor.indices) <= set(ROW_AXES + COLUMN_AXES):
                x, y = sorted(factor.indices, key=(ROW_AXES + COLUMN_AXES).find)
                rest = (*factors[:place], *factors[place + 1 :])
                if any(x in f.indices for f in rest):
                    return replace(self, factors=tuple(f.relabel({ord(x): y}) for f in rest)).simplified()
        return self

    def merged(self, other: Term) -> Term | None:
        """The sum as a single term, where the two differ in a coefficient or in one factor only."""
        if [f.indices for f in self.factors] != [f.indices for f in other.factors]:
            return None
        pairs = list(zip(self.factors, other.factors, strict=True))
        different = [k for k, (f, g) in enumerate(pairs) if f.tensor is not g.tensor]
        if not different:
            return replace(self, coefficient=self.coefficient + other.coefficient)
        if len(different) > 1:
            return None
        (k,) = different
        mine, theirs = pairs[k]
        if mine.tensor is None or theirs.tensor is None or mine.tensor.shape != theirs.tensor.shape:
            return None
        tensor = self.coefficient * mine.tensor + other.coefficient * theirs.tensor
        name = _sum_name((self.coefficient, mine.name), (other.coefficient, theirs.name))
        return Term(1.0, (*self.factors[:k], Factor(name, mine.indices, tensor), *self.factors[k + 1 :]))

    def __str__(self) -> str:
        summed = sorted(set("".join(f.indices for f in self.factors)) - set(ROW_AXES + COLUMN_AXES))
        head = "" if self.coefficient == 1 else f"{self.coefficient:.4g} "
        over = f"sum_{{{','.join(summed)}}} " if summed else ""
        return head + over + " ".join(map(str, self.factors))


def _sum_name(*parts: tuple[float, str]) -> str:
    """A name for a weighted sum of factors, such as ``(0.5 G - Go)``."""
    text = ""
    for coefficient, name in parts:
        size = "" if abs(coefficient) == 1 else f"{abs(coefficient):.4g} "
        sign = (" - " if text else "-") if coefficient < 0 else (" + " if text else "")
        text += f"{sign}{size}{name}"
    return f"({text})"
