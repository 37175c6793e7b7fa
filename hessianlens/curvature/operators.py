"""Matrix-free operators between named blocks: the Hessian, the Gauss-Newton matrix and the functional Hessian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter

import torch
from torch import Tensor

from hessianlens.curvature.repeated import Repeated
from hessianlens.curvature.thresholds import TAPE_MIN_HVPS_BY_EXCERPT
from hessianlens.curvature.verification import Steps, is_verified, verify
from hessianlens.operators import Operator
from hessianlens.problems import Block, Problem
from hessianlens.sizes import number_of, readable, readable_time

Tangents = dict[str, Tensor]

_TAPES_BYTES = 2**30
"""Tapes that are held between products where there are several batches."""


class BlockPairOperator(Operator):
    """A curvature matrix with rows and columns in named blocks, known through exact products.

    Its trace, diagonal, norm and entries are exact as well, at the price of one matvec per column (or a row, if there
    are fewer of them). Products go over the data batch by batch; the graph of a batch serves every vector of a product,
    and stays for later products if it is the only one (or if `keep_graphs` says so). Where many are made of a large
    model, a tape takes over from the graph (`hessianlens.curvature.repeated`), and ``why`` says so. Where processes
    share the data, each makes the product of its own, and all of them get the sum.

    Args:
        problem: What is differentiated.
        rows: Blocks that index the rows.
        columns: Blocks that index the columns.
        keep_graphs: Keep the graphs of all batches between products; default: only if there is a single batch.
    """

    method = "double backward"
    why = "it was made from a problem's HVPs"
    gradients_per_product: float = 2.0
    """Cost of one product, in gradients of the loss."""
    gradients_on_tape: float = 0.8
    """The same by a tape, for blocks of the lowest layer."""

    def __init__(
        self,
        problem: Problem,
        rows: Sequence[Block],
        columns: Sequence[Block],
        keep_graphs: bool | None = None,
    ) -> None:
        super().__init__([block.shape for block in columns], [block.shape for block in rows])
        self.problem, self.rows, self.columns = problem, tuple(rows), tuple(columns)
        self.keep_graphs = len(problem.data) == 1 if keep_graphs is None else keep_graphs
        self._kept: dict[int, Repeated] = {}
        self._way = self.measured_cost = ""
        self._coming = 0

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the entries, that of the problem."""
        return self.problem.dtype

    @property
    def device(self) -> torch.device:
        """Device of the products, that of the problem."""
        return self.problem.device

    @property
    def row_parameters(self) -> list[str]:
        """Parameters in which the row blocks lie."""
        return list(dict.fromkeys(block.parameter for block in self.rows))

    @property
    def product_cost(self) -> str:
        """What a product costs, as text."""
        held = sum(at.held_bytes for at in self._kept.values())
        if held:
            gradients = number_of(self.gradients_on_tape, "gradient", "g")
            return f"about {gradients} per matvec at most, {readable(held)} held"
        return f"about {number_of(self.gradients_per_product, 'gradient', 'g')} per matvec"

    def announce(self, products: int) -> None:
        """Say that at least so many products with vectors will follow: a tape is then made for the first of them."""
        super().announce(products)
        self._coming = max(self._coming, products)

    def linearisations(self) -> Iterator[Repeated]:
        """One batch after the other."""
        names = list(dict.fromkeys([b.parameter for b in (*self.rows, *self.columns)]))
        for k, batch in enumerate(self.problem.data):
            at = self._kept.pop(k, None) or Repeated(self.problem, batch, names)
            yield at
            self._tell(at)
            if not self.keep_graphs:
                at.release_graph()
                if sum(other.held_bytes for other in (at, *self._kept.values())) > _TAPES_BYTES:
                    at.release()
            self._kept[k] = at

    def _tell(self, at: Repeated) -> None:
        """Say how repeated products are made, once that is settled."""
        if at.way and at.way != self._way:
            self.why = f"{self.why.removesuffix(f'; {self._way}')}; {at.way}"
            self._way = at.way
            if at.taped is not None:
                self.method = "tangent passes over a tape"

    part: str
    """Which of the products of `hessianlens.curvature.Linearisation` it is."""

    def product(self, at: Repeated, tangents: Tangents, several: bool = False) -> Mapping[str, Tensor]:
        """The product of one batch's matrix with parameter-shaped tangents, on the row parameters.

        Args:
            at: The batch.
            tangents: By parameter, one vector; or several, along an axis in front.
            several: Whether there are several.
        """
        if several:
            return at.several(self.part, tangents, self.row_parameters)[0]
        found: Mapping[str, Tensor] = getattr(at, self.part)(tangents, self.row_parameters)
        return found

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        asked = self.problem, self.row_parameters, [block.parameter for block in self.columns]
        steps: list[Steps] | None = None
        start, by_graph = perf_counter(), self._comes_from_graphs(X)
        if not by_graph:
            verify(*asked)
        elif not is_verified(*asked):
            steps = []
        names = [[block.name for block in blocks] for blocks in (self.rows, self.columns)]
        begun = perf_counter()
        found = self.problem.ranks.all_reduce(f"{type(self).__name__} of {names}", lambda: self._share(X, steps), X)
        spent = perf_counter() - begun
        everything = steps is not None and len(steps) == len(self.problem.data)
        verify(*asked, (steps or ()) if everything else ())
        if by_graph and not self.measured_cost and X[0].shape[-1] == 1 and self.device.type == "cpu":
            kept = sum(at.next_seconds for at in self._kept.values())
            further = readable_time(kept if self.keep_graphs and kept else spent)
            self.measured_cost = (
                f"the first took {readable_time(perf_counter() - start)} with its checks, further ones {further}"
            )
        return list(found)

    def _comes_from_graphs(self, X: list[Tensor]) -> bool:
        """Whether graphs of all data will be made for these vectors, so that nothing else needs to be looked at."""
        return max(X[0].shape[-1], self._coming) < TAPE_MIN_HVPS_BY_EXCERPT and self.problem.ranks.size == 1

    def _share(self, X: list[Tensor], steps: list[Steps] | None = None) -> list[Tensor]:
        """What the data of this process adds to a product; the steps of its graphs, if they are asked for."""
        vectors = X[0].shape[-1]
        result = [torch.zeros(*block.shape, vectors, dtype=self.dtype, device=self.device) for block in self.rows]
        for at in self.linearisations():
            at.expect(max(vectors, self._coming))
            watched = steps is not None and at.watch()
            k = 0
            while k < vectors:
                width = at.vectors_at_once(vectors - k)
                for number, found in enumerate(self._products(at, X, k, width)):
                    for block, out in zip(self.rows, result, strict=True):
                        out[..., k + number] += block.take(found[block.parameter])
                k += width
            if steps is not None and watched:
                steps.append(at.seen_steps())
        self._coming = max(self._coming - vectors, 0)
        return result

    def _products(self, at: Repeated, X: list[Tensor], first: int, count: int) -> Iterator[Mapping[str, Tensor]]:
        """Products of one batch's matrix with some of the vectors."""
        tangents = [self._embed([x[..., k] for x in X]) for k in range(first, first + count)]
        if count == 1:
            yield self.product(at, tangents[0])
            return
        stacked = {name: torch.stack([one[name] for one in tangents]) for name in tangents[0]}
        found = self.product(at, stacked, several=True)
        for k in range(count):
            yield {name: product[k] for name, product in found.items()}

    def _embed(self, pieces: Sequence[Tensor]) -> Tangents:
        """Vectors of the column blocks as tensors shaped as their parameters; blocks of one parameter add up."""
        tangents: Tangents = {}
        for block, piece in zip(self.columns, pieces, strict=True):
            whole = block.embed(piece.to(self.dtype), self.problem.params[block.parameter])
            tangents[block.parameter] = tangents[block.parameter] + whole if block.parameter in tangents else whole
        return tangents

    def _adjoint(self) -> BlockPairOperator:
        adjoint = type(self)(self.problem, self.columns, self.rows, self.keep_graphs)
        adjoint.why, adjoint._coming = self.why, self._coming
        return adjoint

    def __repr__(self) -> str:
        rows, columns = (", ".join(b.name for b in blocks) for blocks in (self.rows, self.columns))
        return (
            f"{type(self).__name__} {self.shape[0]}x{self.shape[1]}: [{rows}] x [{columns}], {self.method}, "
            f"{self.product_cost}"
        )


class HessianOperator(BlockPairOperator):
    """``H[r, c] = sum_batches d^2 loss / dr dc``, exact products by double backward."""

    part = "hessian"


class GaussNewtonOperator(BlockPairOperator):
    """``G[r, c] = sum_batches J_r^T C J_c`` with C the Hessian of the loss at the outputs."""

    method = "Jacobian products"
    gradients_per_product = 3.0
    part = "gauss_newton"


class FunctionalOperator(BlockPairOperator):
    """``H - G = sum_batches sum_k g_k d^2 f_k / dr dc``: computed as such, not as a difference of larger matrices."""

    part = "functional"


MATRIX_FREE: dict[str, type[BlockPairOperator]] = {
    "full": HessianOperator,
    "ggn": GaussNewtonOperator,
    "functional": FunctionalOperator,
}
"""By the names of `hessianlens.parts`."""
