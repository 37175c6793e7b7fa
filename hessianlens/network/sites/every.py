"""Every attention that a model calls, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from hessianlens.errors import InputError
from hessianlens.memory.limits import lacks_memory
from hessianlens.models.attention import Attention
from hessianlens.network.sites.calls import AttentionCall, AttentionCalls
from hessianlens.problems import Batch, Problem, layer_of
from hessianlens.state_guard import Restore, StateChange

See = Callable[[Tensor, Tensor, Tensor], None]
"""Is given attention weights ``[s, h, i, j]``, what each row may see, as truths, and values ``[s, h, j, r]``."""

_HIDDEN = 0.25
"""Scores below this share of the lowest number are hidden by a mask: implementations add or fill in that number."""


class AttentionUnseen(Exception):
    """A model that cannot be run while its attention is looked at; the text says why."""


class _SeeFailed(Exception):
    """Not the model but the one who looks has failed."""


def see_attention(problem: Problem, batch: Batch, see: See) -> None:
    """Run the model on a batch and show every attention to `see`, which keeps what it wants of it.

    Args:
        problem: From `hessianlens.problem`.
        batch: One of its batches.
        see: Is called once for every attention, in the order of the model.

    Raises:
        AttentionUnseen: If an operation of the model fails where it is looked at.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, heads=2, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> see_attention(problem, problem.data[0], lambda weights, visible, values: print(tuple(weights.shape)))
    (4, 2, 18, 18)
    (4, 2, 18, 18)
    """
    modules = problem.source.modules() if isinstance(problem.source, nn.Module) else ()
    own = [module for module in modules if isinstance(module, Attention)]
    guarded = partial(_guarded, see)
    try:
        with problem.scope(), torch.enable_grad(), _OwnAttention(own, guarded) if own else _Every(guarded):
            problem.forward(problem.params, batch)
    except _SeeFailed as failed:
        assert failed.__cause__ is not None
        raise failed.__cause__ from None
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        if isinstance(error, InputError) or lacks_memory(error):
            raise
        raise AttentionUnseen(" ".join(f"{type(error).__name__}: {error}".split())[:200]) from error


def _guarded(see: See, weights: Tensor, visible: Tensor, values: Tensor) -> None:
    try:
        see(weights, visible, values)
    except Exception as error:
        raise _SeeFailed from error


def attention_names(problem: Problem, count: int) -> list[str]:
    """Names of the layers if there is one attention in each, else numbers."""
    found = dict.fromkeys(layer_of(name) for name in problem.blocks if ".attn." in name)
    layers = [layer for layer in found if layer is not None]
    return layers if len(layers) == count else [f"attention {number}" for number in range(count)]


class _Every(AttentionCalls):
    """Shows each attention as soon as it is met, so that none has to be kept."""

    def __init__(self, see: See) -> None:
        self._see = see
        super().__init__()

    @property
    def last(self) -> AttentionCall | None:
        """None is kept."""
        return None

    @last.setter
    def last(self, call: AttentionCall | None) -> None:
        if call is not None:
            scores = call.scores.detach()
            visible = scores > _HIDDEN * torch.finfo(scores.dtype).min
            self._see(*map(_by_head, (torch.softmax(scores, -1), visible, call.v.detach())))


def _by_head(tensor: Tensor) -> Tensor:
    return tensor.flatten(1, -3) if tensor.ndim > 3 else tensor[:, None]


class _OwnAttention(StateChange[None]):
    """Attention of the library's own models, whose activations are functions of its own: met where weights are made."""

    def __init__(self, own: Sequence[Attention], see: See) -> None:
        self.own, self.see = own, see

    def record(self) -> Restore:
        """No module has weights that are seen."""
        return self._unseen

    def change(self) -> None:
        """Every module shows its weights."""
        for module in self.own:
            module.__dict__["weights"] = partial(self._seen, module)

    def _seen(self, module: Attention, X: Tensor) -> Tensor:
        weights = Attention.weights(module, X)
        visible = torch.ones_like(weights, dtype=torch.bool)
        self.see(weights.detach(), visible.tril() if module.causal else visible, module._mapped("V", X).detach())
        return weights

    def _unseen(self) -> None:
        for module in self.own:
            module.__dict__.pop("weights", None)
