"""What is noted along a training: losses, what is right, how spread out attention is; for all members at once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlens.lab.training import Ensemble
from hessianlens.lab.trials.measure.models import WithGain
from hessianlens.lab.trials.measure.tasks import Learned
from hessianlens.models import Transformer


class Watcher:
    """Notes of an ensemble on validation data."""

    def __init__(self, learned: Learned) -> None:
        self._learned = learned

    def note(self, ensemble: Ensemble) -> dict[str, Tensor]:
        """``loss``, ``accuracy``, ``entropy`` and, where a factor is learned, ``log_gain``, each with a row a member."""
        with torch.no_grad():
            found: dict[str, Tensor] = ensemble.over_members(self._of_one, ensemble.weights, self._learned.validation)
        return found

    def _of_one(self, model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
        logits = model(tokens)
        found = {
            "loss": self._learned.task.cross_entropy(logits, tokens),
            "accuracy": self._learned.right(logits, tokens),
            "entropy": entropies(model, tokens),
        }
        return {**found, "log_gain": model.log_gain.clone()} if isinstance(model, WithGain) else found


def entropies(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean over rows and heads of ``entropy / log(visible keys)`` of every layer: 1 uniform, 0 one-hot.

    Weights that are no distribution are taken by their sizes, each row divided by its sum. The first row, which sees
    one key, has no entropy and is left out.
    """
    inner = model.model if isinstance(model, WithGain) else cast(Transformer, model)
    changed = model.effective() if isinstance(model, WithGain) else {}
    return cast(Tensor, functional_call(_Entropies(inner), {f"model.{n}": w for n, w in changed.items()}, (tokens,)))


class _Entropies(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        stream, found = self.model.embed(tokens), []
        for block in self.model.blocks:
            layer: Any = block
            sizes = layer.attention.weights(layer.attention_input(stream)).abs()
            total = sizes.sum(-1, keepdim=True)
            rows = torch.special.entr(sizes / torch.where(total == 0, torch.ones_like(total), total)).sum(-1)
            keys = torch.arange(2, rows.shape[-1] + 1, dtype=rows.dtype)
            found.append((rows[..., 1:] / keys.log()).mean())
            stream = layer(stream)
        return torch.stack(found)
