"""The waist of everything matrix-free: a model, a loss, data and named blocks of parameters, frozen.

A `Problem` says what is differentiated and nothing about how. `forward` maps parameters and a batch to the outputs at
which the Gauss-Newton split is made (logits, predictions); `loss` maps outputs and a batch to that batch's share of the
total loss, reduction included, so that the total is the plain sum over batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from hessianlens.checks import check_device, check_precision
from hessianlens.display import DisplayableRows, Dot, Dots, Picture
from hessianlens.distributed import SINGLE_RANK, Ranks
from hessianlens.errors import InputError, check_that, describe_value, suggest_names
from hessianlens.problems.batch import (
    Batch,
    ClassesLoss,
    CutBatches,
    LogitsForward,
    ReferenceComputation,
    move,
    uncut_batches,
)
from hessianlens.problems.block import Block
from hessianlens.problems.model_check import ModelCheck
from hessianlens.problems.selection import matches
from hessianlens.sizes import number_of
from hessianlens.state_guard import restores_state

T = TypeVar("T")
Forward = Callable[[Mapping[str, Tensor], Batch], Tensor]
BatchLoss = Callable[[Tensor, Batch], Tensor]

_FIRST = 20
"""Blocks that are drawn where nobody has asked for all of them."""


@dataclass(frozen=True, eq=False, repr=False)
class Problem(DisplayableRows):
    """A loss as a function of named blocks of parameters, over a fixed data set.

    Attributes:
        forward: Parameters and a batch to outputs.
        loss: Outputs and a batch to this batch's share of the total loss.
        params: Every parameter by its name in the model, detached.
        blocks: Named blocks, in the order of the model.
        data: The batches.
        reduction: How the total loss reduces over tokens and sequences, as text.
        notes: Decisions made while the problem was built, one line each.
        scope: Context in which `forward` must run (evaluation mode, attention that can be differentiated twice).
        source: The model it was made from, for closed forms that hook into it.
        aliases: Other names of blocks, such as ``unembed`` where it is tied to ``embed``.
        parts: Parts of blocks, such as single heads, by the block's name; they are blocks when asked for.
        verify: Whether autograd's second derivatives are checked with the first measurement.
        ranks: The ranks that hold a share of the data each; `data` is this rank's. The total loss and every
            Hessian-vector product are summed over all of them.
        written: The same problem computed exactly as its user wrote it; None if this one is. See `as_written`.
        model_check: Waits for the first pass over the data, to be compared with the model; None if nothing does.
    """

    forward: Forward
    loss: BatchLoss
    params: Mapping[str, Tensor]
    blocks: Mapping[str, Block]
    data: Sequence[Batch]
    reduction: str = ""
    notes: tuple[str, ...] = ()
    scope: Callable[[], AbstractContextManager[object]] = field(default=nullcontext)
    source: object = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, Sequence[Block]] = field(default_factory=dict)
    verify: bool = True
    ranks: Ranks = SINGLE_RANK
    written: ReferenceComputation | None = None
    model_check: ModelCheck | None = None
    _cache: dict[type, Any] = field(default_factory=dict, init=False)

    def cached(self, kind: type[T], make: Callable[[], T]) -> T:
        """The object of a class that belongs to this problem, made when it is first asked for; a copy starts afresh."""
        if kind not in self._cache:
            self._cache[kind] = make()
        found: T = self._cache[kind]
        return found

    def with_cached(self, known: object) -> Problem:
        """The same problem with an object that `cached` returns from now on."""
        self._cache[type(known)] = known
        return self

    def __repr__(self) -> str:
        """One line, however large the model."""
        parameters = sum(tensor.numel() for tensor in self.params.values())
        size = f"{number_of(parameters, 'parameter', ',')} in {number_of(len(self.blocks), 'block')}"
        kind = f"{size}, batches: {len(self.data)}"
        loss = f", loss: {self.reduction}" if self.reduction else ""
        shared = f", rank {self.ranks.rank} of {self.ranks.size}" if self.ranks.size > 1 else ""
        return f"Problem({kind}, {str(self.dtype).removeprefix('torch.')} on {self.device}{loss}{shared})"

    def _records(self) -> list[dict[str, Any]]:
        return [
            {
                "block": block.name,
                "shape": tuple(block.shape),
                "entries": block.numel,
                "norm": float(block.take(self.params[block.parameter]).norm()),
                "parameter": block.parameter,
                "note": block.note,
            }
            for block in self.blocks.values()
        ]

    def _picture(self, asked: bool) -> Picture | None:
        """How many entries each block has: all blocks if asked for, else the first."""
        blocks = list(self.blocks.values())[: None if asked else _FIRST]
        if not blocks:
            return None
        more = f", the first {len(blocks)} of {len(self.blocks)} blocks" if len(blocks) < len(self.blocks) else ""
        sizes = [Dot.of(float(block.numel)) for block in blocks]
        return Dots(tuple(block.name for block in blocks), {"entries": sizes}, f"entries{more}")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype in which everything is computed."""
        return next(iter(self.params.values())).dtype

    @property
    def device(self) -> torch.device:
        """Device on which everything is computed."""
        return next(iter(self.params.values())).device

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Problem:
        """The same problem in float32 or float64, or on another device; the model itself is left alone."""
        if dtype is not None:
            check_precision("dtype", dtype)
        if device is not None:
            check_device(device, allow_meta=True)
        moved = {name: move(tensor, dtype, device) for name, tensor in self.params.items()}
        if isinstance(self.data, CutBatches):
            return replace(self, params=moved, data=self.data.moved(dtype, device))
        return replace(self, params=moved, data=[move(batch, dtype, device) for batch in self.data])

    def as_written(self) -> Problem:
        """The same loss of the same parameters, computed exactly as the user wrote it.

        Logits are materialised, attention is PyTorch's plain kernel (fused ones have no second derivative), batches are
        the user's own, uncut, and the loss is the user's own, called plainly. Parameters, blocks, dtype and device
        stay, and so does the precision in which the model is run. Data that somebody put in place of the batches are
        taken as they are. A problem that is computed as it was written is returned itself.

        >>> import hessianlens as hl
        >>> problem = hl.problem(torch.nn.Linear(3, 2), (torch.ones(4, 3), torch.ones(4, 2)), "square", micro_batch=1)
        >>> len(problem.data), len(problem.as_written().data)
        (4, 1)
        """
        known, cut = self.written, isinstance(self.data, CutBatches)
        if known is None or known.instead_of[0] is not self.forward or known.instead_of[1] is not self.loss:
            return replace(self, data=uncut_batches(self.data)) if cut else self
        data = uncut_batches(self.data) if cut else self.data
        return replace(self, forward=known.forward, loss=known.loss, scope=known.scope, data=data, written=None)

    def select(self, pattern: str | Sequence[str]) -> list[Block]:
        """Blocks by name, glob (``layer*.attn.q``) or regular expression (``re:layer[01].*``), in model order.

        What matches no block may match parts of some: ``layer0.attn.q.head3``, ``layer*.attn.k.head0``. A name is taken
        as it is, also one with characters of a glob: ``w[0]`` is the block of that name, if there is one, and never
        ``w0``. The name of a parameter stands for the blocks that lie in it.
        """
        one = isinstance(pattern, (str, Tensor)) or not isinstance(pattern, Iterable)
        patterns: list[Any] = [pattern] if one else list(pattern)
        texts = len(patterns) > 0 and all(isinstance(each, str) for each in patterns)
        check_that(texts, "blocks", pattern, "a name, glob or 're:' expression, or several")
        every, chosen = self._with_parts(), dict[str, Block]()
        for each in patterns:
            found = self._named(each, every) or self._matching(each, every)
            if not found:  # looking for names that are alike takes longer than everything else here
                raise InputError(self._unknown(each))
            chosen.update(found)
        return [block for name, block in every.items() if name in chosen]

    def _named(self, name: str, every: Mapping[str, Block]) -> dict[str, Block]:
        """The block of exactly this name, or of this alias; the blocks of the parameter of this name."""
        own = name if name in every else self.aliases.get(name, name)
        if own in every:
            return {own: every[own]}
        return {block.name: block for block in self.blocks.values() if block.parameter == name}

    def _matching(self, pattern: str, every: Mapping[str, Block]) -> dict[str, Block]:
        """The blocks that a glob or an expression matches; if there are none, the parts of blocks."""
        named = {**{name: name for name in self.blocks}, **self.aliases}
        found = {name: self.blocks[name] for other, name in named.items() if matches(other, pattern)}
        return found or {name: part for name, part in every.items() if matches(name, pattern)}

    def _with_parts(self) -> dict[str, Block]:
        """Blocks in the order of the model, each with its parts behind it."""
        found: dict[str, Block] = {}
        for name, block in self.blocks.items():
            found[name] = block
            found.update({part.name: part for part in self.parts.get(name, ()) if part.name not in self.blocks})
        return found

    def _unknown(self, pattern: str) -> str:
        return (
            f"blocks: nothing matches {pattern!r}; {suggest_names(pattern, self.blocks, otherwise='this problem has')}"
        )

    def finish_model_check(self) -> None:
        """Compare with the model what has waited for a pass over the data; `InputError` if they differ."""
        if self.model_check is not None:
            self.model_check.finish()

    def alone(self) -> Problem:
        """This rank's share of the problem, without an all-reduce."""
        return self if self.ranks.size == 1 else replace(self, ranks=SINGLE_RANK)

    @restores_state
    def total_loss(self, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """The loss summed over the batches, of all ranks if there are several; then it has no gradient."""
        named = params is None or (isinstance(params, Mapping) and all(name in self.params for name in params))
        check_that(named, "params", params, "tensors by the names of parameters")
        self.finish_model_check()
        weights = self.params if params is None else {**self.params, **params}

        def share() -> list[Tensor]:
            with self.scope():
                parts = [self.batch_loss(weights, batch) for batch in self.data]
            return [torch.stack(parts).sum() if parts else torch.zeros((), dtype=self.dtype, device=self.device)]

        (total,) = self.ranks.all_reduce("the loss", share)
        return total

    def batch_loss(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """A batch's share of the loss."""
        if isinstance(self.forward, LogitsForward) and isinstance(self.loss, ClassesLoss):
            return self.loss.of_logits(self.forward.logits(params, batch), batch)
        return self.loss(self.forward(params, batch), batch)


def check_problem(problem: object) -> Problem:
    """Something that `hessianlens.problem` gave.

    >>> check_problem("gpt2")
    Traceback (most recent call last):
    hessianlens.errors.InputError: problem: got 'gpt2', expected a Problem; make one with hessianlens.problem(...).
    """
    if not isinstance(problem, Problem):
        raise InputError(
            f"problem: got {describe_value(problem)}, expected a Problem; make one with "
            "hessianlens.problem(model, data, loss)."
        )
    return problem
