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
        """``loss``, ``accuracy``, ``attention`` (as `attention_facts`), and ``log_gain`` if there is one, by member."""
        with torch.no_grad():
            found: dict[str, Tensor] = ensemble.over_members(self._of_one, ensemble.weights, self._learned.validation)
        return found

    def _of_one(self, model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
        logits = model(tokens)
        found = {
            "loss": self._learned.task.cross_entropy(logits, tokens),
            "accuracy": self._learned.right(logits, tokens),
            "attention": attention_facts(model, tokens),
        }
        return {**found, "log_gain": model.log_gain.clone()} if isinstance(model, WithGain) else found


FACTS = ("entropy", "moment1", "moment2")
"""What is noted of the attention of a layer, in this order."""


def attention_facts(model: nn.Module, tokens: Tensor) -> Tensor:
    """By layer, means over rows and heads of three numbers; see `FACTS`.

    Entropy is that over ``log(visible keys)``, 1 if uniform and 0 if one-hot; weights that are no distribution are
    taken by their sizes, each row divided by its sum, and the first row, which sees one key, is left out. Moments are
    the length of the mean token that a row sees, ``|M_1|``, and the trace of their covariance, ``tr M_2``.
    """
    inner = model.model if isinstance(model, WithGain) else cast(Transformer, model)
    changed = model.effective() if isinstance(model, WithGain) else {}
    return cast(Tensor, functional_call(_Facts(inner), {f"model.{n}": w for n, w in changed.items()}, (tokens,)))


class _Facts(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        stream, found = self.model.embed(tokens), []
        for block in self.model.blocks:
            layer: Any = block
            X = layer.attention_input(stream)
            found.append(_facts(layer.attention.weights(X), X))
            stream = layer(stream)
        return torch.stack(found)


def _facts(A: Tensor, X: Tensor) -> Tensor:
    """Of weights (B, h, L, L) and tokens (B, L, d)."""
    sizes = A.abs()
    total = sizes.sum(-1, keepdim=True)
    rows = torch.special.entr(sizes / torch.where(total == 0, torch.ones_like(total), total)).sum(-1)
    keys = torch.arange(2, rows.shape[-1] + 1, dtype=rows.dtype)
    mean = A @ X.unsqueeze(-3)
    squares = mean.square().sum(-1)
    seen = (A @ X.square().sum(-1)[..., None, :, None])[..., 0]
    spread = seen - 2 * squares + A.sum(-1) * squares
    return torch.stack([(rows[..., 1:] / keys.log()).mean(), squares.sqrt().mean(), spread.mean()])
