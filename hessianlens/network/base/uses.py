"""How parameters enter a network, and blocks as pieces of linear maps.

One `Use` for every operation that takes a parameter, all of a run in a `ParameterUses`; a `Piece` says which inputs and
which outputs of a map a block joins.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor

from hessianlens.errors import InputError, Refusal
from hessianlens.problems import Block


class Kind(Enum):
    """How a parameter enters."""

    IN_OUT = "a W"
    OUT_IN = "a W^T"
    GAIN = "a * w"
    SHIFT = "+ w"
    LOOK_UP = "W[rows]"


@dataclass(frozen=True, eq=False)
class Use:
    """One operation that takes a parameter.

    Attributes:
        parameter: Its name.
        kind: How it enters.
        site: Number of the operation, in the order in which the network runs.
        inputs: What it is multiplied with, ``[..., p]``; None for a shift.
        outputs: Shape of z, ``[..., f]``.
        places: Where its numbers lie in the parameter, ``[p, f]`` or ``[f]``, if that was rearranged before; None if it
            enters as it is, or transposed.
        rows: Rows of a table that are looked up, ``[...]``, as z is the product with one-hot vectors of these; -1 where
            what is looked up counts as a constant, as padding does.
        whole_table: Whether z stands for the rows of a table, in place of what is looked up of them.
    """

    parameter: str
    kind: Kind
    site: int
    inputs: Tensor | None
    outputs: tuple[int, ...]
    places: Tensor | None = None
    rows: Tensor | None = None
    whole_table: bool = False

    def by_table(self, table: Tensor) -> Use:
        """The same look-up of a table with fewer rows than a sequence has positions: z is its rows."""
        rows = torch.arange(len(table), device=table.device)
        return replace(self, outputs=tuple(table.shape), rows=rows, whole_table=True)

    def matrix(self, parameter: Tensor) -> Tensor:
        """The parameter as it enters: inputs by outputs, or a vector."""
        if self.places is not None:
            return parameter.reshape(-1)[self.places.to(parameter.device)]
        return parameter.T if self.kind is Kind.OUT_IN else parameter


class OtherOrder(InputError):
    """A network does not run as it was seen to."""

    def __init__(self) -> None:
        super().__init__("the model calls other linear maps, or in another order, when gradients are computed")


@dataclass(eq=False)
class ParameterUses:
    """What a run has shown.

    Attributes:
        uses: Every operation that was understood, in order.
        unknown: Parameters that something else was done to, and what.
    """

    uses: list[Use] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)

    def of(self, parameter: str) -> list[Use] | Refusal:
        """Every use of a parameter, in order; a refusal where there is none, or one that is no linear map."""
        found = [use for use in self.uses if use.parameter == parameter]
        if parameter in self.unknown:
            return Refusal(f"it enters the network through {self.unknown[parameter]}")
        return found or Refusal("it was not seen to enter through a linear map")

    def input(self, use: Use) -> Tensor | None:
        """What a parameter is multiplied with at a use that another run has shown too; None for a shift."""
        found = [one for one in self.uses if (one.parameter, one.site) == (use.parameter, use.site)]
        if len(found) != 1:
            raise OtherOrder
        return found[0].inputs


@dataclass(frozen=True, eq=False)
class Piece:
    """A block of a parameter in use.

    Attributes:
        block: The block.
        use: How its parameter enters.
        inputs: Numbers of the inputs that it takes; a single zero for gains and shifts, which take none.
        features: Numbers of the outputs that it feeds.
        order: Where inputs by outputs lie in the block, if it was rearranged before it entered, or is a table of which
            some rows are looked up only; nothing depends on the others.
    """

    block: Block
    use: Use
    inputs: Tensor
    features: Tensor
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Inputs by outputs."""
        return len(self.inputs), len(self.features)

    @property
    def weighs(self) -> bool:
        """Whether it multiplies inputs into outputs, rather than scale or shift these one by one."""
        return self.use.kind in (Kind.IN_OUT, Kind.OUT_IN, Kind.LOOK_UP)

    def cut(self, tensor: Tensor) -> list[Tensor]:
        """A tensor shaped as the block, as inputs by outputs."""
        if self.order is not None:
            return [tensor.reshape(-1)[self.order.to(tensor.device)]]
        if self.use.kind is Kind.IN_OUT:
            return [tensor]
        return [tensor.T] if self.use.kind is Kind.OUT_IN else [tensor.reshape(1, -1)]

    def one_hot(self, dtype: torch.dtype) -> Tensor:
        """What a table is multiplied with, as if it were a weight: ``[position, row]``, for the rows of the piece."""
        assert self.use.rows is not None
        rows = self.use.rows.reshape(-1, 1)
        return (rows == self.inputs.to(rows.device)).to(dtype)

    def join(self, matrix: Tensor) -> Tensor:
        """The inverse of `cut`: inputs by outputs, as a tensor shaped as the block, with zeros elsewhere."""
        if self.order is not None:
            flat = matrix.new_zeros(self.block.numel)
            flat[self.order.reshape(-1).to(matrix.device)] = matrix.reshape(-1)
            return flat.reshape(self.block.shape)
        return (matrix.T if self.use.kind is Kind.OUT_IN else matrix).reshape(self.block.shape)


