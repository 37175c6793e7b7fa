"""What the estimators need of a matrix: its shape and its products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_shape, check_tensor
from hessianlens.errors import InputError, check_function, check_that, describe_value, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.memory import ensure_fits
from hessianlens.operators import Operator
from hessianlens.spectra.probes import Probes, chunk_size

Progress = Callable[[int, int], None]
"""Called with the number of vectors multiplied so far and their total."""

_SYMMETRY_STREAM = 1


@runtime_checkable
class LinearOperator(Protocol):
    """A matrix through its products: curvlinops' interface; a torch matrix has it too."""

    @property
    def shape(self) -> Any:
        """Rows and columns."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the vectors it multiplies."""

    @property
    def device(self) -> torch.device:
        """Where the vectors must live."""

    def __matmul__(self, other: Any) -> Any: ...


def check_operator(op: LinearOperator) -> tuple[int, int]:
    """Rows and columns of an operator that can be multiplied with vectors."""
    missing = [name for name in ("shape", "dtype", "device", "__matmul__") if not hasattr(op, name)]
    expect(
        not missing,
        f"op: got {type(op).__name__} without {', '.join(missing)}, expected a linear operator such as those of "
        "hessianlens or curvlinops, or a torch matrix.",
    )
    wanted = "a linear operator on torch vectors, or a torch matrix; wrap an array with torch.from_numpy"
    check_that(isinstance(op.dtype, torch.dtype) and not isinstance(op, type), "op", op, wanted)
    if isinstance(op, Tensor):
        expect(not op.is_meta, "op: got a matrix on the meta device, which holds a shape and no numbers.")
    expect(len(op.shape) == 2, f"op: got shape {tuple(op.shape)}, expected a matrix (rows, columns).")
    rows, columns = (int(n) for n in op.shape)
    expect(rows > 0 and columns > 0, f"op: got shape {rows}x{columns}, expected at least one row and one column.")
    expect(op.dtype.is_floating_point, f"op: got dtype {op.dtype}, expected a real floating dtype.")
    return rows, columns


def in_closed_form(op: object, products: float = math.inf) -> TypeGuard[Operator]:
    """Whether an operator answers by itself, without sampling, and that is no dearer.

    Args:
        op: The operator.
        products: Products that a sampled answer takes.

    >>> in_closed_form(torch.eye(2))
    False
    """
    if not isinstance(op, Operator):
        return False
    asked = products if isinstance(products, (int, float)) else math.inf  # what is no number is refused later on
    return op.exact_within(min(asked, op.shape[1]))


def check_progress(progress: Progress | None) -> None:
    """What follows how far the work is, or nothing."""
    if progress is not None:
        check_function("progress", progress, "a function of the vectors done and their total, or None")


def check_square(op: LinearOperator, what: str) -> int:
    """The size of a square operator."""
    rows, columns = check_operator(op)
    expect(rows == columns, f"op: got shape {rows}x{columns}, expected a square operator; only those have {what}.")
    return rows


def start_vectors(op: LinearOperator, start: Tensor) -> Float[Tensor, "k n"]:
    """Where a search begins: one vector, or several as columns; the rows of what comes back."""
    n = int(op.shape[1])
    check_shape("start", check_tensor("start", start, (1, 2)), (n, *start.shape[1:]), "one number for every row")
    rows = start.to(device=op.device, dtype=op.dtype).reshape(n, -1).T
    expect(bool(rows.any(1).all()), "start: got a vector of zeros, expected a direction.")
    return rows


def announce(op: LinearOperator, products: int) -> None:
    """Tell an operator of this package how many products will follow at least."""
    if isinstance(op, Operator):
        op.announce(products)


