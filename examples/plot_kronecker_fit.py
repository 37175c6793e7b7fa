"""
How Kronecker is a block?
=========================

KFAC and Shampoo replace a block by one Kronecker product. The nearest one, and what it misses, follow from the sum over
tokens without forming the block.
"""

# %%
# The Gauss-Newton blocks of the last attention layer of a small Transformer.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

task = hl.tasks.Addition(digits=2)
model = hl.models.Transformer(
    d_model=16, d_mlp=32, heads=2, vocab=task.vocab, context=task.context, dtype=torch.float64
)
problem = hl.problem(model, task.batch(8, seed=0), task.cross_entropy)
op = hl.ggn(problem, "layer0.attn.v")
op.kronecker_fit()

# %%
# What is left of the norm after the best sum of so many Kronecker products.

ranks = (1, 2, 4, 8, 16)
fig, ax = plt.subplots()
for name in ("layer0.attn.q", "layer0.attn.k", "layer0.attn.v", "layer0.attn.o"):
    fit = hl.ggn(problem, name).kronecker_fit(max(ranks))
    kept = torch.tensor(fit.singular_values).square().cumsum(0)
    ax.plot(ranks, [max(0.0, 1 - float(kept[r - 1]) / fit.norm**2) ** 0.5 for r in ranks], marker="o", label=name)
ax.set(xlabel="Kronecker products", ylabel="error over norm", ylim=(0, 1))
ax.legend()
plt.show()

# %%
# The sum over tokens: :doc:`/explanation/operators`. How block-diagonal a model is: :doc:`plot_block_pairs`.
