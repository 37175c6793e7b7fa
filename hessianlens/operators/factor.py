"""A factor: a tensor, or an identity, whose axes carry index letters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hessianlens.errors import InputError, check_that, check_whole


class Factor:
    """One factor of a product written in index notation, such as ``K[s,l,b]``.

    Args:
        name: What to call it when the algebra is printed.
        indices: One letter an axis.
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
