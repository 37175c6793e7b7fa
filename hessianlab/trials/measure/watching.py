"""What is noted along a training: losses, what is right, how spread out attention is; for all members at once.

Entropies are those of `hessianlens.Monitor` (``entropy_share``), by the same function; here the members of an ensemble
are looked at together, and weights that are no distribution have one too.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlab.training import Ensemble
from hessianlab.trials.measure.models import WithGain
from hessianlab.trials.measure.tasks import Learned
from hessianlens.attention import attention_entropy, first_moment
from hessianlens.models import Transformer


class Watcher:
    """Notes of an ensemble on validation data.

    Args:
        learned: The task.
        attention: Whether to look at attention too.
    """

    def __init__(self, learned: Learned, attention: bool = True) -> None:
        self._learned, self._attention = learned, attention

    def note(self, ensemble: Ensemble) -> dict[str, Tensor]:
        """``loss``, ``accuracy``, ``attention`` (layers, `FACTS`), and ``log_gain`` if there is one, by member."""
        with torch.no_grad():
            found = ensemble.over_members(self._of_one, ensemble.weights, self._learned.validation)
            if self._attention:
                found["attention"] = torch.stack([_facts(A, X) for A, X in found.pop("seen")], 1)
        return cast("dict[str, Tensor]", found)

    def _of_one(self, model: nn.Module, tokens: Tensor) -> dict[str, Any]:
        logits = model(tokens)
        found: dict[str, Any] = {
            "loss": self._learned.task.cross_entropy(logits, tokens),
            "accuracy": self._learned.right(logits, tokens),
        }
        if self._attention:
            found["seen"] = _seen(model, tokens)
        return {**found, "log_gain": model.log_gain.clone()} if isinstance(model, WithGain) else found


FACTS = ("entropy", "moment1", "moment2")
"""What is noted of the attention of a layer, in this order."""


def attention_facts(model: nn.Module, tokens: Tensor) -> Tensor:
    """By layer, means over rows and heads of three numbers; see `FACTS`.

    Entropy is that over the one of equal weights on all visible keys, 1 if uniform and 0 if one-hot; weights that are
    no distribution are taken by their sizes, each row divided by its sum. Moments are the length of the mean token that
    a row sees, ``|M_1|``, and the trace of their covariance, ``tr M_2``.
    """
    with torch.no_grad():
        return torch.stack([_facts(A[None], X[None])[0] for A, X in _seen(model, tokens)])


def _seen(model: nn.Module, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """By layer, weights (B, h, L, L) and the tokens (B, L, d) that they mix."""
    inner = model.model if isinstance(model, WithGain) else cast(Transformer, model)
    changed = model.effective() if isinstance(model, WithGain) else {}
    found: list[tuple[Tensor, Tensor]] = functional_call(
        _Seen(inner), {f"model.{name}": weight for name, weight in changed.items()}, (tokens,)
    )
    return found


class _Seen(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
        stream, found = self.model.embed(tokens), []
        for block in self.model.blocks:
            layer: Any = block
            X = layer.attention_input(stream)
            found.append((layer.attention.weights(X), X))
            stream = layer(stream)
        return found


def _facts(A: Tensor, X: Tensor) -> Tensor:
    """`FACTS` by member, of weights (m, B, h, L, L) and tokens (m, B, L, d); not a number where weights are not."""
    members = A.shape[0]
    sound = (A.isfinite().reshape(members, -1).all(1) & X.isfinite().reshape(members, -1).all(1))[:, None]
    A, X = (torch.where(sound[(...,) + (None,) * (t.ndim - 2)], t, 0) for t in (A, X))
    sizes = A.abs()
    total = sizes.sum(-1, keepdim=True)
    rows = attention_entropy(sizes / torch.where(total == 0, 1, total))
    equal = torch.arange(1, rows.shape[-1] + 1, dtype=rows.dtype).log()
    tokens = X.unsqueeze(-3).expand(*A.shape[:-2], *X.shape[-2:])
    squares = first_moment(A, tokens).square().sum(-1)
    seen = (A @ tokens.square().sum(-1, keepdim=True))[..., 0]
    spread = seen - 2 * squares + A.sum(-1) * squares
    means = [numbers.reshape(members, -1).mean(1) for numbers in (rows / equal.mean(), squares.sqrt(), spread)]
    return torch.where(sound, torch.stack(means, 1), torch.nan)
