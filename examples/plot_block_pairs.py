"""
Block pairs: how block-diagonal is a model?
===========================================

Block-diagonal approximations leave out nearly all of the Hessian: in a two-layer Transformer at initialisation 4 % of
its squared norm lies in the blocks of single weight matrices, 56 % within the two layers.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

model = hl.models.Transformer(layers=2, d_model=16, d_mlp=32, dtype=torch.float64)
task = hl.tasks.Addition()
problem = hl.problem(model, task.batch(16, seed=0), task.cross_entropy)
blocks = ["layer*.attn.?", "layer*.mlp.in", "layer*.mlp.out"]
pairs = hl.block_pair_norms(problem, blocks, probes=20, seed=0)
pairs.plot()
plt.show()

# %%
# The share of the squared Frobenius norm that the diagonal blocks hold.

names = [block.name for block in problem.select(blocks)]
squares = torch.tensor([[pairs[row, column].value ** 2 for column in names] for row in names])
print(f"{squares.trace() / squares.sum():.0%} of the squared norm is in diagonal blocks")
for layers in (("layer0",), ("layer1",)):
    inside = [i for i, name in enumerate(names) if name.startswith(layers)]
    print(f"{layers[0]}: {squares[inside][:, inside].sum() / squares.sum():.0%} of it within the layer")

# %%
# One pair is an operator too, with the same methods.

print(hl.ggn(problem, rows="layer0.attn.q", cols="layer1.mlp.in"))

# %%
# Curvature along one step of an optimiser, by pairs of blocks: :doc:`/how-to/updates`. Heterogeneity of spectra
# between blocks: :doc:`/how-to/models`.
