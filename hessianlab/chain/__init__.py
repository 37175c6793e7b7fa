"""A fast lane for models whose attention layers form a chain: what it covers, what it refuses, and why it is there.

Within ``with chain_registered():`` it takes the probes of sampled norms (`hessianlens.block_norms`, method "auto") of
attention weights and biases below the last layer, all vectors of all layers in one pass. It serves Figures 6 and 7 at
their published size; models of users do not have this form.

covers     q, k, v, o and the biases of q, k, v in layers 0 .. n - 2 of `hessianlens.models.Transformer` with one head a
           layer, two query-key matrices, no norms, any residual scale, and MLPs that are missing or piecewise linear
           (ReLU: its slopes are constant around the point), under every loss, data and activation of the scores that
           the closed form of the last layer takes
refuses    several heads, one query-key matrix, norms, MLPs with curvature (GELU), blocks by head, output biases, MLPs
           and embeddings, every model that is not the library's own, operators (`hessianlens.hessian` and the like),
           and problems without the closed form of the last layer; all of these go through the tape of
           `hessianlens.curvature.tape`, or the graph, as does everything with ``method="probes"``

The tape could do all of it, and does it where the chain refuses. On the published setting (three layers, d = 128, 64
sequences of the addition task, six norms a layer by 20 probes, float32, one thread) it takes 2.3 to 2.7 times the time
of the chain, because here the curvature behind every layer is carried as matrices that serve all vectors; that is why
both are kept. Both must give the same numbers: tests compare the chain with dense autograd and with the graph.

`links` finds the chain in a model, `layer` has the mathematics of one layer, `ports` that of the blocks whose vectors
enter it, `contractions` the sums that both are made of; `products` carries vectors through the stack, `source` draws
the products of probes.
"""

from hessianlab.chain.source import chain_registered

__all__ = ["chain_registered"]
