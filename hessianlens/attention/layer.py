"""Attention layers: the classical one, one query-key matrix, factored values, many heads."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.activations import Activation, ActivationLike, as_activation
from hessianlens.attention.masks import Masking
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.checks import check_dense, check_dtype, check_same_kind, check_shape, check_tensor
from hessianlens.display import DisplayableRows, Entries, Grid, Picture
from hessianlens.errors import InputError, check_choice, check_flag, check_seed, check_that, check_whole, expect
from hessianlens.memory import ensure_fits

if TYPE_CHECKING:
    from typing import Self

    from matplotlib.axes import Axes

_SMALL = 2**15
"""Weights that are shown one by one."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AttentionOptions:
    """What the layers share beside their weights.

    Args:
        activation: A name from `attention.activations.ACTIVATIONS`, an `Activation`, or a function of a row.
        causal: Token i sees tokens 0 .. i only.
        mask: Boolean, (L, L) or (B, L, L), True where a token may attend.
        bias: Added to the scores, (L, L) or (B, L, L); minus infinity hides an entry.
        temperature: Divides the scores.
    """

    activation: ActivationLike = "softmax"
    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    temperature: float = 1.0
    _masking: Masking = field(init=False, repr=False)
    _activation: Activation = field(init=False, repr=False)

    def _prepare(self) -> None:
        positive = isinstance(self.temperature, (int, float)) and 1e-100 <= self.temperature <= 1e100
        check_that(positive, "temperature", self.temperature, "a positive number between 1e-100 and 1e100")
        check_flag("causal", self.causal)
        object.__setattr__(self, "_masking", Masking(self.causal, self.mask, self.bias))
        object.__setattr__(self, "_activation", as_activation(self.activation))


