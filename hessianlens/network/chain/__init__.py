"""A fast lane for models whose attention layers form a chain.

It covers the attention weights and biases below the last layer of `hessianlens.models.Transformer` with one head a
layer, two query-key matrices, no norms, and MLPs that are piecewise linear or missing, under a loss that the closed
form of the last layer takes. Every other block and model goes through the graph.

`links` finds the chain in a model, `layer` has the mathematics of one layer, `ports` that of the blocks whose vectors
enter it, `contractions` the sums that both are made of; `products` carries vectors through the stack, `source` draws
the products of probes.
"""

from hessianlens.network.chain.source import ChainedAttention, ChainSource, chained_attention

__all__ = ["ChainSource", "ChainedAttention", "chained_attention"]
