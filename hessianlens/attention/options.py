"""What attention layers share beside their weights, all optional: activation, masks, temperature, sink and gates."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from hessianlens.attention.activations import Activation, ActivationLike, as_activation
from hessianlens.attention.masks import Masking
from hessianlens.attention.value_gate import ValueGate
from hessianlens.errors import check_flag, check_that, expect


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class AttentionOptions:
    """What the layers share beside their weights.

    Args:
        activation: A name from `attention.activations.ACTIVATIONS`, an `Activation`, or a function of a row.
        causal: Token i sees tokens 0 .. i only.
        mask: Boolean, (L, L) or (B, L, L), True where a token may attend; for S other tokens as keys (L, S), (B, L, S).
        bias: Added to the scores, of the same shapes; minus infinity hides an entry.
        temperature: Divides the scores.
        sink: Logit of one more column of scores, which takes weight and has no value; any activation whose weights sum
            to one. A number is a constant (0 is softmax off by one, ``exp(T_ij) / (1 + sum_l exp(T_il))``); a tensor
            with one entry is a parameter, block ``sink``.
        gate: Weight of an output gate, d x d_V or d x 1; a parameter, block ``gate``. What a token puts out is
            multiplied with ``sigmoid(gate^T x_i)``, entry by entry or as a whole.
        value_gate: A gate of the values, a `ValueGate` or its weight, d x d_V or d x 1; a parameter, block
            ``value_gate``. Every value is multiplied with ``f(value_gate^T x_l)``, a sigmoid unless it says otherwise.
    """

    activation: ActivationLike = "softmax"
    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    temperature: float = 1.0
    sink: float | Tensor | None = None
    gate: Tensor | None = None
    value_gate: ValueGate | Tensor | None = None
    _masking: Masking = field(init=False, repr=False)
    _activation: Activation = field(init=False, repr=False)

    def _prepare(self) -> None:
        positive = isinstance(self.temperature, (int, float)) and 1e-100 <= self.temperature <= 1e100
        check_that(positive, "temperature", self.temperature, "a positive number between 1e-100 and 1e100")
        check_flag("causal", self.causal)
        object.__setattr__(self, "_masking", Masking(self.causal, self.mask, self.bias))
        object.__setattr__(self, "_activation", as_activation(self.activation))
        expect(
            self.sink is None or self._activation.fixed_sum,
            f"sink: got one with {self._activation.name}, expected an activation whose weights sum to one, such as "
            "softmax: in others a further column changes no weight.",
        )
