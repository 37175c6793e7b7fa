"""`block_norms`: norms of many blocks and parts at once, exact where that is possible."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, overload

from hessianlens.display import MOST_ROWS, Cells, DisplayableRows, Dots, Picture
from hessianlens.errors import check_number, check_seed, check_that, check_whole, describe_value, expect, suggest_names
from hessianlens.layer import AttentionHessian
from hessianlens.memory import memory_errors_explained
from hessianlens.network.base.progress import Deadline, Watch, watching
from hessianlens.network.exact_norms import RTOL
from hessianlens.network.forecasting import ensure_fits_in_memory
from hessianlens.network.norm_run import NormRun
from hessianlens.network.operators import Pattern
from hessianlens.network.saved_norms import SavedNorms
from hessianlens.parts import NORM_METHODS, PART_NAMES, PARTS, check_parts, method_name, part_name
from hessianlens.problems import Problem, check_problem
from hessianlens.sizes import number_of
from hessianlens.sketching import estimate_norm, norm_methods
from hessianlens.spectra import Estimate
from hessianlens.state_guard import restores_state

REMEDY = "cut the batches with hessianlens.network.fit_memory(problem), shorten the sequences or use float32"
"""What helps where memory ran out."""


class BlockNorms(Mapping[tuple[Any, str], Estimate], DisplayableRows):
    """Frobenius norms by (block, part), each an `Estimate`; prints as a table.

    Blocks of a model are named by a text. Those of a single layer are named by two, rows and columns, and
    ``norms["Q", "K", "full"]`` is short for ``norms[("Q", "K"), "full"]``. Without a part, ``norms["layer0.attn.q"]``
    gives all parts of a block, by name.

    Attributes:
        why: By block, why it is exact, or why it was sampled.
    """

    def __init__(self, found: Mapping[tuple[Any, str], Estimate], why: Mapping[Any, str] | None = None) -> None:
        self._found, self.why = dict(found), dict(why or {})

    @overload
    def __getitem__(self, key: tuple[Any, str]) -> Estimate: ...

    @overload
    def __getitem__(self, key: tuple[Any, Any, str]) -> Estimate: ...

    @overload
    def __getitem__(self, key: str) -> PartNorms: ...

    def __getitem__(self, key: Any) -> Estimate | PartNorms:
        found = self._found.get(_own_key(key)) if isinstance(key, Hashable) else None
        if found is not None:
            return found
        parts = {part: norm for (name, part), norm in self._found.items() if name == key}
        if not parts:
            raise KeyError(self._unknown(key))
        return PartNorms(block_text(key), parts)

    def _unknown(self, key: object) -> str:
        """What is wrong with a key: its block, its part, or its form."""
        example = f"expected a block and a part, such as {next(iter(self._found), None)}"
        own = _own_key(key)
        block, part = own if isinstance(own, tuple) and len(own) == 2 else (own, None)
        names, parts = (list(dict.fromkeys(place[k] for place in self._found)) for k in (0, 1))
        if isinstance(part, str) and block in names:
            return f"{describe_value(key)}: {describe_value(part)} was not measured; {suggest_names(part, parts)}"
        close = suggest_names(block, names)
        return (
            f"{describe_value(key)}, {example}; {close}"
            if close.startswith("did")
            else f"{describe_value(key)}, {example}"
        )

    def __iter__(self) -> Iterator[tuple[Any, str]]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def _names(self) -> list[Any]:
        return list(dict.fromkeys(name for name, _ in self._found))

    @property
    def _parts(self) -> list[str]:
        return list(dict.fromkeys(part for _, part in self._found))

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"block": block_text(name), "part": part, **norm.row(), "why": self.why.get(name, "")}
            for (name, part), norm in self._found.items()
        ]

    def _heading(self) -> str:
        return f"BlockNorms of {number_of(len(self._names), 'block')}: {', '.join(self._parts)}"

    def _cells(self) -> Cells:
        found = [[block_text(name), *(str(self._found[name, p]) for p in self._parts)] for name in self._names]
        return ["block", *self._parts], found

    def _picture(self, asked: bool) -> Picture | None:
        """The norms with their intervals, a line per block; the first blocks if nobody has asked for all."""
        names = self._names[: None if asked else MOST_ROWS]
        if not names:
            return None
        series = {part: [self._found[name, part].dot() for name in names] for part in self._parts}
        return Dots(tuple(map(block_text, names)), series, "Frobenius norm, 95 % intervals")

    def __str__(self) -> str:
        columns, cells = self._cells()
        rows = [list(columns), *map(list, cells)]
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)

    __repr__ = __str__


class PartNorms(Mapping[str, Estimate], DisplayableRows):
    """The norms of one block, by part: "full", "ggn" (or "outer"), "functional".

    Attributes:
        block: Its name.

    >>> norms = BlockNorms({("q", "full"): Estimate.exactly(2.0), ("q", "ggn"): Estimate.exactly(1.5)})
    >>> norms["q"]
    q: full 2 (exact), ggn 1.5 (exact)
    >>> norms["q"]["outer"].value
    1.5
    """

    def __init__(self, block: str, found: Mapping[str, Estimate]) -> None:
        self.block, self._found = block, dict(found)

    def __getitem__(self, part: str) -> Estimate:
        own = part_name(part) if isinstance(part, str) and part in PART_NAMES else part
        if own not in self._found:
            raise KeyError(f"{describe_value(part)}; {suggest_names(part, self._found)}")
        return self._found[own]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def _records(self) -> list[dict[str, Any]]:
        return [{"block": self.block, "part": part, **norm.row()} for part, norm in self._found.items()]

    def _cells(self) -> Cells:
        return ["part", "norm"], [[part, str(norm)] for part, norm in self._found.items()]

    def _picture(self, asked: bool) -> Picture:
        """A line per part."""
        norms = [norm.dot() for norm in self._found.values()]
        return Dots(tuple(self._found), {"norm": norms}, f"Frobenius norm of {self.block}")

    def __str__(self) -> str:
        return f"{self.block}: {', '.join(f'{part} {norm}' for part, norm in self._found.items())}"

    __repr__ = __str__


def _own_key(key: Any) -> Any:
    """The same with the part under its own name, and two names of a block as one."""
    if isinstance(key, tuple) and len(key) == 3:
        key = (key[:2], key[2])
    named = isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str) and key[1] in PART_NAMES
    return (key[0], part_name(key[1])) if named else key


def block_text(block: object) -> str:
    """The name of a block as a text.

    >>> block_text("layer0.attn.q"), block_text(("Q", "K"))
    ('layer0.attn.q', 'Q, K')
    """
    return ", ".join(map(str, block)) if isinstance(block, tuple) else str(block)


@restores_state
def block_norms(
    problem: Problem | AttentionHessian,
    blocks: Pattern = "*",
    parts: Sequence[str] = PARTS,
    *,
    probes: int = 20,
    seed: int = 0,
    method: str = "auto",
    rtol: float | None = None,
    progress: bool | Watch = False,
    resume: str | os.PathLike[str] | None = None,
) -> BlockNorms:
    """Frobenius norms of the diagonal blocks of the Hessian, Gauss-Newton and functional matrix.

    A norm is computed exactly, without probes, where that takes no more HVPs than the probes would, or almost no time,
    as in small models; for blocks of a layer that share their HVPs, the choice is made jointly. ``norms.why`` gives the
    reason for each block, and both costs. For a sampled block, all parts come from the same probes and the same
    graph; different blocks have different probes. Probes are drawn and discarded one at a time, so memory does not
    grow with their number. For an answer within a given time see `hessianlens.measure`.

    The exact norm of an attention block is a sum over all pairs of tokens. With a tolerance `rtol`, or
    ``method="sketch"``, norms in the last attention layer are estimated from small random matrices in token space
    where a pilot shows that this takes fewer multiply-adds. The same holds for all blocks of a layer's Hessian.

    Args:
        problem: From `hessianlens.problem`; or a layer's Hessian, from `hessianlens.attention_hessian`.
        blocks: Names, globs or ``re:`` expressions; for a layer's Hessian, pairs of names, by default all.
        parts: Any of "full", "ggn" (or "outer") and "functional".
        probes: Probe vectors per block; a block with no more entries than that gets its exact norm.
        seed: Seed of the probes.
        method: "exact"; "sketch", from small random matrices where possible; "probes", from HVPs with probe vectors
            only; or "auto", the cheapest of the three.
        rtol: Target half-width of the 95 % interval, relative to the norm; a pilot determines how many sketches or
            probes that takes. Default: exact norms where they are cheap enough and `probes` vectors elsewhere; 0.01 for
            sketches and for a layer's Hessian.
        progress: Show a progress bar that counts HVPs and estimates the time left.
        resume: A file to which exact norms are saved as they are computed, and from which those of an earlier run are
            loaded; it must belong to the same weights, data and loss.

    >>> import torch
    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=1, d_model=8, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> norms = block_norms(problem, ["layer0.attn.q", "embed"], probes=4)
    >>> norms["layer0.attn.q", "functional"].stderr, norms["embed", "full"].exact
    (0.0, True)
    >>> layer = hl.SelfAttention.random(d_model=8, d_k=8, seed=0, dtype=torch.float64)
    >>> X, Y = torch.randn(2, 4, 16, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> norms = block_norms(
    ...     hl.attention_hessian(layer, X, hl.SquareLoss(Y)), parts=("full",), method="sketch", rtol=0.1
    ... )
    >>> norms["Q", "K", "full"].method, norms["Q", "K", "full"].relative_width() < 0.2
    ('sketch', True)
    """
    parts, method = check_parts(parts), method_name(method, NORM_METHODS)
    check_whole("probes", probes, 1)
    check_seed(seed)
    if rtol is not None:
        check_number("rtol", rtol, 0.0, strictly=True)
    if isinstance(problem, AttentionHessian):
        expect(resume is None, "resume: exact norms of a layer's Hessian are not stored, expected None.")
        with watching(progress) as watch:
            norms = BlockNorms(*layer_block_norms(problem, blocks, parts, method, rtol or RTOL, seed, watch))
            watch.end()
            return norms
    check_problem(problem)
    chosen, saved = problem.select(blocks), None if resume is None else SavedNorms(resume, problem)
    with memory_errors_explained(REMEDY), watching(progress) as watch:
        run = NormRun(problem, chosen, parts, seed=seed, method=method, rtol=rtol, watch=watch, saved=saved)
        run.solve(probes)
        if run.sampled:
            ensure_fits_in_memory(problem, run.sampled, probes, len(parts))
            watch.begin(sum(min(probes, block.numel) for block in run.sampled), Deadline())
            run.sample(probes)
        watch.end()
    return BlockNorms(run.found, run.why)


Name = Hashable
Pair = tuple[Name, Name]


def layer_block_norms(
    H: AttentionHessian,
    blocks: object,
    parts: Sequence[str],
    method: str,
    rtol: float,
    seed: int,
    watch: Watch,
) -> tuple[dict[tuple[Pair, str], Estimate], dict[Pair, str]]:
    """Norms by pair of parameters and part, and by pair why they were found in this way.

    Args:
        H: The layer's Hessian.
        blocks: Pairs of names; "*" for all.
        parts: Among "full", "ggn" and "functional".
        method: "auto", "exact", "sketch" or "probes".
        rtol: Half the width of an interval, over its norm.
        seed: Seed of the probes.
        watch: Progress callback: the next step and the probes made.
    """
    found: dict[tuple[Pair, str], Estimate] = {}
    why: dict[Pair, str] = {}
    watch.begin(None, Deadline())
    for row, column in _pairs(H, blocks):
        reasons: dict[str, str] = {}
        for part in parts:
            if ((column, row), part) in found:
                found[(row, column), part], reasons[part] = found[(column, row), part], why[column, row]
                continue
            watch.step(f"{row}, {column}, {part}")
            ways = norm_methods(H, part, row, column, seed, watch.products)
            found[(row, column), part], reasons[part] = estimate_norm(ways, method, rtol)
        same = len(set(reasons.values())) == 1
        texts = [reasons[parts[0]]] if same else [f"{part}: {reason}" for part, reason in reasons.items()]
        why[row, column] = "; ".join(texts)
    return found, why


def _pairs(H: AttentionHessian, blocks: object) -> list[Pair]:
    names = list(H.full.rows)
    if isinstance(blocks, str) and blocks == "*":
        return [(row, column) for row in names for column in names]
    pairs = isinstance(blocks, Sequence) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in blocks)
    check_that(
        pairs and not isinstance(blocks, str), "blocks", blocks, f"pairs of names, as [({names[0]!r}, {names[-1]!r})]"
    )
    assert isinstance(blocks, Sequence)
    for name in (name for pair in blocks for name in pair):
        expect(name in names, f"blocks: got {describe_value(name)}, expected one of {', '.join(map(repr, names))}.")
    return [(row, column) for row, column in blocks]
