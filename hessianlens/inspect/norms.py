"""Norms of many blocks and parts at once: shared probes, shared graphs, exact where that is possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from hessianlens.curvature import Linearisation, verify
from hessianlens.errors import check_choice, expect
from hessianlens.inspect.chained import ChainedAttention, chained_attention
from hessianlens.inspect.forecast import ensure_forecast_fits, forecast
from hessianlens.inspect.operators import Pattern, closed_form
from hessianlens.inspect.pairs import norm_from_squares
from hessianlens.problems import Block, Problem
from hessianlens.spectra import Estimate
from hessianlens.spectra.probes import Probes

PARTS = ("full", "ggn", "functional")


class BlockNorms(Mapping[tuple[str, str], Estimate]):
    """Frobenius norms by (block, part), each an `Estimate`; prints as a table."""

    def __init__(self, found: dict[tuple[str, str], Estimate]) -> None:
        self._found = found

    def __getitem__(self, key: tuple[str, str]) -> Estimate:
        return self._found[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __str__(self) -> str:
        parts = list(dict.fromkeys(part for _, part in self._found))
        names = list(dict.fromkeys(name for name, _ in self._found))
        rows = [["block", *parts], *([name, *(str(self._found[name, p]) for p in parts)] for name in names)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    __repr__ = __str__


def block_norms(
    problem: Problem,
    blocks: Pattern = "*",
    parts: Sequence[str] = PARTS,
    *,
    probes: int = 20,
    seed: int = 0,
    method: str = "auto",
) -> BlockNorms:
    """Frobenius norms of the diagonal blocks of the Hessian, Gauss-Newton and functional matrix.

    Every part of a block comes from the same probes and the same graph. Blocks of a decoder's last attention layer are
    answered exactly, without probes, where the closed form is cheap; with "auto" the probes of earlier attention layers
    go together through the layers' own formulas where these are joined by piecewise linear maps (one head, no norm,
    ReLU). The estimates are the same.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Names, globs or ``re:`` expressions.
        parts: Among "full", "ggn" and "functional".
        probes: Random vectors a block; a block with no more entries than that is answered exactly.
        seed: Seed of the probes.
        method: "auto", "exact" or "products", as for `hessian`.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> norms = block_norms(problem, ["layer0.attn.q", "layer0.mlp.in"], probes=4)
    >>> norms["layer0.attn.q", "functional"].stderr, norms["layer0.mlp.in", "full"].probes
    (0.0, 4)
    """
    for part in parts:
        check_choice("parts", part, PARTS)
    check_choice("method", method, ("auto", "exact", "products"))
    expect(len(parts) > 0, "parts: got none, expected some of 'full', 'ggn', 'functional'.")
    expect(
        isinstance(probes, int) and probes >= 2,
        f"probes: got {probes!r}, expected at least 2 for an error bar, a whole number.",
    )
    chosen = problem.select(blocks)
    verify(problem, [block.parameter for block in chosen])
    found: dict[tuple[str, str], Estimate] = {}
    exact = None if method == "products" else closed_form(problem, chosen, forced=method == "exact")
    chain = None if exact is None or exact.covers(chosen) or method == "exact" else chained_attention(exact)
    sampled, chained = [], []
    for block in chosen:
        if exact is not None and exact.covers([block]):
            norms = exact.norms(block, parts)
            found.update({(block.name, part): Estimate.exactly(norm) for part, norm in norms.items()})
        elif chain is not None and chain.covers(block):
            chained.append(block)
        else:
            sampled.append(block)
    expect(
        method != "exact" or not sampled,
        f"method: got 'exact', but there is no closed form of {', '.join(block.name for block in sampled[:4])}; "
        "expected 'auto' or 'products'.",
    )
    if sampled:
        ensure_forecast_fits(forecast(problem, sampled, probes, len(parts)))
    found.update(_sampled(problem, sampled, parts, probes, seed))
    if chain is not None and chained:
        found.update(_chained(chain, chained, parts, {b.name: _probes(b, probes, seed, problem) for b in chained}))
    return BlockNorms({(b.name, p): found[b.name, p] for b in chosen for p in parts})


def _sampled(
    problem: Problem, blocks: Sequence[Block], parts: Sequence[str], probes: int, seed: int
) -> dict[tuple[str, str], Estimate]:
    """Hutchinson estimates; the products of all batches add up before they are squared."""
    vectors = {block.name: _probes(block, probes, seed, problem) for block in blocks}
    sums = {
        (b.name, part): torch.zeros(*b.shape, vectors[b.name].count, dtype=problem.dtype)
        for b in blocks
        for part in parts
    }
    names = list(dict.fromkeys(block.parameter for block in blocks))
    for batch in problem.data if blocks else ():
        at = Linearisation(problem, batch, names)
        for block in blocks:
            for k in range(vectors[block.name].count):
                tangent = block.embed(
                    vectors[block.name].vector(k).reshape(block.shape), problem.params[block.parameter]
                )
                for part, product in _products(at, block, tangent, parts).items():
                    sums[block.name, part][..., k] += product
    return {
        key: norm_from_squares(total.double().flatten(0, -2).square().sum(0), vectors[key[0]])
        for key, total in sums.items()
    }


def _chained(
    chain: ChainedAttention, blocks: Sequence[Block], parts: Sequence[str], vectors: Mapping[str, Probes]
) -> dict[tuple[str, str], Estimate]:
    """The same estimates, from products that all probes of a layer share."""
    drawn = [(b, vectors[b.name].matrix(0, vectors[b.name].count).T.reshape(-1, *b.shape)) for b in blocks]
    found = {}
    for name, (gauss_newton, rest) in chain.products(drawn).items():
        products = {"ggn": gauss_newton, "functional": rest, "full": gauss_newton + rest}
        for part in parts:
            squares = products[part].double().flatten(1).square().sum(1)
            found[name, part] = norm_from_squares(squares, vectors[name])
    return found


def _probes(block: Block, probes: int, seed: int, problem: Problem) -> Probes:
    if probes >= block.numel:
        return Probes(block.numel, block.numel, None, "basis", problem.dtype, problem.device)
    return Probes(block.numel, probes, seed, "rademacher", problem.dtype, problem.device)


def _products(at: Linearisation, block: Block, tangent: Tensor, parts: Sequence[str]) -> dict[str, Tensor]:
    """All requested parts of one product, from one graph."""
    tangents, rows = {block.parameter: tangent}, [block.parameter]
    if tuple(parts) == ("full",):
        return {"full": block.take(at.hessian(tangents, rows)[block.parameter])}
    gauss_newton, rest = (block.take(d[block.parameter]) for d in at.split(tangents, rows))
    found = {"ggn": gauss_newton, "functional": rest, "full": gauss_newton + rest}
    return {part: found[part] for part in parts}
