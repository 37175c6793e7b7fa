"""Every batch's loss as a problem computes it, compared with that of the model itself.

A problem may leave the logits unmaterialised, take attention in chunks, widen casts and replace kernels. None of this
may change the loss. For each batch the value is compared once with that of the model run plainly: its own parameters,
dtype and kernels, in evaluation mode. Where a problem changes kernels at most, this waits for the first pass that is
taken anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.loss import _Loss

from hessianlens.derivatives.graph import leaves_of
from hessianlens.errors import Refusal, expect
from hessianlens.models.adapters.losses import ClassLoss
from hessianlens.models.adapters.outputs import as_tensor, call
from hessianlens.models.adapters.self_contained import is_self_contained
from hessianlens.models.adapters.torch_losses import TorchShare
from hessianlens.models.adapters.trial_run import (
    KnownBatch,
    expect_repeatable,
    floating_dtypes,
    has_own_digits,
    own_result,
)
from hessianlens.models.adapters.twice_differentiable import own_kernels
from hessianlens.models.adapters.unembedding import FusedLossCall, LastMap, logits_note
from hessianlens.problems import Batch, BatchLoss, ModelCheck, Problem, pieces

_NOISE_EPS = 100
"""Units in the last place by which outputs are moved to see how much of a loss is rounding."""
_NOISE_FACTOR = 10
"""Times the change of the loss by that noise which still counts as rounding."""
_STATE_CHANGE = 0.02
"""Share of their mean size by which parameters are moved to see whether a loss reads what a model left behind."""


def same_value(one: float, other: float, eps: float, loss: Callable[[Tensor], Tensor], outputs: Tensor | None) -> bool:
    """Whether two values of a loss differ by no more than rounding: by half of the digits, or by what noise changes.

    Args:
        one: A value.
        other: Another one.
        eps: The unit in the last place of the narrowest dtype that took part.
        loss: The loss of outputs, to see how it takes small noise; a loss near zero has few digits.
        outputs: The outputs; None if they are not there.

    >>> same_value(1.0, 1.1, 1e-7, torch.sum, None)
    False
    """
    if one == other or (math.isnan(one) and math.isnan(other)):
        return True
    gap = abs(one - other)
    if gap <= math.sqrt(eps) * max(abs(one), abs(other)):
        return True
    if outputs is None or not math.isfinite(gap):
        return False
    generator = torch.Generator(outputs.device).manual_seed(0)
    noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
    moved = loss(outputs + _NOISE_EPS * eps * outputs.abs().max() * noise)
    return gap <= _NOISE_FACTOR * abs(float(moved) - float(loss(outputs)))


@dataclass(frozen=True, eq=False)
class ModelComparison:
    """A problem against its model, batch by batch.

    Attributes:
        model: The model.
        problem: The problem, with the batches it computes with.
        loss: What the user gave as loss.
        with_targets: Whether the model is handed the targets too.
        asked: Narrower dtypes that some steps of the model ask for.
        chunks: Whether attention may go through chunks.
        known: What is known of some batches.
    """

    model: nn.Module
    problem: Problem
    loss: object
    with_targets: bool
    asked: frozenset[torch.dtype]
    chunks: bool
    known: tuple[KnownBatch, ...] = ()

    def checked(self) -> Problem:
        """The problem, with materialised logits where others would change the loss, and with notes on what was found.

        Disagreement beyond rounding between the losses of a batch is an `InputError`, but for a model that is computed
        in a wider dtype than its own, for which it is a note.
        """
        notes: dict[str, None] = {}
        readings: dict[bool, str] = {}
        for number, batch in enumerate(self.problem.data):
            outputs, here, reason = self._against_plain(number, batch) if self._is_replaced else self._here(batch)
            if reason:
                return self._materialised(outputs, reason).checked()
            if isinstance(self._share, TorchShare):
                readings.setdefault(self._share.classes_last(outputs, batch), self._share.reading(outputs, batch))
            if number == 0:
                expect(math.isfinite(here), f"loss: got {here} on the first batch, expected a finite number.")
                if callable(self.loss) and not isinstance(self._share, TorchShare):
                    self._expect_function_of_outputs(outputs, batch)
            del outputs  # they may be large, and those of the model itself are about to be made
            notes |= dict.fromkeys(self._against_own(number, batch, here))
        expect(
            len(readings) < 2,
            "loss: some batches have the classes in axis 1, as PyTorch reads them, and some in the last axis; expected "
            "one layout: transpose the outputs, or give a function of outputs and batch.",
        )
        return replace(self.problem, notes=(*self.problem.notes, *filter(None, readings.values()), *notes))

    @property
    def _share(self) -> BatchLoss:
        """The loss as a plain function of outputs."""
        loss = self.problem.loss
        return loss.share if isinstance(loss, ClassLoss) else loss

    @property
    def _is_replaced(self) -> bool:
        return self.chunks or isinstance(self.problem.forward, FusedLossCall)

    def _here(self, batch: Batch) -> tuple[Tensor, float, str]:
        """Materialised outputs and the loss as the problem computes it."""
        made, known = self.problem, self._known(batch)
        with made.scope(), torch.no_grad():
            outputs = made.forward(made.params, batch) if known is None else known.outputs
            return outputs, float(made.loss(outputs, batch)), ""

    def _known(self, batch: Batch) -> KnownBatch | None:
        """What a trial run has shown of a batch."""
        return next((known for known in self.known if known.batch is batch), None)

    def _against_plain(self, number: int, batch: Batch) -> tuple[Tensor, float, str]:
        """Outputs by PyTorch's own attention, the loss here, and why the logits must be materialised; empty if not."""
        made, params = self.problem, self.problem.params
        with own_kernels(self.model), torch.no_grad(), LastMap(params) as maps:
            outputs = call(self.model, params, batch, with_targets=self.with_targets)
        last, eps = maps.found(self.model, outputs), torch.finfo(made.dtype).eps
        chunked = isinstance(made.forward, FusedLossCall)
        if chunked and isinstance(last, Refusal):
            return outputs, math.nan, f"on batch {number}, {last}"
        with torch.no_grad():
            with made.scope():
                here = float(made.batch_loss(params, batch))
            value = float(self._share(outputs, batch))
            same = same_value(here, value, eps, lambda at: self._share(at, batch), outputs)
        if isinstance(made.forward, FusedLossCall) and not (same and last == made.forward.last):
            return (
                outputs,
                here,
                f"the loss of batch {number} is {value:.6g}, and {here:.6g} without materialising them",
            )
        expect(
            same,
            f"attention: the loss of batch {number} is {here:.6g} with attention in chunks and {value:.6g} without; "
            "give attention='math'.",
        )
        return outputs, here, ""

    def _materialised(self, outputs: Tensor, reason: str) -> ModelComparison:
        """The same with materialised logits, and a note on why."""
        forward = self.problem.forward
        assert isinstance(forward, FusedLossCall)
        whole = partial(call, self.model, with_targets=self.with_targets, halves=forward.halves)
        notes = (*_without_logits(self.problem.notes), logits_note(outputs, Refusal(reason)))
        return replace(self, problem=replace(self.problem, forward=whole, notes=notes))

    def _against_own(self, number: int, batch: Batch, here: float) -> list[str]:
        """Notes on the loss of the model itself, in its own dtype; none if it is the same, or cannot be found."""
        precisions = {*floating_dtypes(self.model), *self.asked, self.problem.dtype}
        if not has_own_digits(self.model, precisions, self.problem.device):
            return []
        known = self._known(batch)
        result = None if known is None else known.own
        if result is None:
            result = own_result(self.model, batch, self.with_targets)
        if result is None:
            return []
        outputs = as_tensor(result).to(self.problem.dtype)
        eps = max(torch.finfo(dtype).eps for dtype in precisions)
        with torch.no_grad():
            compared = known is not None and known.outputs is outputs  # `here` is the loss of these outputs
            own = here if compared else float(self._share(outputs, batch))
            same = compared or same_value(here, own, eps, lambda at: self._share(at, batch), outputs)
            if number == 0:
                self._expect_tensor_is_meant(result, batch, eps)
        if same:
            return []
        found = f"the model itself gives {own:.6g} on batch {number} and the problem {here:.6g}"
        expect(
            len(precisions) > 1,
            f"loss: {found}, more than rounding explains; expected the same. Give attention='math' and logits='whole', "
            "or check=False to go on with the problem's.",
        )
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in precisions - {self.problem.dtype}))
        return [f"{found}, in {str(self.problem.dtype).removeprefix('torch.')} instead of {names}: more than rounding"]

    def _expect_no_parameters(self, outputs: Tensor, batch: Batch) -> None:
        """A user's function depends on the parameters through the outputs alone: what else it does would be lost."""
        leaves = {name: p.detach().requires_grad_() for name, p in self.model.named_parameters()}
        around = _FunctionModule(self.model, partial(self._share, outputs.detach(), batch))
        with torch.enable_grad():
            value = functional_call(around, {f"model.{name}": leaf for name, leaf in leaves.items()}, ())
        reached = {id(leaf) for leaf in leaves_of(value)}
        names = [n for n, p in self.model.named_parameters() if id(leaves[n]) in reached or id(p) in reached]
        more = ", ..." if len(names) > 3 else ""
        expect(
            not names,
            f"loss: the given function depends on {', '.join(names[:3])}{more} beside the outputs; expected a function "
            "of outputs and batch, since this part of its curvature would be lost. Leave a penalty on weights out, and "
            "add its own Hessian to the operators.",
        )

    def _expect_function_of_outputs(self, outputs: Tensor, batch: Batch) -> None:
        """A user's function gives the same for the same outputs, and depends on the model through these alone."""
        with self.problem.scope(), torch.no_grad():
            first, again = (float(self._share(outputs, batch)) for _ in range(2))
        expect(
            first == again,
            f"loss: the given function gives {first:.6g} and {again:.6g} for the same outputs; expected a function of "
            "outputs and batch that draws and counts nothing.",
        )
        if not is_self_contained(self.loss):
            self._expect_no_parameters(outputs, batch)
            self._expect_no_state(outputs, batch, first)

    def _expect_no_state(self, outputs: Tensor, batch: Batch, first: float) -> None:
        """A user's function reads nothing that the model has left behind on its last run, as an auxiliary loss.

        The loss of the same outputs is taken once more, after a run of the model with other parameters.
        """
        made = self.problem
        generator = torch.Generator(made.device).manual_seed(0)

        def moved(tensor: Tensor) -> Tensor:
            sides = (tensor.shape[:1], tensor.shape[1:]) if tensor.ndim > 1 else (tensor.shape,)
            drawn = (torch.randn(side, generator=generator, dtype=tensor.dtype, device=made.device) for side in sides)
            change = reduce(partial(torch.tensordot, dims=0), drawn)  # of rank one, which takes few draws
            return torch.add(tensor, change, alpha=_STATE_CHANGE * (float(tensor.abs().mean()) + _STATE_CHANGE))

        names = {name for name, _ in self.model.named_parameters()}
        with made.scope(), torch.no_grad():
            elsewhere = {
                name: moved(t) if name in names and t.is_floating_point() else t for name, t in made.params.items()
            }
            after = self._after_a_run(elsewhere, outputs, batch)
        expect(
            abs(after - first) <= _NOISE_EPS * torch.finfo(made.dtype).eps * abs(first),
            f"loss: the given function changes by {after - first:.2g} for the same outputs after a run of the model "
            "with other parameters; expected a function of outputs and batch, since the curvature of what it reads "
            "from the model would be lost. Let the model return that with its outputs, or leave it out.",
        )

    def _after_a_run(self, params: Mapping[str, Tensor], outputs: Tensor, batch: Batch) -> float:
        """The loss of outputs after a run with other parameters: of one sequence, or of the whole batch."""
        try:
            self.problem.forward(params, next(pieces(batch, 1)))
            return float(self._share(outputs, batch))
        except Exception:  # what cannot be cut, a model that takes no piece, or a loss that reads what it left behind
            self.problem.forward(params, batch)
            return float(self._share(outputs, batch))

    def _expect_tensor_is_meant(self, result: object, batch: Batch, eps: float) -> None:
        """A user's function that takes what the model returns must not mean another of its tensors."""
        of_targets = isinstance(self._share, TorchShare) or isinstance(self.loss, _Loss)
        if isinstance(result, Tensor) or not callable(self.loss) or of_targets:
            return
        try:
            value = self.loss(result, batch)
            given = float(value) if isinstance(value, Tensor) and value.numel() == 1 else None
        except Exception:  # it is a function of the tensor
            return
        if given is None:
            return
        taken = float(self.loss(as_tensor(result), batch))
        expect(
            same_value(given, taken, eps, torch.sum, None),
            f"loss: the model returns {_kind(result)}, for which the function gives {given:.6g}, and {taken:.6g} for "
            "its first tensor, which a problem takes as the outputs; wrap the model so that it returns the tensor that "
            "the loss needs.",
        )


