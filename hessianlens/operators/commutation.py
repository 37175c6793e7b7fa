"""The commutation matrix: transposition as a matrix that acts on row-major vectors."""

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_device, check_dtype
from hessianlens.errors import check_whole
from hessianlens.memory import ensure_fits


def commutation_matrix(
    rows: int,
    cols: int,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Float[Tensor, "{rows}*{cols} {rows}*{cols}"]:
    """The permutation `K_{rows,cols}` with `vec(X^T) = K_{rows,cols} vec(X)` for `X` of shape `cols x rows`.

    `vec` is row-major. The indices name the shape of the result: `X^T` is `rows x cols`, so an `X` of shape
    `n x q` is transposed by `K_{q,n}` (Equation (18) of "What Does It Mean to Be a Transformer?"). The
    inverse is the transpose, `K_{rows,cols}^T = K_{cols,rows}`.

    Args:
        rows: Number of rows of the transposed matrix.
        cols: Number of columns of the transposed matrix.
        dtype: Type of the entries; torch's default floating type if omitted.
        device: Where the matrix lives; torch's default device if omitted.

    Example:
        >>> X = torch.arange(6.0).reshape(2, 3)
        >>> K = commutation_matrix(3, 2)
        >>> torch.equal(K @ X.reshape(-1), X.T.reshape(-1))
        True
        >>> torch.equal(K.T, commutation_matrix(2, 3))
        True
    """
    size = check_whole("rows", rows) * check_whole("cols", cols)
    kind = torch.get_default_dtype() if dtype is None else check_dtype(dtype)
    place = torch.get_default_device() if device is None else check_device(device)
    ensure_fits("The commutation matrix", (size, size), kind, place, "transpose the matrix itself", 2)
    order = torch.arange(rows * cols, device=device).reshape(cols, rows).T.reshape(-1)
    return torch.eye(rows * cols, dtype=dtype, device=device)[order]
