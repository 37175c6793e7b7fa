"""Toy models of the literature: a configurable decoder, stacks of linear attention, linear MLPs."""

from hessianlens.models.capture import AttentionCapture
from hessianlens.models.linear_attention import LinearAttentionStack
from hessianlens.models.linear_mlp import LinearMLP
from hessianlens.models.transformer import Transformer

__all__ = ["AttentionCapture", "LinearAttentionStack", "LinearMLP", "Transformer"]
