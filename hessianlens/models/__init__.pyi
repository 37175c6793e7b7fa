"""The names of this package and the files they come from."""

from .linear import LinearAttentionStack, LinearMLP
from .transformer import Transformer

__all__ = ["LinearAttentionStack", "LinearMLP", "Transformer"]
