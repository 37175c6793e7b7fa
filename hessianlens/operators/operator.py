"""What every operator can do, however its matrix is known: by its products, one per column if need be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessianlens.display import Cells, Displayable, Entries, Picture, facts
from hessianlens.errors import check_number, check_seed, check_that, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.operators.exponent_scaling import Scaled, ldexp
from hessianlens.operators.kronecker import KroneckerFit, Rearranged, leading_triplets
from hessianlens.operators.tensor_list_operator import CheckedOperator, TensorListOperator, is_linear_operator
from hessianlens.state_guard import restores_state

_WORKSPACE = 2**25
"""Numbers of the columns that are held at once."""


def columns_of(op: TensorListOperator) -> Iterator[tuple[int, Tensor]]:
    """Some columns of the matrix at a time, with the number of the first of them."""
    rows, count = op.shape
    most = max(1, min(count, _WORKSPACE // max(rows, count)))
    ensure_fits("Some of the columns", (rows + count, most), op.dtype, op.device, "use smaller blocks")
    for start in range(0, count, most):
        basis = torch.zeros(count, min(most, count - start), dtype=op.dtype, device=op.device)
        basis.diagonal(-start).fill_(1)
        found = op @ basis
        assert isinstance(found, Tensor)
        expect(
            bool(torch.isfinite(found).all()),
            "operator: a product with a finite vector has infinite or NaN entries, expected finite ones.",
        )
        yield start, found


def write_columns(op: TensorListOperator, target: Tensor) -> None:
    """Write the matrix into a tensor of its shape."""
    rows, count = op.shape
    if rows < count:
        op, target = op.adjoint(), target.T
    for start, found in columns_of(op):
        target[:, start : start + found.shape[1]] = found


def diagonal_by_columns(op: TensorListOperator) -> Tensor:
    """The diagonal of a square matrix."""
    return torch.cat([found.diagonal(-start) for start, found in columns_of(op)])


def square_by_columns(op: TensorListOperator) -> Scaled:
    """The squared Frobenius norm; neither the matrix is held, nor need the square fit in the dtype."""
    rows, count = op.shape
    thin = op.adjoint() if rows < count else op
    return Scaled.total([_square(found) for _, found in columns_of(thin)], op.device)


def _square(entries: Tensor) -> Scaled:
    """The sum of squares of numbers whose squares need not fit."""
    exponent = math.frexp(float(entries.abs().max()))[1]
    return Scaled(ldexp(entries.double(), -exponent).square().sum(), 2 * exponent)


_ITERATIONS = 20
"""Products that an iterative solver makes at least, such as ARPACK's smallest basis."""


