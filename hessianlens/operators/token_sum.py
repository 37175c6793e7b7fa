"""A matrix written as a sum, over tokens, of products of small factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from string import ascii_lowercase

import torch
from torch import Tensor

from hessianlens.errors import InputError, check_number, check_that, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.notation import COLUMN_AXES, ROW_AXES, VECTORS
from hessianlens.operators.base import StructuredOperator, check_parameter, check_place
from hessianlens.operators.dense_block import accumulate_term
from hessianlens.operators.exponent_scaling import Scaled, equalise_factors
from hessianlens.operators.inner_products import inner_product, squared_norm
from hessianlens.operators.kronecker import Rearranged
from hessianlens.operators.operator import Operator
from hessianlens.operators.product import Product
from hessianlens.operators.term import Factor, Term, cost

_TRANSPOSE = str.maketrans(ROW_AXES + COLUMN_AXES, COLUMN_AXES + ROW_AXES)
_ONTO_DIAGONAL = str.maketrans(COLUMN_AXES, ROW_AXES)
_AXES = ROW_AXES + COLUMN_AXES
_LETTERS = ascii_lowercase.replace(VECTORS, "")


class TokenSum(StructuredOperator):
    """The block ``H[(a,b),(c,d)]`` between two matrix parameters, as a sum of products of small factors.

    A Kronecker product ``p p^T (x) G`` of each token n is the product ``p[n,a] G[n,b,d] p[n,c]``; rank-one,
    low-rank, diagonal and identity factors are simply more factors. Nothing of the size of the block is formed
    unless `to_dense` is called.

    Args:
        terms: The summands, or what gives them; none at all is the zero matrix.
        out_shape: Shape of the parameter that indexes the rows, letters ``a, b``.
        in_shape: Shape of the parameter that indexes the columns, letters ``c, d``.
        dtype: Dtype of the entries.
        device: Device of the factors.
        product: Multiplies without the summands, where that is known; these then wait until something else needs them.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    >>> op = TokenSum.of(
    ...     [Term(0.5, (Factor("x", "na", x), Factor("x", "nc", x), Factor.identity("bd", 3)))],
    ...     (2, 3),
    ...     (2, 3),
    ... )
    >>> print(op)
    TokenSum 6x6 float32: 0.5 sum_{n} x[n,a] x[n,c] δ[b,d]
    >>> op.diagonal()
    tensor([0.5000, 0.5000, 0.5000, 2.0000, 2.0000, 2.0000])
    >>> op.trace(), op.frobenius_norm() ** 2
    (tensor(7.5000), tensor(12.7500))
    """

    _prints_cost = False  # the algebra of a single sum says by itself what it costs

    def __init__(
        self,
        terms: Sequence[Term] | Callable[[], Sequence[Term]],
        out_shape: tuple[int, int],
        in_shape: tuple[int, int],
        dtype: torch.dtype,
        device: torch.device,
        product: Product | None = None,
    ) -> None:
        check_parameter("out_shape", out_shape)
        check_parameter("in_shape", in_shape)
        check_place(dtype, device)
        super().__init__([tuple(in_shape)], [tuple(out_shape)], dtype, device)
        self._given, self._product = terms, product
        if product is None:
            _ = self.terms

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The summands."""
        given = self._given
        if callable(given):
            with failures_as_input_errors(
                "terms: the function failed", "it was given nothing, and must give the summands"
            ):
                given = given()
        _check_terms(given)
        terms = tuple(_with_numbers(term, self.dtype, self.device).simplified() for term in given)
        for term in terms:
            _check_term(term, (*self._out_shape[0], *self._in_shape[0]))
        return terms

    @classmethod
    def of(cls, terms: Sequence[Term], out_shape: tuple[int, int], in_shape: tuple[int, int]) -> TokenSum:
        """A sum with dtype and device taken from its (at least one) factors."""
        _check_terms(terms)
        tensor = next((f.tensor for term in terms for f in term.factors if f.tensor is not None), None)
        if tensor is None:
            raise InputError("terms: no factor holds numbers; give dtype and device to TokenSum itself.")
        return cls(terms, out_shape, in_shape, tensor.dtype, tensor.device)

    def _kind(self) -> tuple[object, ...]:
        return self._out_shape, self._in_shape, self.dtype, self.device

    def _with(self, terms: Callable[[], Sequence[Term]], product: Product | None) -> TokenSum:
        """Other summands between the same parameters."""
        return TokenSum(terms, self._out_shape[0], self._in_shape[0], self.dtype, self.device, product)

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of one product with a vector; those of contractions are from their plans."""
        if self._product is not None:
            return self._product.multiply_adds
        vector = Factor("X", COLUMN_AXES + VECTORS, torch.empty(*self._in_shape[0], 1, device="meta"))
        return sum((cost((*term.factors, vector), ROW_AXES + VECTORS) for term in self.terms), 0.0) / 2

    def _factors(self) -> list[Tensor]:
        if self._product is not None:
            return self._product.held_tensors()
        return [f.tensor for term in self.terms for f in term.factors if f.tensor is not None]

    @cached_property
    def _even(self) -> tuple[Term, ...]:
        """The terms with factors of one size, where products of their factors might leave the range of the dtype."""
        return tuple(equalise_factors(term, self.dtype) for term in self.terms)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def _sum(
        self, output: str, shape: tuple[int, ...], *others: Factor, letters: Mapping[int, int | str] | None = None
    ) -> Tensor:
        result: Tensor | None = None
        for term in self._even:
            part = (term.relabel(letters) if letters else term).contract(output, *others)
            result = part if result is None else result + part
        return self._zeros(*shape) if result is None else result

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        (matrix,) = X
        expect(
            not matrix.is_complex(),
            f"vector: got dtype {matrix.dtype}, expected real numbers; multiply real and imaginary part one by one.",
        )
        if self._product is not None:
            return self._product.times([matrix.to(self.dtype)])
        columns = Factor("X", COLUMN_AXES + VECTORS, matrix.to(self.dtype))
        return [self._sum(ROW_AXES + VECTORS, (*self._out_shape[0], matrix.shape[-1]), columns)]

    def written_out(self) -> TokenSum:
        """The same matrix from its terms alone: the closed form, without what finds entries or products faster."""
        return TokenSum(self.terms, self._out_shape[0], self._in_shape[0], self.dtype, self.device)

    def _adjoint(self) -> TokenSum:
        def terms() -> list[Term]:
            return [term.relabel(_TRANSPOSE) for term in self.terms]

        product = None if self._product is None else self._product.adjoint()
        return TokenSum(terms, self._in_shape[0], self._out_shape[0], self.dtype, self.device, product)

    def _dense_into(self, target: Tensor) -> None:
        if self._product is not None and self._product.write(target):
            return
        entries = target.unflatten(1, self._in_shape[0]).unflatten(0, self._out_shape[0])
        for k, term in enumerate(self._even):
            accumulate_term(entries, term.factors, term.coefficient, first=k == 0)
        if not self.terms:
            target.zero_()

    def _trace(self) -> Tensor:
        found = None if self._product is None else self._product.trace()
        return self._sum("", (), letters=_ONTO_DIAGONAL) if found is None else found

    def _diagonal(self) -> Tensor:
        found = None if self._product is None else self._product.diagonal()
        found = self._sum(ROW_AXES, tuple(self._out_shape[0]), letters=_ONTO_DIAGONAL) if found is None else found
        return found.reshape(-1)

    def _frobenius_inner(self, other: StructuredOperator) -> Scaled:
        if not isinstance(other, TokenSum):
            raise InputError(f"other: got {type(other).__name__}, expected a block as this one.")
        return inner_product(self.terms, other.terms, self.device)

    def _frobenius_square(self) -> Scaled:
        return squared_norm(self.terms, self.device)

    def _rearranged(self) -> Rearranged:
        """Contractions of the factors with matrices on the axes b, d or a, c."""
        (a, b), (c, d) = self._out_shape[0], self._in_shape[0]
        return Rearranged(
            lambda Y: self._sum("ac" + VECTORS, (a, c, Y.shape[-1]), Factor("Y", "bd" + VECTORS, Y)),
            lambda X: self._sum("bd" + VECTORS, (b, d, X.shape[-1]), Factor("X", "ac" + VECTORS, X)),
            "from the sum over tokens",
        )

    def restricted(self, rows: tuple[slice, slice], columns: tuple[slice, slice]) -> TokenSum:
        """The same block between rectangular pieces of the two parameters.

        >>> p = torch.eye(3)
        >>> op = TokenSum.of(
        ...     [Term(1.0, (Factor("p", "na", p), Factor("p", "nc", p), Factor.identity("bd", 2)))], (3, 2), (3, 2)
        ... )
        >>> op.restricted((slice(0, 1), slice(None)), (slice(1, 3), slice(None))).shape
        (2, 4)
        """
        shape = (*self._out_shape[0], *self._in_shape[0])
        for name, pieces in (("rows", rows), ("columns", columns)):
            two = isinstance(pieces, Sequence) and len(pieces) == 2 and all(isinstance(p, slice) for p in pieces)
            check_that(two, name, pieces, "two slices")
        for piece in (*rows, *columns):
            expect(piece.step in (None, 1), f"slice: got {piece}, expected a step of 1.")
        ranges = {x: range(n)[piece] for x, n, piece in zip(_AXES, shape, (*rows, *columns), strict=True)}
        cut = {x: (r.start, r.stop) for x, r in ranges.items() if len(r) < shape[_AXES.index(x)]}
        terms = [
            replace(t, factors=tuple(_cut(f, cut, self.dtype, self.device) for f in t.factors)) for t in self.terms
        ]
        sizes = [len(ranges[x]) for x in _AXES]
        return TokenSum(terms, (sizes[0], sizes[1]), (sizes[2], sizes[3]), self.dtype, self.device)

    def algebra(self) -> str:
        """The sum in index notation."""
        return " + ".join(map(str, self.terms)) or "0"

    def __add__(self, other: object) -> Operator:
        if not isinstance(other, TokenSum) or self._kind() != other._kind():
            return super().__add__(other)
        both = other
        product = None if self._product is None else self._product.plus(both._product)
        return self._with(lambda: _merged(self.terms, both.terms), product)

    def __mul__(self, scalar: int | float) -> TokenSum:
        check_number("scalar", scalar)
        product = None if self._product is None else self._product.scaled(float(scalar))
        return self._with(
            lambda: [replace(term, coefficient=term.coefficient * float(scalar)) for term in self.terms], product
        )


def _merged(mine: Sequence[Term], theirs: Sequence[Term]) -> list[Term]:
    """The terms of a sum; two that differ in one factor only become one."""
    terms = list(mine)
    for new in theirs:
        for k, old in enumerate(terms):
            merged = old.merged(new)
            if merged is not None:
                terms[k] = merged
                break
        else:
            terms.append(new)
    return [term for term in terms if term.coefficient != 0]


def _cut(factor: Factor, cut: dict[str, tuple[int, int]], dtype: torch.dtype, device: torch.device) -> Factor:
    """A factor with some of its indices restricted; an identity that is no longer one is formed."""
    touched = [x for x in factor.indices if x in cut]
    if factor.tensor is None and touched:
        if {cut.get(x) for x in factor.indices} == {cut[touched[0]]}:
            start, stop = cut[touched[0]]
            return Factor.identity(factor.indices, stop - start)
        factor = Factor(factor.name, factor.indices, torch.eye(factor.size, dtype=dtype, device=device))
    for x in touched:
        factor = factor.slice(x, *cut[x])
    return factor


def _with_numbers(term: Term, dtype: torch.dtype, device: torch.device) -> Term:
    """A product of identities alone gets a factor 1, so that every contraction knows its dtype and device."""
    if any(f.tensor is not None for f in term.factors):
        return term
    return replace(term, factors=(Factor("1", "", torch.ones((), dtype=dtype, device=device)), *term.factors))


def _check_terms(terms: object) -> None:
    """Terms, each with a number and with factors."""
    check_that(isinstance(terms, Sequence), "terms", terms, "a list of terms")
    assert isinstance(terms, Sequence)
    for k, term in enumerate(terms):
        check_that(isinstance(term, Term), f"terms[{k}]", term, "a Term")
        check_number(f"terms[{k}].coefficient", term.coefficient)
        factors = isinstance(term.factors, Sequence) and all(isinstance(factor, Factor) for factor in term.factors)
        check_that(factors, f"terms[{k}].factors", term.factors, "factors")


def _check_term(term: Term, shape: tuple[int, ...]) -> None:
    """Every axis of the block occurs with its size; summed letters are small, and ``z`` is kept for vectors."""
    sizes: dict[str, int] = {}
    for factor in term.factors:
        for x, n in zip(factor.indices, factor.shape, strict=True):
            if x not in _LETTERS:
                raise InputError(f"Factor {factor}: got the letter {x!r}, expected one of {_LETTERS}.")
            if sizes.setdefault(x, n) != n:
                raise InputError(f"Factor {factor}: its index {x!r} has size {n}, elsewhere in the term {sizes[x]}.")
    for x, n in zip(_AXES, shape, strict=True):
        if sizes.get(x) != n:
            raise InputError(
                f"Term {term}: its index {x!r} has size {sizes.get(x, 'none')}, expected {n} from the block's shape."
            )
