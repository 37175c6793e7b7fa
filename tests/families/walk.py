"""One class of transformers: hessianlens against the double backward, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.problems import Block, Problem
from tests.families.oracle import Oracle, task_loss
from tests.families.registry import Built, Case, NotBuilt, build

RELATIVE = 1e-8
MOST_ENTRIES = 600
"""Blocks up to this size are compared entry by entry."""

FIRST = ("attn.q", "attn.v", "mlp.in", "norm1", "embed")
ATTENTION = tuple(f"{kind}.{role}" for kind in ("attn", "cross") for role in "qkvo")
LAST = (*ATTENTION, "mlp.in", "mlp.out", "norm1", "norm_final", "unembed")
"""Kinds of blocks that are looked at, in the first layer and in the last."""
FACTORS = r"layers\.(\d+)\..*attn\.(?:\d+\.)?((?:q|kv)_[ab]_proj)\w*\.weight$"
"""Factors of queries, keys and values in latent attention, under the model's own names."""
BRIEF = ("attn.q", "attn.v", "norm_final", "unembed")
"""Kinds that are looked at in the last layer of a class whose body another class of its type has shared already."""


@dataclass(frozen=True)
class Route:
    """How the Hessian of one block with itself was found: its kind, the way, and hessianlens' reason."""

    block: str
    way: str
    why: str


@dataclass
class Walked:
    """What one class gave: how it was refused, or the routes of its blocks and every number that was wrong."""

    family: str
    name: str
    task: str
    not_built: str = ""
    refused: str = ""
    routes: list[Route] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    compared: int = 0

    def row(self) -> dict[str, Any]:
        return asdict(self)


def walked(case: Case, brief: bool = False) -> Walked:
    """Build a class, and compare all that is asked of it; with `brief` only some blocks of the last layer."""
    found = Walked(case.model_type, case.name, case.task)
    built = build(case)
    if isinstance(built, NotBuilt):
        found.not_built = built.reason
        return found
    try:
        problem = _problem(built)
        blocks = chosen(problem, brief)
        _compare(found, built, problem, blocks, brief)
    except hl.InputError as error:
        found.refused = str(error)
    return found


def _problem(built: Built) -> Problem:
    """The problem with the model's own loss; with that of the task where hessianlens does not know the model's."""
    try:
        return hl.problem(built.model, built.batch)
    except hl.InputError as error:
        if "not among the classes whose own loss is known" not in str(error):
            raise
    task = built.case.task
    return hl.problem(built.model, built.batch, lambda out, batch: task_loss(task, getattr(out, "logits", out), batch))


