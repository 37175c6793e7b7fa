"""Linear models: attention without an activation, and an MLP without one."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessianlens.checks import check_dtype
from hessianlens.errors import check_number, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.models.embedding import check_tokens, look_up
from hessianlens.models.initialisation import fill_normal, fill_uniform, generator
from hessianlens.models.transformer import Transformer

if TYPE_CHECKING:
    from typing import Self


FIXED: dict[str, Any] = {"attention": "linear", "residual_scale": 0.0, "mlp": False}


class LinearAttentionStack(Transformer):
    """Linear attention chained ``layers`` times: ``x <- mask(Q K^T / sqrt(d_head)) V W_O`` (the paper's Figure 7).

    A `Transformer` with ``attention="linear"``, ``residual_scale=0`` and ``mlp=False``; every other argument is as
    there. Without biases the output is homogeneous of degree 3^layers in the embeddings.

    >>> import torch
    >>> tokens, options = torch.tensor([[1, 2, 3]]), {"seed": 1, "dtype": torch.float64}
    >>> one, two = (LinearAttentionStack(2, 4, embedding_std=s, **options)(tokens) for s in (1.0, 2.0))
    >>> torch.allclose(two, 2**9 * one)
    True
    """

    def __init__(self, layers: int = 1, d_model: int = 128, **options: Any) -> None:
        known = inspect.signature(Transformer).parameters
        for name in options:
            expect(name in known, f"options: got {name!r}, expected one of {', '.join(known)}.")
        for name, value in FIXED.items():
            expect(
                name not in options,
                f"{name}: got {options.get(name)!r}, expected no such argument, since a stack of linear attention has "
                f"{name}={value!r}; use Transformer to choose it.",
            )
        super().__init__(layers, d_model, **FIXED, **options)


class LinearMLP(nn.Module):
    """``logits = W_n ... W_2 W_1 E[token]``, every token by itself (the paper's Figure 8).

    Layers are ``torch.nn.Linear`` without bias, the last one to the logits, so ``layers=1`` is one matrix
    vocab x width. There are no positions. Drawn from one generator in this order: the embedding, as standard normals
    times `embedding_std`; then the layers, input first, from torch's default U(-1/sqrt(width), 1/sqrt(width)).

    Args:
        layers: Number of matrices behind the embedding.
        width: Width of the embedding and of the hidden layers.
        vocab: Number of tokens and of logits.
        embedding_std: Standard deviation of the embedding.
        seed: Seed of all weights.
        dtype: Dtype of the weights and of the output.

    >>> model = LinearMLP(layers=2, width=8)
    >>> {name: tuple(p.shape) for name, p in model.named_parameters()}
    {'token_embedding': (12, 8), 'layers.0.weight': (8, 8), 'layers.1.weight': (12, 8)}
    >>> model(torch.zeros(3, 18, dtype=torch.int64)).shape
    torch.Size([3, 18, 12])
    """

    def __init__(
        self,
        layers: int = 1,
        width: int = 128,
        vocab: int = 12,
        *,
        embedding_std: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, count in {"layers": layers, "width": width, "vocab": vocab}.items():
            check_whole(name, count)
        check_dtype(dtype)
        size = (layers * width + 2 * vocab, width)
        ensure_fits("The weights", size, torch.float64, torch.device("cpu"), "take a smaller model", 2)
        self.token_embedding = nn.Parameter(torch.zeros(vocab, width, dtype=dtype))
        outputs = [width] * (layers - 1) + [vocab]
        # skip_init: torch's own initialisation would draw from, and so disturb, the global generator.
        self.layers = nn.ModuleList(
            nn.utils.skip_init(nn.Linear, width, size, bias=False, dtype=dtype) for size in outputs
        )
        source = generator(seed)
        fill_normal(self.token_embedding, check_number("embedding_std", embedding_std, 0.0), source)
        for weight in self.layers.parameters():
            fill_uniform(weight, 1 / math.sqrt(width), source)

    def redraw_embeddings(self, std: float, seed: int) -> Self:
        """Draw the embedding anew from N(0, std^2), in place; the layers stay as they are."""
        fill_normal(self.token_embedding, check_number("embedding_std", std, 0.0), generator(seed))
        return self

    def forward(self, tokens: Int[Tensor, "*b l"]) -> Float[Tensor, "*b l v"]:
        """Logits (B, L, vocab) of tokens (B, L)."""
        x = look_up(self.token_embedding, check_tokens(tokens))
        for layer in self.layers:
            x = layer(x)
        return x

    def extra_repr(self) -> str:
        """Sizes that no part shows by itself."""
        return f"vocab={len(self.token_embedding)}"