class Operator(Displayable, CheckedOperator):
    """A matrix between parameters, vectorised row-major; every kind of operator has the same methods.

    ``@`` (with vectors, matrices and tensor lists), ``adjoint()``, ``to_dense()``, ``trace()``, ``diagonal()``,
    ``frobenius_norm()``, ``to_scipy()``, ``+ - * /``; and as text ``cost``, ``why`` and ``print(op)``. Every method
    gives the number itself, never a sample. Here they take one matvec per column (or a row, if there are fewer), some
    columns at a time; operators in closed form answer them from their factors. For estimates from few products there
    are `hessianlens.frobenius`, `hessianlens.trace` and `hessianlens.diagonal`.

    A kind of operator has at least ``_matmat``, ``_adjoint``, ``dtype``, ``device`` and ``product_cost``.

    >>> class Doubling(Operator):
    ...     dtype, device, product_cost = torch.float64, torch.device("cpu"), "a multiplication per number"
    ...
    ...     def _matmat(self, X):
    ...         return [2 * x for x in X]
    ...
    ...     def _adjoint(self):
    ...         return self
    >>> op = Doubling([(2, 2)], [(2, 2)])
    >>> op
    Doubling 4x4 float64, matvecs, a multiplication per number
    >>> op.trace(), op.frobenius_norm(), (op / 2 - op).diagonal()
    (tensor(8., dtype=torch.float64), tensor(4., ...), tensor([-1., -1., -1., -1.], dtype=torch.float64))
    >>> op.exact, op.cost
    (False, 'a multiplication per number; its norm or its entries take 4 matvecs')
    """

    method: str = "matvecs"
    """How its numbers are found, in a word or two."""
    exact: bool = False
    """Whether it is in closed form: estimators then ask it, and only rounding is the error. Else they sample."""
    why: str = "only its matvecs are known"
    """Why it is in closed form, or why it goes through matvecs."""
    _dense_working: float = 1.2
    """Times its own size that forming the dense matrix holds at the peak."""

    def exact_within(self, hvps: float) -> bool:
        """Whether it is in closed form, or would be after at most this many HVPs; makes no more than these to find out.

        Args:
            hvps: HVPs that estimates would take instead.
        """
        return self.exact

    @property
    def product_cost(self) -> str:
        """What a matvec costs, as text."""
        raise NotImplementedError

    @property
    def cost(self) -> str:
        """What a matvec costs and how many of them the other methods take, as text; in seconds once one was made."""
        counted = f"{self.product_cost}; its norm or its entries take {min(self.shape)} matvecs"
        return f"{counted}; {self.measured_cost}" if self.measured_cost else counted

    measured_cost = ""
    """What the first matvec took, and what further ones will, as text; empty where nobody has measured it."""

    def announce(self, products: int) -> None:
        """Announce that at least so many products with vectors will follow, also if one by one.

        What pays for many products only is then done before the first of them. Nothing else depends on it; eigenvalue
        solvers, estimators and ``to_scipy`` do it by themselves.

        Args:
            products: How many.
        """
        check_whole("products", products, 0)

    def to_scipy(self, dtype: Any = None) -> Any:
        """The operator for SciPy's iterative solvers, which multiply with one vector after the other.

        Args:
            dtype: NumPy's dtype of its vectors; default: NumPy's own.
        """
        kind = None if dtype is None else _numpy_dtype(dtype)
        self.announce(_ITERATIONS)
        return super().to_scipy(kind)

    @restores_state
    def to_dense(self) -> Tensor:
        """The matrix itself; refused with its size if it would not fit in memory."""
        ensure_fits(
            "The dense matrix",
            self.shape,
            self.dtype,
            self.device,
            "products (op @ v), op.trace(), op.diagonal() and op.frobenius_norm() never form it",
            working=self._dense_working,
        )
        dense = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        self._dense_into(dense)
        return dense

    @restores_state
    def trace(self) -> Tensor:
        """The trace itself, not an estimate."""
        self._expect_square("trace")
        return self._trace()

    @restores_state
    def diagonal(self) -> Tensor:
        """The diagonal itself, as a vector."""
        self._expect_square("diagonal")
        return self._diagonal()

    @restores_state
    def frobenius_norm(self) -> Tensor:
        """The Frobenius norm itself; its square need not fit in the dtype. Refused if the norm does not."""
        return self._frobenius_square().root().number(self.dtype, "frobenius_norm")

    @restores_state
    def kronecker_fit(self, rank: int = 1, *, seed: int = 0) -> KroneckerFit:
        """The nearest ``sum_r A_r (x) B_r`` in Frobenius norm, and its exact error (Van Loan and Pitsianis, 1993).

        A sum over tokens is not formed for it: ``sum_n p_n p_n' (x) G_n`` is rearranged into
        ``sum_n vec(p_n p_n') vec(G_n)'``, whose leading singular triplets come from products with its factors. Where
        nothing but matvecs is known, the dense matrix is formed; ``fit.why`` says which.

        Args:
            rank: How many Kronecker products.
            seed: Seed of the first directions of the search.

        >>> from hessianlens.operators import Factor, Term, TokenSum
        >>> p, G = torch.eye(3)[:2], torch.stack([torch.eye(2), 2 * torch.ones(2, 2)])
        >>> factors = Factor("p", "na", p), Factor("G", "nbd", G), Factor("p", "nc", p)
        >>> op = TokenSum.of([Term(1.0, factors)], (3, 2), (3, 2))
        >>> op.kronecker_fit(), op.kronecker_fit(rank=2).relative_error < 1e-3
        (KroneckerFit of 1 product: 23... % of the norm is left, True)
        """
        (a, b), (c, d) = self._matrix_shapes("kronecker_fit")
        check_whole("rank", rank, 1)
        expect(rank <= min(a * c, b * d), f"rank: got {rank}, expected at most {min(a * c, b * d)} for this block.")
        check_seed(seed)
        rearranged, norm = self._rearranged(), float(self._frobenius_square().root().number(torch.float64, "norm"))
        like = torch.empty((), dtype=self.dtype, device=self.device)
        U, s, V = leading_triplets(rearranged, (a, c), (b, d), rank, like=like, seed=seed)
        pairs = [
            (root * U[:, r].reshape(a, c), root * V[:, r].reshape(b, d)) for r, root in enumerate(s.sqrt().tolist())
        ]
        return KroneckerFit(tuple(pairs), tuple(s.tolist()), norm, rearranged.why)

    @restores_state
    def kronecker_distance(self, A: Tensor, B: Tensor) -> float:
        """``|H - A (x) B|``, the distance from KFAC's, Shampoo's or anyone's factors, as exact as `kronecker_fit`.

        Args:
            A: The factor of the first axis of both parameters.
            B: The factor of the second.

        >>> from hessianlens.operators import Factor, Term, TokenSum
        >>> op = TokenSum.of([Term(2.0, (Factor("1", "ac", torch.eye(3)), Factor.identity("bd", 2)))], (3, 2), (3, 2))
        >>> op.kronecker_distance(torch.eye(3), 2 * torch.eye(2)), op.kronecker_distance(torch.eye(3), torch.eye(2))
        (0.0, 2.44...)
        """
        (a, b), (c, d) = self._matrix_shapes("kronecker_distance")
        for name, given, shape in (("A", A, (a, c)), ("B", B, (b, d))):
            sound = isinstance(given, Tensor) and tuple(given.shape) == shape and bool(given.isfinite().all())
            check_that(sound and not given.is_complex(), name, given, f"a real, finite matrix of shape {shape}")
        norm = float(self._frobenius_square().root().number(torch.float64, "norm"))
        image = self._rearranged().times(B.to(self.device, self.dtype)[..., None])[..., 0].double()
        inner = float((A.to(image) * image).sum())
        size = float(A.double().norm()) * float(B.double().norm())
        return math.sqrt(max(0.0, norm * norm - 2 * inner + size * size))

    def _matrix_shapes(self, what: str) -> tuple[tuple[int, int], tuple[int, int]]:
        shapes = [*self._out_shape, *self._in_shape]
        expect(
            len(shapes) == 2 and all(len(shape) == 2 for shape in shapes),
            f"{what}: the block is between parameters of shapes {', '.join(str(tuple(s)) for s in shapes)}; expected "
            "two matrices, take one block of a grid.",
        )
        (a, b), (c, d) = map(tuple, shapes)
        return (a, b), (c, d)

    def _rearranged(self) -> Rearranged:
        """From the dense matrix; operators in closed form have something better."""
        (a, b), (c, d) = self._matrix_shapes("kronecker_fit")
        R = self.to_dense().reshape(a, b, c, d).permute(0, 2, 1, 3).reshape(a * c, b * d)
        return Rearranged(
            lambda Y: (R @ Y.reshape(b * d, -1)).reshape(a, c, -1),
            lambda X: (R.T @ X.reshape(a * c, -1)).reshape(b, d, -1),
            "from the dense matrix",
        )

    def _dense_into(self, target: Tensor) -> None:
        """Write the matrix into a (view of a) tensor of its shape."""
        write_columns(self, target)

    def _trace(self) -> Tensor:
        return self._diagonal().double().sum().to(self.dtype)

    def _diagonal(self) -> Tensor:
        return diagonal_by_columns(self)

    def _frobenius_square(self) -> Scaled:
        return square_by_columns(self)

    def _expect_square(self, what: str) -> None:
        expect(
            self._in_shape == self._out_shape,
            f"{what}: the block is {self.shape[0]}x{self.shape[1]} between different parameters; "
            f"a {what} exists for a block of a parameter with itself.",
        )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{type(self).__name__} {self.shape[0]}x{self.shape[1]} {dtype}, {self.method}, {self.product_cost}"

    # --- to look at it ------------------------------------------------------------------------------------------------

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": type(self).__name__,
                "rows": self.shape[0],
                "columns": self.shape[1],
                "dtype": str(self.dtype).removeprefix("torch."),
                "device": str(self.device),
                "method": self.method,
                "exact": self.exact,
                "why": self.why,
                "cost": self.cost,
            }
        ]

    def _cells(self) -> Cells:
        return facts(self._records()[0])

    def _heading(self) -> str:
        return f"{type(self).__name__} {self.shape[0]}x{self.shape[1]} {str(self.dtype).removeprefix('torch.')}"

    def _picture(self, asked: bool) -> Picture | None:
        """Every entry; nobody is made to wait for it who has not asked."""
        if not (asked or self._seen_at_once()):
            return None
        return Entries(self.to_dense().tolist(), "entries")

    def _seen_at_once(self) -> bool:
        """Whether its entries are so cheap that they are shown without being asked for."""
        return False

    # --- algebra -----------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Operator:
        if not is_linear_operator(other):
            return NotImplemented
        return _combination((1.0, self), (1.0, other))

    def __radd__(self, other: Any) -> Operator:
        """``sum([...])`` starts at 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Any) -> Operator:
        if not is_linear_operator(other):
            return NotImplemented
        return self + (other * -1.0 if isinstance(other, Operator) else _combination((-1.0, other)))

    def __mul__(self, scalar: Any) -> Operator:
        return _combination((check_number("scalar", scalar), self))

    def __rmul__(self, scalar: Any) -> Operator:
        return self * scalar

    def __truediv__(self, scalar: Any) -> Operator:
        return self * reciprocal(scalar)

    def __neg__(self) -> Operator:
        return self * -1.0


def _combination(*terms: tuple[float, TensorListOperator]) -> Operator:
    from hessianlens.operators.combination import LinearCombination  # which is itself an operator

    return LinearCombination(terms)


def reciprocal(scalar: object) -> float:
    """One over a number that is not zero."""
    number = check_number("scalar", scalar)
    check_that(number != 0 and abs(1 / number) < math.inf, "scalar", scalar, "a number to divide by")
    return 1 / number


def _numpy_dtype(given: Any) -> np.dtype[Any]:
    try:
        found = np.dtype(given)
    except (TypeError, ValueError):
        found = None
    check_that(found is not None and found.kind == "f", "dtype", given, "a floating-point dtype of NumPy, or None")
    assert found is not None
    return found
