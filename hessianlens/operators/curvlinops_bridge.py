"""An operator of this package as one of curvlinops: the one place that imports curvlinops, and only when asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hessianlens.errors import InputError

try:
    from curvlinops._torch_base import PyTorchLinearOperator  # it has no public name
except ImportError as error:
    raise InputError(
        "to_curvlinops: curvlinops is not installed; install it with: pip install 'hessianlens[curvlinops]'."
    ) from error


class CurvlinopsView(PyTorchLinearOperator):
    """The same matrix behind curvlinops' class.

    Args:
        op: An operator of this package.

    >>> import hessianlens as hl
    >>> layer = hl.SelfAttention.random(d_model=4, d_k=3, seed=0, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    >>> op, v = hl.attention_hessian(layer, X, hl.SquareLoss(Y)).full["Q", "Q"], torch.ones(12, dtype=torch.float64)
    >>> torch.equal(op.to_curvlinops() @ v, op @ v)
    True
    """

    def __init__(self, op: Any) -> None:
        super().__init__(op._in_shape, op._out_shape)
        self.operator = op

    @property
    def dtype(self) -> torch.dtype:
        """That of the operator."""
        dtype: torch.dtype = self.operator.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """That of the operator."""
        device: torch.device = self.operator.device
        return device

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        result: list[Tensor] = self.operator._matmat(X)
        return result

    def _adjoint(self) -> CurvlinopsView:
        return CurvlinopsView(self.operator.adjoint())
