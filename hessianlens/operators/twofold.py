"""A matrix that is known in two ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.errors import InputError, check_function, check_that, shown
from hessianlens.operators.base import StructuredOperator
from hessianlens.operators.operator import Operator
from hessianlens.operators.scaled import Scaled
from hessianlens.state_guard import restores_state


class Twofold(Operator):
    """Products from one form of a matrix, everything else from its closed form, which is built when first needed.

    Where the closed form takes many products to build, a few products with vectors are better made without it.

    Args:
        products: The matrix by its products.
        closed: Builds the closed form of the same matrix.
        why: Why there is one.

    >>> from hessianlens.operators import Factor, Term, TokenSum
    >>> closed = TokenSum.of([Term(2.0, (Factor("1", "ac", torch.eye(2)), Factor.identity("bd", 3)))], (2, 3), (2, 3))
    >>> op = Twofold(closed, lambda: closed, "it is twice the identity")
    >>> op.exact, op.trace(), op @ torch.ones(6)
    (True, tensor(12.), tensor([2., 2., 2., 2., 2., 2.]))
    """

    method = "closed form and products"
    exact = True

    def __init__(self, products: Operator, closed: Callable[[], StructuredOperator], why: str) -> None:
        check_that(isinstance(products, Operator), "products", products, "an operator")
        check_function("closed", closed, "a function that builds a structured operator")
        check_that(isinstance(why, str), "why", why, "a text")
        super().__init__(list(products._in_shape), list(products._out_shape))
        self.products, self._build, self.why = products, closed, why

    @cached_property
    @restores_state
    def closed(self) -> StructuredOperator:
        """The closed form."""
        found: object = self._build()
        if not isinstance(found, StructuredOperator) or found.shape != self.shape:
            raise InputError(f"closed: built {shown(found)}, expected a structured operator of shape {self.shape}.")
        return found

    @property
    def dtype(self) -> torch.dtype:
        """That of the products."""
        return self.products.dtype

    @property
    def device(self) -> torch.device:
        """That of the products."""
        return self.products.device

    @property
    def product_cost(self) -> str:
        """That of the products."""
        return self.products.product_cost

    @property
    def cost(self) -> str:
        """What a product costs, and what the rest does."""
        return f"{self.product_cost}; its norm, trace, diagonal and entries come from the closed form"

    def announce(self, products: int) -> None:
        """To what makes them."""
        self.products.announce(products)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        return self.products._matmat(X)

    def _adjoint(self) -> Twofold:
        def turned() -> StructuredOperator:
            found = self.closed.adjoint()
            assert isinstance(found, StructuredOperator)
            return found

        products = self.products.adjoint()
        assert isinstance(products, Operator)
        return Twofold(products, turned, self.why)

    def _dense_into(self, target: Tensor) -> None:
        self.closed._dense_into(target)

    def _trace(self) -> Tensor:
        return self.closed._trace()

    def _diagonal(self) -> Tensor:
        return self.closed._diagonal()

    def _frobenius_square(self) -> Scaled:
        return self.closed._frobenius_square()

    def __repr__(self) -> str:
        rows, columns = self.shape
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__} {rows}x{columns} {dtype}, {self.why}; {self.product_cost}"
