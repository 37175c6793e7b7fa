"""Attention that can be differentiated twice, over chunks of query rows: nothing of size L x S is kept."""

from hessianlens.attention.chunked.call import scaled_dot_product_attention
from hessianlens.attention.chunked.operation import as_one_operation

__all__ = ["as_one_operation", "scaled_dot_product_attention"]
