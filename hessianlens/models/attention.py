"""Multi-head attention as a module: any activation, one or two query-key matrices per head."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlens.attention.activations import ActivationLike, as_activation
from hessianlens.attention.masks import Masking
from hessianlens.errors import check_choice, check_flag, check_number, check_whole
from hessianlens.models.arguments import QUERY_KEY, head_width


class Attention(nn.Module):
    """``F = concat_h(z^h) W_O + b_O`` with ``z^h = a(T^h) V^h``, from plain differentiable operations.

    ``query_key="dual"``: ``T^h = Q^h K^h^T / (t sqrt(d_head))``, ``Q = X W_Q + b_Q``, ``K = X W_K + b_K``.
    ``query_key="single"``: ``T^h = (X W_QK^h + b_QK^h) X^T / t``, which equals the other for
    ``W_QK^h = W_Q^h W_K^h^T / sqrt(d_head)`` (and ``b_K = 0``, ``b_QK^h = W_K^h b_Q^h / sqrt(d_head)``).

    Matrices act on the right. Head h owns columns ``h w .. (h + 1) w - 1`` of W_Q, W_K and W_V (w = d_head) and of W_QK
    (w = d_model), and those rows of W_O:

    ==================  ========================
    W_Q, W_K, W_V       d_model x heads d_head
    W_QK                d_model x heads d_model
    W_O                 heads d_head x d_model
    ==================  ========================

    >>> Attention(d_model=4, heads=2, activation="sigmoid")
    Attention(d_model=4, heads=2, d_head=2, activation=sigmoid, query_key=dual, causal=True, temperature=1.0)
    """

    W_V: nn.Parameter
    W_O: nn.Parameter
    b_V: nn.Parameter | None
    b_O: nn.Parameter | None

    def __init__(
        self,
        d_model: int,
        heads: int = 1,
        d_head: int | None = None,
        *,
        activation: ActivationLike = "softmax",
        query_key: str = "dual",
        temperature: float = 1.0,
        causal: bool = True,
        bias: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.d_model, self.heads = check_whole("d_model", d_model), check_whole("heads", heads)
        self.d_head = head_width(d_model, heads) if d_head is None else check_whole("d_head", d_head)
        check_choice("query_key", query_key, QUERY_KEY)
        self.query_key = query_key
        self.temperature = check_number("temperature", temperature, 0.0, strictly=True)
        check_flag("causal", causal)
        check_flag("bias", bias)
        self.causal = causal
        self.activation = as_activation(activation)
        inner = heads * self.d_head
        widths = {"Q": inner, "K": inner} if query_key == "dual" else {"QK": heads * d_model}
        shapes = {**{name: (d_model, width) for name, width in widths.items()}, "V": (d_model, inner)}
        shapes["O"] = (inner, d_model)
        for name, shape in shapes.items():
            self.register_parameter(f"W_{name}", nn.Parameter(torch.zeros(shape, dtype=dtype)))
        for name, (_, width) in shapes.items():
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(width, dtype=dtype)) if bias else None)

    @property
    def scale(self) -> float:
        """What the scores are divided by."""
        return self.temperature * (math.sqrt(self.d_head) if self.query_key == "dual" else 1.0)

    def _mapped(self, name: str, X: Tensor) -> Tensor:
        """``X W + b``, split by head: (..., heads, L, width)."""
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        mapped = X @ weight if bias is None else X @ weight + bias
        return mapped.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def scores(self, X: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b h l l"]:
        """``T^h`` of every head, before the mask."""
        if self.query_key == "single":
            queries, keys = self._mapped("QK", X), X.unsqueeze(-3)
        else:
            queries, keys = self._mapped("Q", X), self._mapped("K", X)
        return queries @ keys.transpose(-1, -2) / self.scale

    def weights(self, X: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b h l l"]:
        """``A^h = a(T^h)`` of every head; zero where a token must not look."""
        scores = self.scores(X)
        rows = scores.reshape(-1, *scores.shape[-2:])
        visible, _ = Masking(self.causal).resolve(len(rows), rows.shape[-1], X.dtype, X.device)
        return self.activation.value(rows, visible).reshape(scores.shape)

    def head_outputs(self, X: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b l v"]:
        """``z = concat_h(A^h V^h)``, the heads side by side, before W_O."""
        return (self.weights(X) @ self._mapped("V", X)).transpose(-2, -3).flatten(-2)

    def project(self, z: Float[Tensor, "*b v"]) -> Float[Tensor, "*b d"]:
        """``z W_O + b_O``."""
        return z @ self.W_O if self.b_O is None else z @ self.W_O + self.b_O

    def forward(self, X: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b l d"]:
        """``F = concat_h(z^h) W_O + b_O``."""
        return self.project(self.head_outputs(X))

    def extra_repr(self) -> str:
        """What a reader needs to know of this layer."""
        return (
            f"d_model={self.d_model}, heads={self.heads}, d_head={self.d_head}, activation={self.activation}, "
            f"query_key={self.query_key}, causal={self.causal}, temperature={self.temperature}"
        )