class AttentionHead(DisplayableRows, AttentionOptions, ABC):
    """A single head with named matrix parameters."""

    names: tuple[str, ...] = ()
    """Names of the parameters, in the order of the Hessian's blocks."""

    def __post_init__(self) -> None:
        """Weights are finite matrices of one kind with matching shapes."""
        weights = {f"W_{name}": w for name, w in self.parameters.items()}
        check_same_kind({name: w for name, w in weights.items() if isinstance(w, Tensor)})
        for name, weight in weights.items():
            check_tensor(name, weight, (2,))
        self._check_shapes()
        self._prepare()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The weights by name, in block order."""
        return {name: getattr(self, f"W_{name}") for name in self.names}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same layer with other weights."""
        _check_names(parameters, self.names, f"this layer has {', '.join(self.names)}")
        changes: dict[str, Any] = {f"W_{name}": value for name, value in parameters.items()}
        return replace(self, **changes)

    @property
    def d_model(self) -> int:
        """Width of the input tokens."""
        return self.parameters[self.names[0]].shape[0]

    @property
    @abstractmethod
    def d_v(self) -> int:
        """Width of the output."""

    @abstractmethod
    def _check_shapes(self) -> None: ...

    @abstractmethod
    def _raw_scores(self, X: Tensor) -> tuple[Tensor, float, dict[str, ScorePort], tuple[str, str] | None]:
        """Scores before scaling, the scale, the score ports and the pair of factors."""

    @abstractmethod
    def _value_map(self, X: Tensor) -> Tensor:
        """``V``, the rows that attention averages."""

    @abstractmethod
    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        """The value ports and the pair of factors."""

    def attend(self, X: Float[Tensor, "s l d"]) -> HeadState:
        """Evaluate the head at a batch and describe how each parameter enters."""
        check_dense("X", X, "3-dimensional torch tensor")
        expect(X.ndim == 3, f"X: got shape {tuple(X.shape)}, expected a batch of sequences, (B, L, d).")
        check_same_kind({"X": X, f"W_{self.names[0]}": self.parameters[self.names[0]]})
        expect(
            X.shape[-1] == self.d_model,
            f"X: got tokens of width {X.shape[-1]}, expected {self.d_model} (the rows of W_{self.names[0]}).",
        )
        raw, scale, score_ports, score_pair = self._raw_scores(X)
        visible, bias = self._masking.resolve(X.shape[0], X.shape[1], X.dtype, X.device)
        T = raw / scale if bias is None else raw / scale + bias
        A = self._activation.value(T, visible)
        value_ports, value_pair = self._value_ports(X, A)
        V = self._value_map(X)
        return HeadState(
            X, X, T, visible, A, V, scale, self._activation, score_ports, value_ports, score_pair, value_pair
        )

    def attention(self, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s l l"]:
        """The attention weights ``A``, for `attention_entropy`, the moments and plots."""
        weights = self.attend(as_batch(X)).weights
        return weights[0] if X.ndim == 2 else weights

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {w.shape[0]}x{w.shape[1]}" for name, w in self.parameters.items())
        own = [str(self._activation)]
        own += ["causal"] if self.causal else []
        own += [f"{name} {tuple(t.shape)}" for name, t in (("mask", self.mask), ("bias", self.bias)) if t is not None]
        own += [f"temperature {self.temperature:g}"] if self.temperature != 1 else []
        dtype = str(self.parameters[self.names[0]].dtype).removeprefix("torch.")
        return f"{type(self).__name__} {sizes}; {', '.join(own)}, {dtype}"

    def _records(self) -> list[dict[str, Any]]:
        return [_weight_row(name, weight) for name, weight in self.parameters.items()]

    def _picture(self, asked: bool) -> Picture | None:
        """The weights side by side, those with most rows first to set the height."""
        weights = [w.detach() for w in self.parameters.values()]
        if not asked and sum(w.numel() for w in weights) > _SMALL:
            return None
        height = max(len(w) for w in weights)
        padded = [torch.nn.functional.pad(w, (0, 0, 0, height - len(w))) for w in weights]
        sides = tuple((f"W_{name}", w.shape[1]) for name, w in self.parameters.items())
        return Entries(torch.cat(padded, 1).tolist(), "weights", columns=sides)

    def plot(self, ax: Axes | None = None, X: Tensor | None = None) -> Axes:
        """Draw the weights, or with tokens the attention between them.

        Args:
            ax: Matplotlib's axes; those of a new figure if omitted.
            X: Tokens, (L, d) or a batch (B, L, d), of which the first sequence is drawn.
        """
        return super().plot(ax) if X is None else self.attend(as_batch(X)).plot(ax)

    def __call__(self, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s l f"]:
        """``F = A X W_V``, differentiable by autograd."""
        batched = as_batch(X)
        out = self.attend(batched).output
        return out[0] if X.ndim == 2 else out


@dataclass(frozen=True, eq=False, repr=False)
class SelfAttention(AttentionHead):
    """``F = a(X W_Q W_K^T X^T / (t sqrt(d_K))) X W_V``, blocks Q, K, V.

    Args:
        W_Q: Query weights, d x d_K.
        W_K: Key weights, d x d_K.
        W_V: Value weights, d x d_V.
        activation: See `AttentionOptions`, as are `causal`, `mask`, `bias` and `temperature`.

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
            check_choice("options", name, ("activation", "causal", "mask", "bias", "temperature"))
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

    def _check_shapes(self) -> None:
        check_shape("W_K", self.W_K, tuple(self.W_Q.shape), "the shape of W_Q")
        check_shape("W_V", self.W_V, (self.W_Q.shape[0], self.W_V.shape[1]), "as many rows as W_Q")

    def _raw_scores(self, X: Tensor) -> tuple[Tensor, float, dict[str, ScorePort], tuple[str, str] | None]:
        return dual_scores(X, self.W_Q, self.W_K, self.temperature)

    def _value_map(self, X: Tensor) -> Tensor:
        return X @ self.W_V

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        return {"V": ValuePort(X, "x", A, "m", self.d_v)}, None


@dataclass(frozen=True, eq=False, repr=False)
class FactoredValueAttention(AttentionHead):
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

    def _raw_scores(self, X: Tensor) -> tuple[Tensor, float, dict[str, ScorePort], tuple[str, str] | None]:
        return dual_scores(X, self.W_Q, self.W_K, self.temperature)

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

    def _raw_scores(self, X: Tensor) -> tuple[Tensor, float, dict[str, ScorePort], tuple[str, str] | None]:
        ports = {"QK": ScorePort(X, "x", 0, X, "x")}
        return X @ self.W_QK @ X.transpose(-1, -2), float(self.temperature), ports, None

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

    def __init__(self, heads: Sequence[object]) -> None:
        checked: list[AttentionHead] = []
        several = isinstance(heads, Iterable) and not isinstance(heads, Tensor)
        check_that(several, "heads", heads, "a list of layers")
        for h, head in enumerate(heads):
            if not isinstance(head, AttentionHead):
                raise InputError(f"heads[{h}]: got {type(head).__name__}, expected a layer such as SelfAttention.")
            checked.append(head)
            for width in ("d_model", "d_v"):
                first, own = getattr(checked[0], width), getattr(head, width)
                expect(first == own, f"heads[{h}]: got {width} = {own}, expected {first} as in heads[0].")
        expect(len(checked) > 0, "heads: got an empty list, expected at least one attention layer.")
        self.heads = tuple(checked)
        check_same_kind({f"heads[{h}]": next(iter(head.parameters.values())) for h, head in enumerate(self.heads)})

    @property
    def parameters(self) -> dict[tuple[str, int], Tensor]:
        """The weights of all heads by (name, head), in block order."""
        return {(name, h): w for h, head in enumerate(self.heads) for name, w in head.parameters.items()}

    def with_parameters(self, parameters: Mapping[tuple[str, int], Tensor]) -> MultiHeadAttention:
        """The same layer with other weights."""
        _check_names(parameters, self.parameters, "names are such as ('Q', 0)")
        return MultiHeadAttention(
            [
                head.with_parameters({name: parameters[name, h] for name in head.names if (name, h) in parameters})
                for h, head in enumerate(self.heads)
            ]
        )

    def __repr__(self) -> str:
        kinds = "\n".join(f"  {h}: {head!r}" for h, head in enumerate(self.heads))
        return f"MultiHeadAttention of {len(self.heads)} heads\n{kinds}"

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"head": h, **_weight_row(name, weight)}
            for h, head in enumerate(self.heads)
            for name, weight in head.parameters.items()
        ]

    def _picture(self, asked: bool) -> Picture:
        """The norms of the weights, a line per head."""
        names = list(dict.fromkeys(name for head in self.heads for name in head.names))
        found = [head.parameters for head in self.heads]
        norms = [[float(own[n].detach().norm()) if n in own else None for n in names] for own in found]
        rows = tuple(f"head {h}" for h in range(len(self.heads)))
        return Grid(rows, tuple(f"W_{name}" for name in names), norms, "norm of the weights")

    def __call__(self, X: Float[Tensor, "*s l d"]) -> Float[Tensor, "*s l f"]:
        """The sum of the heads' outputs, differentiable by autograd."""
        outputs = [head(X) for head in self.heads]
        return sum(outputs[1:], outputs[0])


def _weight_row(name: str, weight: Tensor) -> dict[str, Any]:
    """A weight in a table."""
    return {
        "weight": f"W_{name}",
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "norm": float(weight.detach().norm()),
    }


def _check_names(given: object, known: Container[object], hint: str) -> None:
    """Weights by name, all of them known."""
    if not isinstance(given, Mapping):
        raise InputError(f"parameters: got {type(given).__name__}, expected a mapping from names to tensors; {hint}.")
    for name in given:
        expect(name in known, f"parameters: unknown name {name!r}; {hint}.")


def dual_scores(
    X: Tensor, W_Q: Tensor, W_K: Tensor, temperature: float
) -> tuple[Tensor, float, dict[str, ScorePort], tuple[str, str]]:
    """Scores of a query and a key matrix, and how the two enter."""
    Q, K = X @ W_Q, X @ W_K
    ports = {"Q": ScorePort(X, "x", 0, K, "k", other=W_K), "K": ScorePort(Q, "q", 1, X, "x", other=W_Q)}
    return Q @ K.transpose(-1, -2), temperature * math.sqrt(W_Q.shape[1]), ports, ("Q", "K")


def as_batch(X: object) -> Float[Tensor, "s l d"]:
    """A checked batch of sequences, from (L, d) or (B, L, d)."""
    checked = check_tensor("X", X, (2, 3))
    return checked if checked.ndim == 3 else checked[None]
