"""One attention head: its parameters, and how it is evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.options import AttentionOptions
from hessianlens.attention.query_key_norm import QueryKeyNorm
from hessianlens.attention.sides import Side
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.attention.tokens import KeyTokens, as_batch, as_key_batch
from hessianlens.attention.value_gate import GatedValues, ValueGate
from hessianlens.checks import check_dense, check_same_kind, check_shape, check_tensor
from hessianlens.display import DisplayableRows, Entries, Picture
from hessianlens.errors import InputError, check_number, check_that, expect
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from typing import Self

    from matplotlib.axes import Axes

_SMALL = 2**15
"""Weights that are shown one by one."""
NORMS = {"Q": "query_norm", "K": "key_norm"}
"""Options that are norms, by the weight in front of them."""
VALUES = "values"
"""The name of the values where they stand in for the parameters that they are made of."""
_NORMED = {"Q": "queries", "K": "keys"}


@dataclass(frozen=True, eq=False)
class RawScores:
    """Products of queries and keys, and how parameters enter them.

    Attributes:
        raw: ``q_i . k_l``, ``[s, i, l]``.
        scale: What they are divided by.
        ports: The parameters.
        pair: The weights of queries and keys, if there are two.
        query_side: The queries; None where queries and keys are one matrix.
        key_side: The keys.
    """

    raw: Tensor
    scale: float
    ports: dict[str, ScorePort]
    pair: tuple[str, str] | None = None
    query_side: Side | None = None
    key_side: Side | None = None


class AttentionHead(DisplayableRows, AttentionOptions, ABC):
    """A single head with named matrix parameters."""

    names: tuple[str, ...] = ()
    """Names of the parameters, in the order of the Hessian's blocks."""

    def __post_init__(self) -> None:
        """Weights are finite matrices of one kind with matching shapes."""
        self._check_options()
        weights = {f"W_{name}": w for name, w in self.parameters.items()}
        check_same_kind({name: w for name, w in weights.items() if isinstance(w, Tensor)})
        for name, weight in weights.items():
            check_tensor(name, weight, (2,))
        self._check_shapes()
        if self.gate is not None:
            wide = self.gate.shape[1] != 1
            shape = (self.d_model, self.d_v if wide else 1)
            check_shape("gate", self.gate, shape, "the width of tokens, and that of the output or one")
        if isinstance(self.value_gate, ValueGate):
            self.value_gate.check_widths(self.d_kv, self.d_v)
        self._prepare()

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters by name, in block order; gains, shifts and a sink are rows."""
        found = {name: getattr(self, f"W_{name}") for name in self.names}
        for name, norm in self._norms.items():
            found |= {f"{own}_{name}": vector[None] for own, vector in norm.parameters.items()}
        found |= {"sink": self.sink.reshape(1, 1)} if isinstance(self.sink, Tensor) else {}
        found |= {"value_gate": self.value_gate.weight} if isinstance(self.value_gate, ValueGate) else {}
        return found if self.gate is None else {**found, "gate": self.gate}

    @property
    def _norms(self) -> dict[str, QueryKeyNorm]:
        """Norms of queries and keys, by the weight in front of them."""
        return {}

    def with_parameters(self, parameters: Mapping[str, Tensor]) -> Self:
        """The same layer with other parameters."""
        check_names(parameters, self.parameters, f"this layer has {', '.join(self.parameters)}")
        changes: dict[str, Any] = {f"W_{name}": parameters[name] for name in self.names if name in parameters}
        for name, norm in self._norms.items():
            found = {own: parameters[f"{own}_{name}"] for own in norm.parameters if f"{own}_{name}" in parameters}
            changes[NORMS[name]] = norm.with_parameters({own: row.reshape(-1) for own, row in found.items()})
        if "sink" in parameters:
            changes["sink"] = parameters["sink"].reshape(())
        if "gate" in parameters:
            changes["gate"] = parameters["gate"]
        if "value_gate" in parameters and isinstance(self.value_gate, ValueGate):
            changes["value_gate"] = self.value_gate.with_weight(parameters["value_gate"])
        return replace(self, **changes)

    @property
    def d_model(self) -> int:
        """Width of the input tokens."""
        return self.parameters[self.names[0]].shape[0]

    @property
    @abstractmethod
    def d_v(self) -> int:
        """Width of the output."""

    def _check_options(self) -> None:
        """Options that are parameters are what they have to be."""
        if isinstance(self.sink, Tensor):
            expect(self.sink.numel() == 1, f"sink: got shape {tuple(self.sink.shape)}, expected one entry.")
        elif self.sink is not None:
            check_number("sink", self.sink)
        if isinstance(self.value_gate, Tensor):
            object.__setattr__(self, "value_gate", ValueGate(self.value_gate))
        elif self.value_gate is not None and not isinstance(self.value_gate, ValueGate):
            check_that(False, "value_gate", self.value_gate, "a ValueGate, its weight or None")

    @abstractmethod
    def _check_shapes(self) -> None: ...

    @abstractmethod
    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        """Scores before scaling, and how the parameters enter them."""

    @abstractmethod
    def _value_map(self, X: Tensor) -> Tensor:
        """``V``, the rows that attention averages."""

    @abstractmethod
    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        """The value ports and the pair of factors."""

    def _value_side(self) -> Side | None:
        """How values are made of their parameters; None where they are linear in their tokens."""
        return None

    @property
    def d_kv(self) -> int:
        """Width of the tokens that keys and values are made of."""
        return self.d_model

    def _key_tokens(self, X: Tensor, X_kv: Tensor | None) -> KeyTokens:
        """What keys and values are made of: the tokens themselves, or others of their own."""
        if X_kv is None:
            expect(self.d_kv == self.d_model, f"X_kv: none given, expected tokens of width {self.d_kv} for the keys.")
            return KeyTokens.of(X, self.sink is not None)
        check_dense("X_kv", X_kv, "3-dimensional torch tensor")
        check_same_kind({"X": X, "X_kv": X_kv})
        expect(
            X_kv.ndim == 3 and len(X_kv) == len(X) and X_kv.shape[-1] == self.d_kv,
            f"X_kv: got shape {tuple(X_kv.shape)}, expected {number_of(len(X), 'sequence')} of "
            f"tokens of width {self.d_kv}.",
        )
        return KeyTokens.of(X_kv, self.sink is not None)

    def attend(self, X: Float[Tensor, "s i d"], X_kv: Float[Tensor, "s l e"] | None = None) -> HeadState:
        """Evaluate the head at a batch, before any gate, and describe how each parameter enters.

        Args:
            X: Tokens that queries are made of.
            X_kv: Tokens that keys and values are made of, in cross-attention; X itself if omitted.
        """
        check_dense("X", X, "3-dimensional torch tensor")
        expect(X.ndim == 3, f"X: got shape {tuple(X.shape)}, expected a batch of sequences, (B, L, d).")
        check_same_kind({"X": X, f"W_{self.names[0]}": self.parameters[self.names[0]]})
        expect(
            X.shape[-1] == self.d_model,
            f"X: got tokens of width {X.shape[-1]}, expected {self.d_model} (the rows of W_{self.names[0]}).",
        )
        keys = self._key_tokens(X, X_kv)
        scores = self._raw_scores(X, keys)
        ports, T, visible = self._with_sink(scores, *self._masked(scores.raw / scores.scale))
        A = self._activation.value(T, visible)
        value_ports, value_pair = self._value_ports(keys.rows, A)
        V, gated = self._value_map(keys.rows), self._gated(keys.rows)
        if gated is not None:
            V, value_ports, value_pair = gated.rows, {VALUES: gated.port(A)}, None
        state = HeadState(
            *(X, keys.rows, T, visible, A, V, scores.scale, self._activation),
            ports,
            value_ports,
            scores.pair,
            value_pair,
        )
        if scores.query_side is None or scores.key_side is None:
            return state
        return state.with_sides(scores.query_side, scores.key_side, self._value_side())

    def gated_values(self, X: Tensor, X_kv: Tensor | None = None) -> GatedValues | None:
        """How the values are made, if there is a gate in them; the head has one parameter `VALUES` in its place."""
        return self._gated(self._key_tokens(X, X_kv).rows)

    def _gated(self, rows: Tensor) -> GatedValues | None:
        if not isinstance(self.value_gate, ValueGate):
            return None
        ports, pair = self._value_ports(rows, rows.new_zeros(len(rows), 0, rows.shape[1]))
        return GatedValues(self.value_gate, rows, self._value_map(rows), ports, pair)

    def _masked(self, T: Tensor) -> tuple[Tensor, Tensor]:
        """Scores with the bias, and which of them take part; a sink always does."""
        keys = T.shape[2] - (self.sink is not None)
        visible, bias = self._masking.resolve(T.shape[0], T.shape[1], T.dtype, T.device, keys)
        if self.sink is not None:
            visible = torch.nn.functional.pad(visible, (0, 1), value=True)
            bias = None if bias is None else torch.nn.functional.pad(bias, (0, 1))
        return T if bias is None else T + bias, visible

    def _with_sink(self, scores: RawScores, T: Tensor, visible: Tensor) -> tuple[dict[str, ScorePort], Tensor, Tensor]:
        """The scores with the logit of the sink, a score port for it if it is a parameter, and what is visible."""
        if self.sink is None:
            return scores.ports, T, visible
        last = T.new_zeros(T.shape[-1])
        last[-1] = 1
        if not isinstance(self.sink, Tensor):
            return scores.ports, T + float(self.sink) * last, visible
        ones = T.new_ones(*T.shape[:2], 1)
        column = (scores.scale * last)[None, :, None].expand(len(T), -1, -1)
        port = ScorePort(ones, "1", 0, column, "e")
        return {**scores.ports, "sink": port}, T + self.sink.reshape(()) * last, visible

    def attention(
        self, X: Float[Tensor, "*s i d"], X_kv: Float[Tensor, "*s l e"] | None = None
    ) -> Float[Tensor, "*s i l"]:
        """The attention weights ``A``, for `attention_entropy`, the moments and plots; without that of a sink."""
        weights = self.attend(as_batch(X), as_key_batch(X, X_kv)).weights
        weights = weights if self.sink is None else weights[..., :-1]
        return weights[0] if X.ndim == 2 else weights

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {w.shape[0]}x{w.shape[1]}" for name, w in self.parameters.items())
        own = [str(self._activation)]
        own += ["causal"] if self.causal else []
        own += [f"{name} {tuple(t.shape)}" for name, t in (("mask", self.mask), ("bias", self.bias)) if t is not None]
        own += [f"temperature {self.temperature:g}"] if self.temperature != 1 else []
        own += [f"{norm} of {_NORMED[name]}" for name, norm in self._norms.items()]
        own += [] if self.sink is None else [f"sink {float(self.sink):g}"]
        own += [] if self.gate is None else ["gated"]
        own += [] if self.value_gate is None else [str(self.value_gate)]
        dtype = str(self.parameters[self.names[0]].dtype).removeprefix("torch.")
        return f"{type(self).__name__} {sizes}; {', '.join(own)}, {dtype}"

    def _records(self) -> list[dict[str, Any]]:
        return [weight_row(name, weight) for name, weight in self.parameters.items()]

    def _picture(self, asked: bool) -> Picture | None:
        """The weights side by side, those with most rows first to set the height."""
        weights = [self.parameters[name].detach() for name in self.names]
        if not asked and sum(w.numel() for w in weights) > _SMALL:
            return None
        height = max(len(w) for w in weights)
        padded = [torch.nn.functional.pad(w, (0, 0, 0, height - len(w))) for w in weights]
        sides = tuple((f"W_{name}", self.parameters[name].shape[1]) for name in self.names)
        return Entries(torch.cat(padded, 1).tolist(), "weights", columns=sides)

    def plot(self, ax: Axes | None = None, X: Tensor | None = None) -> Axes:
        """Draw the weights, or with tokens the attention between them.

        Args:
            ax: Matplotlib's axes; those of a new figure if omitted.
            X: Tokens, (L, d) or a batch (B, L, d), of which the first sequence is drawn.
        """
        return super().plot(ax) if X is None else self.attend(as_batch(X)).plot(ax)

    def __call__(
        self, X: Float[Tensor, "*s i d"], X_kv: Float[Tensor, "*s l e"] | None = None
    ) -> Float[Tensor, "*s i f"]:
        """``F = A X_kv W_V``, gated where there is a gate, differentiable by autograd; X_kv is X if omitted."""
        batch = as_batch(X)
        out = self.attend(batch, as_key_batch(X, X_kv)).output
        out = out if self.gate is None else out * torch.sigmoid(batch @ self.gate)
        return out[0] if X.ndim == 2 else out


def weight_row(name: str, weight: Tensor) -> dict[str, Any]:
    """A weight in a table."""
    return {
        "weight": f"W_{name}",
        "rows": weight.shape[0],
        "columns": weight.shape[1],
        "norm": float(weight.detach().norm()),
    }


def check_names(given: object, known: Container[object], hint: str) -> None:
    """Weights by name, all of them known."""
    if not isinstance(given, Mapping):
        raise InputError(f"parameters: got {type(given).__name__}, expected a mapping from names to tensors; {hint}.")
    for name in given:
        expect(name in known, f"parameters: unknown name {name!r}; {hint}.")
