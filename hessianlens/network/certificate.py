"""Certificates: no block is called exact before plain autograd agreed with it.

What a route to exact numbers rests on is recognised, by watching operations or by comparing numbers, and can be
recognised wrongly. So before a number leaves the library as exact, one Hessian-vector product of that very block,

    G v  and  (H - G) v  by double backward through the model as the user wrote it

(no hooks, no chunked logits, no chunked attention, no tape, no micro-batches, all batches) must equal the product of
the route's own factors with the same random vector, up to rounding. A wrong matrix passes for a set of vectors of
measure zero only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch
from scipy.stats import chi2
from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.errors import InputError, Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.dry_run import DryRun, ForwardSizes, written_sizes
from hessianlens.network.base.question import probe_vectors
from hessianlens.parts import PARTS
from hessianlens.problems import Block, Problem
from hessianlens.sizes import readable

ROUNDING_UNITS = 64
"""Units in the last place, times the root of the number of summands, by which two ways to a product may differ."""
NOISE_FACTOR = 64
"""Times the rounding error that autograd's product was seen to have that they may differ by."""
GRAPH_PER_FORWARD = 40
"""Times the bytes that a forward pass makes, and those of the parameters asked for, that no HVP comes near."""
NORM_TAIL = 1e-6
"""Probability with which a right norm is refused."""
DIRECTIONS_SHARE = 0.25
"""Of the directions that the angles between a few products tell of, those that are counted on."""

Pair = tuple[Block, Block]
Parts = dict[str, Tensor]