class LateComparison(ModelCheck):
    """Outputs of the model by itself, for the problem's own to be compared with once somebody computes these.

    Args:
        comparison: Of a problem with its model, with what is known of all batches.
    """

    def __init__(self, comparison: ModelComparison) -> None:
        self._comparison = replace(comparison, known=())
        self._waiting = [replace(known, own=None) for known in comparison.known]

    def seen(
        self,
        forward: Callable[[Mapping[str, Tensor], Batch], Tensor],
        params: Mapping[str, Tensor],
        batch: Batch,
        outputs: Tensor,
    ) -> None:
        """Outputs are those of the model itself; or the model draws nothing, and both have the same loss."""
        made = self._comparison.problem
        known = next((one for one in self._waiting if one.batch is batch), None)
        if known is None or forward is not made.forward or params is not made.params:
            return
        if not torch.equal(outputs, known.outputs):
            self._confirm(known, outputs.detach())
        self._waiting.remove(known)

    def finish(self) -> None:
        """Runs the batches that nobody has run, as the problem does."""
        made = self._comparison.problem
        for known in list(self._waiting):
            with made.scope(), torch.no_grad():
                outputs = made.forward(made.params, known.batch)
            self.seen(made.forward, made.params, known.batch, outputs)

    def _confirm(self, known: KnownBatch, outputs: Tensor) -> None:
        """Other kernels give other digits, and weights may have changed since; everything else is an `InputError`."""
        comparison = self._comparison
        made, batch, eps = comparison.problem, known.batch, torch.finfo(comparison.problem.dtype).eps
        with torch.no_grad(), made.scope():
            again = made.forward(made.params, batch)
            value, here, own = (float(made.loss(each, batch)) for each in (outputs, again, known.outputs))
        if not torch.equal(again, outputs):
            expect_repeatable(comparison.model, made, comparison.with_targets, batch, again)
        expect(
            same_value(value, here, eps, lambda at: made.loss(at, batch), outputs),
            f"model: its loss is {value:.6g} where gradients are enabled and {here:.6g} where they are not, more than "
            "rounding explains; expected the same.",
        )
        if not same_value(here, own, eps, lambda at: made.loss(at, batch), outputs):
            number = next(k for k, one in enumerate(made.data) if one is batch)
            comparison._against_own(number, batch, here)


class _FunctionModule(nn.Module):
    """A function that may use a model, as a module that has the model's parameters."""

    def __init__(self, model: nn.Module, function: Callable[[], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self) -> Tensor:
        """What the function gives."""
        return self.function()


def _kind(result: object) -> str:
    if isinstance(result, Mapping):
        return f"{type(result).__name__} of {', '.join(map(str, result))}"
    return f"{type(result).__name__} of {len(result)}" if isinstance(result, Sequence) else type(result).__name__


def _without_logits(notes: Sequence[str]) -> list[str]:
    """Notes without the one on how logits are dealt with."""
    return [note for note in notes if not note.startswith("logits (")]