def chosen(problem: Problem, brief: bool) -> list[Block]:
    """Blocks of every kind of the first and of the last layer; where names say nothing, some of all."""
    places = [match for name in problem.blocks if (match := re.match(r"(.*?)layer(\d+)\.", name))]
    ends = [(places[0], FIRST), (places[-1], LAST)] if places else []
    wanted = {*FIRST, *LAST}
    for place, kinds in ends[-1:] if brief else ends:
        wanted |= {f"{place[0]}{kind}" for kind in (BRIEF if brief else kinds)}
    factors = [match for name in problem.blocks if (match := re.search(FACTORS, name))]
    wanted |= {match.string for match in factors if not brief and match[1] == factors[-1][1]}
    named = {name for name in problem.blocks if name in wanted and not (brief and name == "embed")}
    if len(named) < (3 if brief else 8):
        others = [name for name, block in problem.blocks.items() if name not in named and block.numel <= MOST_ENTRIES]
        named |= set(others[:: max(1, len(others) // (3 if brief else 6))])
    return [block for name, block in problem.blocks.items() if name in named]


def _compare(found: Walked, built: Built, problem: Problem, blocks: Sequence[Block], brief: bool) -> None:
    names = list(dict.fromkeys(block.parameter for block in blocks))
    try:
        oracle = Oracle(built, names)
    except AssertionError as error:  # Reformer's own backward, outside of training; an answer would be wrong
        hl.hessian(problem, blocks[0].name) @ torch.ones(blocks[0].numel, dtype=torch.float64)
        found.wrong.append(f"an answer was given where the model cannot be differentiated: {error}")
        return
    matrices = Dense(oracle, blocks)
    check = _Check(found)
    check("loss", problem.total_loss(), oracle.loss.detach())
    operators = {block.name: hl.hessian(problem, block.name) for block in blocks}
    for block in blocks:
        operator = operators[block.name]
        found.routes.append(Route(block.name, way(operator), str(operator.why)))
        v = torch.randn(block.numel, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        check(f"{block.name} @ v", operator @ v, matrices.product(block, v, block))
    measured = [block for block in blocks if block.numel <= MOST_ENTRIES]
    if brief:  # what costs no more than the curvature behind the last attention layer
        measured = [block for block in measured if way(operators[block.name]) == "closed form"]
    norms = hl.block_norms(problem, [block.name for block in measured], probes=4, seed=0) if measured else {}
    for block in measured:
        H, G = matrices.full(block, block), matrices.ggn(block, block)
        for part, matrix in {"full": H, "ggn": G, "functional": H - G}.items():
            norm = norms[block.name, part]
            if norm.stderr == 0:
                value = torch.tensor(norm.value, dtype=torch.float64)
                check(f"norm of {block.name}, {part}", value, matrix.norm(), float(G.norm()))
    for row, column in pairs(measured):
        operator = hl.hessian(problem, row.name, column.name)
        if operator.exact:
            check(
                f"{row.name} x {column.name}", operator.to_dense(), matrices.full(row, column), symmetric=row is column
            )


def way(operator: Any) -> str:
    """The way an operator's entries are found."""
    if not operator.exact:
        return "HVPs"
    return "linear map" if "linear map" in operator.why else "closed form"


def pairs(blocks: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """Entry by entry: the last queries with themselves, with keys and values, also factors; the first norm."""

    def last(kind: str) -> Block | None:
        return next((block for block in reversed(blocks) if block.name.endswith(kind)), None)

    first = next((block for block in blocks if block.name.endswith("norm1")), None)
    q, k, v = (last(kind) for kind in ("attn.q", "attn.k", "attn.v"))
    factors = {
        match[2]: block for block in blocks if (match := re.search(FACTORS, block.name)) and "attn.0." not in block.name
    }
    one, two, three, four = (factors.get(name) for name in ("q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj"))
    latent = ((one, one), (two, one), (three, three), (four, three), (one, three), (two, four))
    for row, column in ((q, q), (q, k), (q, v), (first, first), *latent):
        if row is not None and column is not None:
            yield row, column


class Dense:
    """Matrices between blocks by the oracle, each row of blocks once."""

    def __init__(self, oracle: Oracle, blocks: Sequence[Block]) -> None:
        self._oracle, self._blocks = oracle, list(blocks)
        self._columns = list(dict.fromkeys(block.parameter for block in blocks))
        self._rows: dict[str, dict[str, Tensor]] = {}
        self._jacobian: dict[str, Tensor] = {}
        self._curvature: Tensor | None = None

    def product(self, row: Block, v: Tensor, column: Block) -> Tensor:
        like = self._oracle.leaves[row.parameter]
        vector = row.embed(v.reshape(row.shape), like.detach())[None]
        return column.take(
            self._oracle.products(row.parameter, vector, [column.parameter])[column.parameter][0]
        ).flatten()

    def full(self, row: Block, column: Block) -> Tensor:
        if row.name not in self._rows:
            like = self._oracle.leaves[row.parameter].detach()
            eye = torch.eye(row.numel, dtype=like.dtype)
            vectors = torch.stack([row.embed(each.reshape(row.shape), like) for each in eye])
            self._rows[row.name] = self._oracle.products(row.parameter, vectors, self._columns)
        found = self._rows[row.name][column.parameter]
        return column.take(found.movedim(0, -1)).reshape(column.numel, -1).T

    def ggn(self, row: Block, column: Block) -> Tensor:
        if self._curvature is None:
            self._jacobian, self._curvature = self._oracle.jacobian(self._columns), self._oracle.curvature()
        J = [
            block.take(self._jacobian[block.parameter].movedim(0, -1)).reshape(block.numel, -1)
            for block in (row, column)
        ]
        return J[0] @ self._curvature @ J[1].T


class _Check:
    """Counts what was compared, and keeps what was wrong."""

    def __init__(self, found: Walked) -> None:
        self._found = found

    def __call__(self, what: str, value: Tensor, expected: Tensor, size: float = 0.0, symmetric: bool = False) -> None:
        """Counted; twice the asymmetry of the double backward itself, which is rounding, is no error."""
        self._found.compared += 1
        size = max(float(expected.norm()), size)
        error = float((value.detach() - expected.detach()).norm()) if value.shape == expected.shape else float("inf")
        rounding = float((expected - expected.T).detach().norm()) if symmetric else 0.0
        if not error <= RELATIVE * size + 2 * rounding + 1e-15:
            self._found.wrong.append(f"{what}: relative error {error / size if size else error:.1e}")
