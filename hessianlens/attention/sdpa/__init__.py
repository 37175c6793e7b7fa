"""Attention that can be differentiated twice, over chunks of query rows: nothing of size L x S is kept."""

from hessianlens.attention.sdpa.call import scaled_dot_product_attention

__all__ = ["scaled_dot_product_attention"]