def piece_of(block: Block, use: Use, like: Tensor, occurring: Tensor | None = None) -> Piece | None:
    """The piece of a map that a block is; None if its entries do not join some inputs with some outputs.

    Args:
        block: The block.
        use: How its parameter enters.
        like: The parameter.
        occurring: Rows of a table that are looked up anywhere; those of this use, if it is not given.

    >>> whole = torch.zeros(4, 6)
    >>> head = Block.of("q.head1", "w", whole, (slice(None), slice(2, 4)))
    >>> piece_of(head, Use("w", Kind.IN_OUT, 0, None, (5, 6)), whole).features
    tensor([2, 3])
    """
    if use.places is not None:
        return _rearranged(block, use, like)
    if use.kind in (Kind.GAIN, Kind.SHIFT):
        return Piece(block, use, _ones_place(), block.take(torch.arange(len(like), device="cpu")))
    # Views: a table of all entries of a large vocabulary would take more room than its parameter.
    rows, columns = (
        torch.arange(size, device="cpu").reshape(shape).expand(like.shape)
        for size, shape in zip(like.shape, ((-1, 1), (1, -1)), strict=True)
    )
    first, second = block.take(rows)[:, 0], block.take(columns)[0]
    if use.kind is Kind.LOOK_UP:
        assert use.rows is not None
        looked_up = use.rows if occurring is None else occurring
        taken = torch.isin(first, looked_up.cpu()).nonzero()[:, 0]
        order = taken[:, None] * len(second) + torch.arange(len(second), device="cpu")
        return Piece(block, use, first[taken], second, order)
    inputs, features = (first, second) if use.kind is Kind.IN_OUT else (second, first)
    return Piece(block, use, inputs, features)


def _rearranged(block: Block, use: Use, like: Tensor) -> Piece | None:
    assert use.places is not None
    own = block.take(torch.arange(like.numel(), device="cpu").reshape(like.shape)).reshape(-1)
    number = torch.full((like.numel(),), -1, device="cpu")
    number[own] = torch.arange(len(own), device="cpu")
    weighs = use.places.ndim == 2
    found = number[use.places if weighs else use.places[None]]
    rows, columns = ((found >= 0).any(axis).nonzero()[:, 0] for axis in (1, 0))
    order = found[rows][:, columns]
    if bool((order < 0).any()) or order.numel() != len(own):
        return None
    return Piece(block, use, rows if weighs else _ones_place(), columns, order)


def _ones_place() -> Tensor:
    """What a gain or a shift is multiplied with has one place."""
    return torch.zeros(1, dtype=torch.int64, device="cpu")
