"""One attention layer: activations, masks, parameterisations, moments and entropy."""

from hessianlens.attention.activations import Activation
from hessianlens.attention.head import AttentionHead
from hessianlens.attention.layer import (
    CrossAttention,
    FactoredValueAttention,
    MultiHeadAttention,
    SelfAttention,
    SingleMatrixAttention,
)
from hessianlens.attention.moments import (
    attention_entropy,
    first_moment,
    second_moment,
    third_moment,
    third_moment_along,
)
from hessianlens.attention.query_key_norm import QueryKeyNorm
from hessianlens.attention.rotary import RotaryAttention, rotary_tables
from hessianlens.attention.sdpa import scaled_dot_product_attention
from hessianlens.attention.value_gate import ValueGate

__all__ = [
    "Activation",
    "AttentionHead",
    "CrossAttention",
    "FactoredValueAttention",
    "MultiHeadAttention",
    "QueryKeyNorm",
    "RotaryAttention",
    "SelfAttention",
    "SingleMatrixAttention",
    "ValueGate",
    "attention_entropy",
    "first_moment",
    "rotary_tables",
    "scaled_dot_product_attention",
    "second_moment",
    "third_moment",
    "third_moment_along",
]
