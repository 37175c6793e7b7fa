"""The names of this package and the files they come from."""

from .capture import AttentionCapture
from .linear_attention import LinearAttentionStack
from .linear_mlp import LinearMLP
from .transformer import Transformer

__all__ = ["AttentionCapture", "LinearAttentionStack", "LinearMLP", "Transformer"]