def multiply(op: LinearOperator, vectors: Float[Tensor, "columns k"]) -> Float[Tensor, "rows k"]:
    """``op @ vectors``, detached and finite; of a matrix in half precision in single, as its sums might overflow."""
    matrix = op.float() if isinstance(op, Tensor) and op.dtype.itemsize < torch.float32.itemsize else op
    with failures_as_input_errors(
        "op: a product with it failed", f"it was given vectors of shape {tuple(vectors.shape)}"
    ):
        product = matrix @ vectors.to(device=matrix.device, dtype=matrix.dtype)
    expected = (int(op.shape[0]), vectors.shape[1])
    if not isinstance(product, Tensor) or tuple(product.shape) != expected:
        raise InputError(
            f"op: a product with vectors is {describe_value(product)}, expected a tensor of shape {expected}."
        )
    product = product.detach()
    # A sum is finite only if every entry is, and takes a tenth of the time. That of very large entries may overflow.
    if not bool(product.sum().isfinite()) and not bool(torch.isfinite(product).all()):
        raise InputError("op: a product with finite vectors has infinite or NaN entries, expected finite ones.")
    return product


def multiply_in_chunks(op: LinearOperator, vectors: Float[Tensor, "columns k"], size: int) -> Float[Tensor, "rows k"]:
    """``op @ vectors``, `size` columns at a time."""
    announce(op, vectors.shape[1])
    return torch.cat([multiply(op, part) for part in vectors.split(size, dim=1)], dim=1)


def probe(
    op: LinearOperator, probes: Probes, chunk: int | None, progress: Progress | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs ``V, op @ V`` over chunks of probes."""
    done = 0
    announce(op, probes.count)
    for V in probes.chunks(chunk_size(chunk, max(op.shape), probes.count)):
        yield V, multiply(op, V)
        done += V.shape[1]
        if progress is not None:
            progress(done, probes.count)


def basis(op: LinearOperator) -> Probes:
    """Every basis vector of the columns of an operator."""
    columns = int(op.shape[1])
    return Probes(columns, columns, None, "basis", op.dtype, op.device)


def dense(op: LinearOperator, chunk: int | None, progress: Progress | None = None) -> Float[Tensor, "rows columns"]:
    """The matrix itself, in float64, column by column unless the operator can write it down."""
    rows, columns = check_operator(op)
    ensure_fits("The dense matrix", (rows, columns), torch.float64, op.device, "use a method that needs products only")
    if in_closed_form(op, columns):
        return op.to_dense().detach().double()
    return torch.cat([AV.double() for _, AV in probe(op, basis(op), chunk, progress)], dim=1)


def symmetric_dense(op: LinearOperator, chunk: int | None, progress: Progress | None = None) -> Float[Tensor, "n n"]:
    """The dense matrix of a symmetric operator, symmetric to the last bit."""
    matrix = dense(op, chunk, progress)
    return (matrix + matrix.T) / 2


class AsymmetricOperator(InputError):
    """An operator with ``u^T A v != v^T A u``.

    Args:
        difference: ``u^T A v - v^T A u`` for a random pair of vectors.
        scale: ``|A u| + |A v|``.
        size: The larger one of ``|A u| / |u|`` and ``|A v| / |v|``, up to which A may be rounding of something larger.
    """

    def __init__(self, difference: float, scale: float, size: float) -> None:
        super().__init__(
            f"op: got u^T A v - v^T A u = {difference:.3g} for a random pair with |A u| + |A v| = {scale:.3g}, "
            "expected a symmetric operator; its spectrum is real. If the difference is rounding, pass "
            "check_symmetry=False."
        )
        self.size = size


def check_symmetric(op: LinearOperator, seed: int) -> None:
    """Refuse an operator with ``u^T A v != v^T A u`` for one random pair of vectors.

    An operator that calls itself self-adjoint is believed. The difference may be up to ``sqrt(eps)`` of
    ``|A u| + |A v|``, far above rounding and far below the difference of an unsymmetric matrix.
    """
    if getattr(op, "SELF_ADJOINT", False):
        return
    u, v = Probes(int(op.shape[1]), 2, seed, "gaussian", op.dtype, op.device, _SYMMETRY_STREAM).matrix(0, 2).T
    Au, Av = multiply(op, torch.stack([u, v], 1)).double().T
    difference = float(u.double() @ Av - v.double() @ Au)
    scale = float(Au.norm() + Av.norm())
    if not abs(difference) <= torch.finfo(op.dtype).eps ** 0.5 * scale:
        size = max(float(Au.norm() / u.double().norm()), float(Av.norm() / v.double().norm()))
        raise AsymmetricOperator(difference, scale, size)