class Certificate:
    """Products of blocks with random vectors by plain autograd, each computed once.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._written = problem, problem.as_written()
        self._products: dict[tuple[str, str], Parts] = {}
        self._together: dict[tuple[str, str], Sequence[Pair]] = {}
        self._noises: dict[tuple[str, str], dict[str, float]] = {}

    def announce(self, pairs: Iterable[Pair]) -> None:
        """Say which blocks, rows and columns, will be asked for, so that their products share one graph."""
        group = [pair for pair in pairs if _names(pair) not in self._products]
        self._together |= {_names(pair): group for pair in group}

    def hvps(self, row: Block, column: Block) -> int:
        """HVPs that the next comparison of a block takes: one, unless its product is known."""
        return int((row.name, column.name) not in self._products)

    def compare(self, row: Block, column: Block, matvecs: Mapping[str, Tensor]) -> Refusal | None:
        """None if products with the probe vector of the column are right; else by how much they are not.

        Args:
            row: Block of the rows.
            column: Block of the columns.
            matvecs: By part, what a route says, in the shape of the rows.
        """
        try:
            reference = self._reference(row, column, split=set(matvecs) != {"full"})
        except InputError as error:
            return Refusal(f"plain autograd has no Hessian-vector product to certify it by: {error}")
        if isinstance(reference, Refusal):
            return reference
        for part, matvec in matvecs.items():
            expected = reference[part]
            off, size = _length(matvec.double() - expected.double()), _length(expected)
            summands = max(self._summands, column.numel)
            allowed = ROUNDING_UNITS * torch.finfo(expected.dtype).eps * summands**0.5 * size
            if not off <= allowed and not off <= NOISE_FACTOR * self._noise(row, column, part):
                how_far = f"{off / size:.1g} of its length" if size > 0 else f"{off:.1g}, where it is zero"
                return Refusal(f"its product with a random vector differs from plain autograd's by {how_far}")
        return None

    # --- plain autograd ----------------------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> ForwardSizes:
        """A forward pass of the model as its user wrote it."""
        return written_sizes(self._problem)

    @property
    def _summands(self) -> int:
        """Numbers of the outputs, over which gradients are summed."""
        return int(torch.Size(self._sizes.outputs).numel())

    def _reference(self, row: Block, column: Block, split: bool) -> Parts | Refusal:
        names = (row.name, column.name)
        known = self._products.get(names, {})
        if not known or (split and "ggn" not in known):
            group = self._together.get(names, [(row, column)])
            if (refusal := self._too_large(group)) is not None:
                return refusal
            self._products |= self._computed(group, split)
        return self._products[names]

    def _computed(self, pairs: Sequence[Pair], split: bool) -> dict[tuple[str, str], Parts]:
        """Products by pair: one graph per batch, one HVP per column, and all of its rows from that."""
        columns = {column.name: column for _, column in pairs}
        vectors = {name: self._probe(column) for name, column in columns.items()}
        return self._products_with(pairs, vectors, split)

    def _probe(self, column: Block) -> Tensor:
        return probe_vectors(column, self._problem)[..., 0]

    def _products_with(
        self, pairs: Sequence[Pair], vectors: Mapping[str, Tensor], split: bool
    ) -> dict[tuple[str, str], Parts]:
        problem, totals = self._written, dict[tuple[str, str], Parts]()
        parameters = list(dict.fromkeys(block.parameter for pair in pairs for block in pair))
        for batch in problem.data:
            at = Linearisation(problem, batch, parameters)
            for name, vector in vectors.items():
                asked = [pair for pair in pairs if pair[1].name == name]
                column, rows = asked[0][1], [row for row, _ in asked]
                tangents = {column.parameter: column.embed(vector, problem.params[column.parameter])}
                found = _parts(at, tangents, list(dict.fromkeys(row.parameter for row in rows)), split)
                for row in rows:
                    total = totals.setdefault((row.name, name), {})
                    for part, product in found.items():
                        own = row.take(product[row.parameter])
                        total[part] = total[part] + own if part in total else own.clone()
        return totals

    def _noise(self, row: Block, column: Block, part: str) -> float:
        """The rounding error of a product: by how much those with two vectors differ from that with their sum."""
        key = (row.name, column.name)
        if part not in self._noises.get(key, {}):
            self._noises[key] = self._noise_of_parts(row, column)
        return self._noises[key][part]

    def _noise_of_parts(self, row: Block, column: Block) -> dict[str, float]:
        """By part, of all parts that are known, from the same two products."""
        whole, key = self._probe(column), (row.name, column.name)
        weights = torch.linspace(-1.0, 2.0, column.numel, dtype=whole.dtype, device=whole.device).reshape(whole.shape)
        first, known = whole * weights, self._products[key]
        one, other = (
            self._products_with([(row, column)], {column.name: vector}, "ggn" in known)[key]
            for vector in (first, whole - first)
        )
        return {part: _length(one[part].double() + other[part].double() - known[part].double()) for part in known}

    def _too_large(self, pairs: Sequence[Pair]) -> Refusal | None:
        """Why the graph of plain autograd does not fit; asked first in a way that costs less than a forward pass."""
        blocks = list({block.name: block for pair in pairs for block in pair}.values())
        free = available_bytes(self._written.device)
        asked = sum(block.numel for block in blocks) * self._written.dtype.itemsize
        if GRAPH_PER_FORWARD * (self._sizes.made + asked) <= SAFE_SHARE * free:
            return None
        dry_run = DryRun(self._written)
        held = dry_run.peak(blocks, PARTS, dry_run.sequences)
        if held <= SAFE_SHARE * free:
            return None
        return Refusal(
            f"its certificate, one Hessian-vector product by plain autograd, needs {readable(held)}, and "
            f"{readable(free)} are free"
        )


def _names(pair: Pair) -> tuple[str, str]:
    return pair[0].name, pair[1].name


def _parts(
    at: Linearisation, tangents: Mapping[str, Tensor], rows: Sequence[str], split: bool
) -> dict[str, dict[str, Tensor]]:
    """Products by part and parameter."""
    if not split:
        return {"full": at.hessian(tangents, rows)}
    ggn, functional = at.split(tangents, rows)
    return {"ggn": ggn, "functional": functional, "full": {name: ggn[name] + functional[name] for name in rows}}


def _length(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def impossible_norm(norm: float, matvecs: Tensor) -> bool:
    """Whether a Frobenius norm cannot be that of a matrix with such products: Hutchinson's mean square is too far off.

    For m Gaussian vectors ``|A v|^2 / |A|^2`` has the mean one and the tails of a chi-square distribution with at least
    m degrees of freedom, about ``m r`` for r directions of equal weight. How many these are is seen from the angles
    between the products, whatever their lengths: ``cos^2`` has a mean of about ``1 / r``.

    Args:
        norm: What is said of the matrix.
        matvecs: Its products with independent Gaussian vectors, ``[entry, vector]``.

    >>> products = torch.randn(1000, 4, generator=torch.Generator().manual_seed(0))  # those of the identity
    >>> impossible_norm(1000**0.5, products), impossible_norm(3 * 1000**0.5, products)
    (False, True)
    """
    if not (math.isfinite(norm) and bool(matvecs.isfinite().all())):
        return not math.isfinite(norm) and bool(matvecs.isfinite().all())
    scale = float(matvecs.abs().max())
    if norm == 0 or scale == 0:
        return norm != scale
    products, count = matvecs.double() / scale, matvecs.shape[1]
    lengths = products.norm(dim=0)
    cosines = (products.T @ products / torch.outer(lengths, lengths))[
        ~torch.eye(count, dtype=torch.bool, device=products.device)
    ]
    spread = float(cosines.square().mean()) if count > 1 and bool(lengths.all()) else 1.0
    freedom = max(float(count), DIRECTIONS_SHARE * count / max(spread, 1e-6))
    mean = float(lengths.square().mean()) * (scale / norm) ** 2
    return not chi2.ppf(NORM_TAIL, freedom) <= mean * freedom <= chi2.isf(NORM_TAIL, freedom)
