"""Which key tokens a query token may see, and what is added to its scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, expect
from hessianlens.sizes import number_of


@dataclass(frozen=True, eq=False)
class Masking:
    """Causal order, a boolean mask (True: may attend) and an additive bias, together.

    An entry of the bias that is minus infinity hides that entry, exactly as the mask does.

    >>> seen, added = Masking(causal=True).resolve(1, 2, torch.float64, torch.device("cpu"))
    >>> seen[0].tolist()
    [[True, False], [True, True]]
    """

    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        """Reject masks and biases of the wrong kind before any sequence is seen."""
        if self.mask is not None:
            _expect_matrix("mask", self.mask)
            expect(
                self.mask.dtype == torch.bool,
                f"mask: got dtype {self.mask.dtype}, expected torch.bool (True: may attend).",
            )
        if self.bias is not None:
            _expect_matrix("bias", self.bias)
            expect(
                self.bias.is_floating_point(),
                f"bias: got dtype {self.bias.dtype}, expected a floating dtype.",
            )
            expect(
                not bool(torch.isnan(self.bias).any() | torch.isposinf(self.bias).any()),
                "bias: got nan or +inf entries, expected finite numbers, or -inf to hide an entry.",
            )

    def resolve(
        self, sequences: int, length: int, dtype: torch.dtype, device: torch.device, keys: int | None = None
    ) -> tuple[Bool[Tensor, "s i l"], Float[Tensor, "s i l"] | None]:
        """Visible entries, and the bias with its hidden entries set to zero, for a batch of this size.

        Args:
            sequences: Sequences of the batch.
            length: Tokens that look.
            dtype: Of the bias.
            device: Of both.
            keys: Tokens that are looked at; as many if omitted.
        """
        shape = (sequences, length, length if keys is None else keys)
        expect(
            not self.causal or shape[1] == shape[2],
            f"causal: got {shape[1]} queries and {shape[2]} keys, expected as many keys as queries; pass a mask.",
        )
        visible = torch.ones(shape, dtype=torch.bool, device=device)
        if self.causal:
            visible = visible.tril()
        if self.mask is not None:
            visible = visible & _fit("mask", self.mask.to(device), shape)
        if self.bias is None:
            return visible, None
        bias = _fit("bias", self.bias.to(device=device, dtype=dtype), shape)
        hidden = torch.isneginf(bias)
        return visible & ~hidden, bias.masked_fill(hidden, 0)


def _expect_matrix(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor) or tensor.ndim not in (2, 3):
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"{name}: got {got}, expected a tensor of shape (L, L) or (B, L, L).")
    check_dense(name, tensor)


def _fit(name: str, tensor: Tensor, shape: tuple[int, int, int]) -> Tensor:
    batched = tensor if tensor.ndim == 3 else tensor[None]
    expect(
        batched.shape[0] in (1, shape[0]) and batched.shape[1:] == shape[1:],
        f"{name}: got shape {tuple(tensor.shape)}, expected {shape[1:]} or {shape}, "
        f"for {number_of(shape[0], 'sequence')} of {number_of(shape[1], 'token')}.",
    )
    return batched.expand(shape)
