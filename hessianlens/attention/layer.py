"""Attention layers: the classical one, one query-key matrix, factored values, many heads."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.dual_head import DualAttentionHead
from hessianlens.attention.head import AttentionHead, RawScores, check_names, weight_row
from hessianlens.attention.state import ScorePort, ValuePort
from hessianlens.attention.tokens import KeyTokens
from hessianlens.checks import check_dtype, check_same_kind, check_shape
from hessianlens.display import DisplayableRows, Grid, Picture
from hessianlens.errors import InputError, check_choice, check_seed, check_that, check_whole, expect
from hessianlens.memory import ensure_fits
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from typing import Self

_OPTIONS = (
    "activation",
    "causal",
    "mask",
    "bias",
    "temperature",
    "query_norm",
    "key_norm",
    "sink",
    "gate",
    "value_gate",
)


@dataclass(frozen=True, eq=False, repr=False)
class SelfAttention(DualAttentionHead):
    """``F = a(X W_Q W_K^T X^T / (t sqrt(d_K))) X W_V``, blocks Q, K, V.

    With norms of queries and keys, ``T_ij = n(W_Q^T x_i) . n(W_K^T x_j) / (t sqrt(d_K))``; their gains are blocks
    ``gain_Q`` and ``gain_K``. With a sink, ``A_ij = exp(T_ij) / (exp(sink) + sum_l exp(T_il))``. With a gate,
    ``F_i = sigmoid(gate^T x_i) * sum_j A_ij v_j``; with a gate of the values
    ``v_j = (W_V^T x_j) * f(value_gate^T x_j)``.

    Args:
        W_Q: Query weights, d x d_K.
        W_K: Key weights, d x d_K.
        W_V: Value weights, d x d_V.
        activation: See `AttentionOptions`, as are `causal`, `mask`, `bias`, `temperature`, `sink`, `gate` and
            `value_gate`.
        query_norm: Norm of the queries, a `QueryKeyNorm` or its kind, "rms" or "layer".
        key_norm: Norm of the keys.

    >>> layer = SelfAttention.random(d_model=4, d_k=3, seed=0, dtype=torch.float64)
    >>> {name: tuple(w.shape) for name, w in layer.parameters.items()}
    {'Q': (4, 3), 'K': (4, 3), 'V': (4, 4)}
    >>> layer(torch.zeros(5, 4, dtype=torch.float64)).shape
    torch.Size([5, 4])
    """

    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor

    names = ("Q", "K", "V")

    @classmethod
    def random(
        cls,
        d_model: int,
        d_k: int | None = None,
        d_v: int | None = None,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> Self:
        """Weights drawn from N(0, 1/d_model); d_k and d_v default to d_model."""
        check_dtype(dtype)
        for name in options:
            check_choice("options", name, _OPTIONS)
        check_whole("d_model", d_model)
        inner = d_model if d_k is None else check_whole("d_k", d_k)
        outer = d_model if d_v is None else check_whole("d_v", d_v)
        widths = (inner, inner, outer)
        ensure_fits(
            "The weights", (d_model, sum(widths)), torch.float64, torch.device("cpu"), "take a smaller width", 2
        )
        generator = torch.Generator().manual_seed(check_seed(seed))
        weights = [
            torch.randn(d_model, w, generator=generator, dtype=torch.float64) / math.sqrt(d_model) for w in widths
        ]
        return cls(*(w.to(dtype) for w in weights), **options)

    @property
    def d_k(self) -> int:
        """Width of queries and keys."""
        return self.W_Q.shape[1]

    @property
    def d_v(self) -> int:
        """Width of the output."""
        return self.W_V.shape[1]

    @property
    def d_kv(self) -> int:
        """Width of the tokens that keys and values are made of."""
        return self.W_K.shape[0]

    def _check_shapes(self) -> None:
        check_shape("W_K", self.W_K, tuple(self.W_Q.shape), "the shape of W_Q")
        check_shape("W_V", self.W_V, (self.W_Q.shape[0], self.W_V.shape[1]), "as many rows as W_Q")

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        return self._dual_scores(X, keys)

    def _value_map(self, X: Tensor) -> Tensor:
        return X @ self.W_V

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        return {"V": ValuePort(X, "x", A, "m", self.d_v)}, None


@dataclass(frozen=True, eq=False, repr=False)
class CrossAttention(SelfAttention):
    """``F = a(X W_Q W_K^T X_kv^T / (t sqrt(d_K))) X_kv W_V``: keys and values of other tokens, blocks Q, K, V.

    Tokens X_kv may be of another number and width, as those of an encoder. At X_kv of the same width any other layer
    is a cross-attention too.

    Args:
        W_Q: Query weights, d x d_K.
        W_K: Key weights, d_kv x d_K.
        W_V: Value weights, d_kv x d_V.
        activation: See `SelfAttention`, as are all further options.

    >>> layer = CrossAttention(torch.randn(4, 3), torch.randn(6, 3), torch.randn(6, 2))
    >>> layer(torch.zeros(5, 4), torch.zeros(9, 6)).shape
    torch.Size([5, 2])
    """

    def _check_shapes(self) -> None:
        check_shape("W_K", self.W_K, (self.W_K.shape[0], self.W_Q.shape[1]), "as many columns as W_Q")
        check_shape("W_V", self.W_V, (self.W_K.shape[0], self.W_V.shape[1]), "as many rows as W_K")


@dataclass(frozen=True, eq=False, repr=False)
class FactoredValueAttention(DualAttentionHead):
    """Self-attention with values through two matrices, ``W_V = W_O W_U``; blocks Q, K, O, U.

    In the paper's notation W_O (d x r) acts first and W_U (r x d_V) behind it.
    """

    W_Q: Tensor
    W_K: Tensor
    W_O: Tensor
    W_U: Tensor

    names = ("Q", "K", "O", "U")

    @property
    def d_v(self) -> int:
        """Width of the output."""
        return self.W_U.shape[1]

    def _check_shapes(self) -> None:
        check_shape("W_K", self.W_K, tuple(self.W_Q.shape), "the shape of W_Q")
        check_shape("W_O", self.W_O, (self.W_Q.shape[0], self.W_O.shape[1]), "as many rows as W_Q")
        check_shape("W_U", self.W_U, (self.W_O.shape[1], self.W_U.shape[1]), "as many rows as W_O has columns")

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        return self._dual_scores(X, keys)

    def _value_map(self, X: Tensor) -> Tensor:
        return X @ self.W_O @ self.W_U

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        inner = X @ self.W_O
        ports = {
            "O": ValuePort(X, "x", A, "m", self.W_O.shape[1], self.W_U, "W_U"),
            "U": ValuePort(inner, "xO", A, "mO", self.d_v),
        }
        return ports, ("O", "U")


@dataclass(frozen=True, eq=False, repr=False)
class SingleMatrixAttention(AttentionHead):
    """``F = a(X W_QK X^T / t) X W_V``: one query-key matrix, blocks QK and V.

    There is no factor sqrt(d_K): the layer equals `SelfAttention` for ``W_QK = W_Q W_K^T / sqrt(d_K)``.
    """

    W_QK: Tensor
    W_V: Tensor

    names = ("QK", "V")

    @property
    def d_v(self) -> int:
        """Width of the output."""
        return self.W_V.shape[1]

    def _check_shapes(self) -> None:
        rows = self.W_QK.shape[0]
        check_shape("W_QK", self.W_QK, (rows, rows), "a square matrix on the tokens")
        check_shape("W_V", self.W_V, (rows, self.W_V.shape[1]), "as many rows as W_QK")

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        ports = {"QK": ScorePort(X, "x", 0, keys.rows, "x")}
        return RawScores(X @ self.W_QK @ keys.rows.transpose(-1, -2), float(self.temperature), ports)

    def _value_map(self, X: Tensor) -> Tensor:
        return X @ self.W_V

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        return {"V": ValuePort(X, "x", A, "m", self.d_v)}, None


class MultiHeadAttention(DisplayableRows):
    """``F = sum_h F^h(X)``; the blocks of head h are named ``("Q", h)``, ``("K", h)``, ``("V", h)``.

    Heads may be of any kind, with their own activations and masks, as long as they share the input and output widths.

    >>> heads = [SelfAttention.random(4, 2, seed=h) for h in range(2)]
    >>> list(MultiHeadAttention(heads).parameters)
    [('Q', 0), ('K', 0), ('V', 0), ('Q', 1), ('K', 1), ('V', 1)]
    """

    widths: ClassVar[tuple[str, ...]] = ("d_model", "d_kv", "d_v")
    """What all heads have in common."""

    def __init__(self, heads: Sequence[object]) -> None:
        checked: list[AttentionHead] = []
        several = isinstance(heads, Iterable) and not isinstance(heads, Tensor)
        check_that(several, "heads", heads, "a list of layers")
        for h, head in enumerate(heads):
            if not isinstance(head, AttentionHead):
                raise InputError(f"heads[{h}]: got {type(head).__name__}, expected a layer such as SelfAttention.")
            checked.append(head)
            for width in self.widths:
                first, own = getattr(checked[0], width), getattr(head, width)
                expect(first == own, f"heads[{h}]: got {width} = {own}, expected {first} as in heads[0].")
        expect(len(checked) > 0, "heads: got an empty list, expected at least one attention layer.")
        self.heads = tuple(checked)
        check_same_kind({f"heads[{h}]": next(iter(head.parameters.values())) for h, head in enumerate(self.heads)})

    @property
    def parameters(self) -> dict[tuple[str, int], Tensor]:
        """The weights of all heads by (name, head), in block order."""
        return {(name, h): w for h, head in enumerate(self.heads) for name, w in head.parameters.items()}

    def with_parameters(self, parameters: Mapping[tuple[str, int], Tensor]) -> Self:
        """The same layer with other weights."""
        check_names(parameters, self.parameters, "names are such as ('Q', 0)")
        return type(self)(
            [
                head.with_parameters({name: parameters[name, h] for name in head.parameters if (name, h) in parameters})
                for h, head in enumerate(self.heads)
            ]
        )

    def __repr__(self) -> str:
        kinds = "\n".join(f"  {h}: {head!r}" for h, head in enumerate(self.heads))
        return f"{type(self).__name__} of {number_of(len(self.heads), 'head')}\n{kinds}"

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"head": h, **weight_row(name, weight)}
            for h, head in enumerate(self.heads)
            for name, weight in head.parameters.items()
        ]

    def _picture(self, asked: bool) -> Picture:
        """The norms of the weights, a line per head."""
        names = list(dict.fromkeys(name for head in self.heads for name in head.parameters))
        found = [head.parameters for head in self.heads]
        norms = [[float(own[n].detach().norm()) if n in own else None for n in names] for own in found]
        rows = tuple(f"head {h}" for h in range(len(self.heads)))
        return Grid(rows, tuple(f"W_{name}" for name in names), norms, "norm of the weights")

    def __call__(
        self, X: Float[Tensor, "*s i d"], X_kv: Float[Tensor, "*s l e"] | None = None
    ) -> Float[Tensor, "*s i f"]:
        """The sum of the heads' outputs, differentiable by autograd."""
        return self._joined([head(X, X_kv) for head in self.heads])

    def _joined(self, outputs: Sequence[Tensor]) -> Tensor:
        return sum(outputs[1:], outputs[0])
