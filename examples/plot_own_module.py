"""
Your own nn.Module in three lines
=================================

Any module works: blocks are found and get the same names in every architecture, also inside
``nn.MultiheadAttention``, which packs queries, keys and values into one parameter.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

torch.manual_seed(0)
encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
model = torch.nn.Sequential(torch.nn.Embedding(20, 16), encoder, torch.nn.Linear(16, 20)).double()
tokens, labels = torch.randint(20, (2, 8, 10))

# %%
# The three lines.

problem = hl.problem(model, (tokens, labels), "cross_entropy")
norms = hl.block_norms(problem, probes=20, seed=0)
norms.plot()
plt.show()

# %%
# Each line of the table says whether its number is exact or sampled.

print(norms)

# %%
# One block is a linear operator: it multiplies vectors, and fits SciPy and curvlinops.

op = hl.hessian(problem, "layer0.attn.q")
print(op.shape, f"trace {op.trace():.4g}, norm {op.frobenius_norm():.4g}, exact: {op.exact}")
print(op.why)

# %%
# A loss of your own is a function of the model's output and the batch: :doc:`/start/tutorial`. Names of blocks:
# :doc:`/reference/generated/blocks`. A table and a page in one command: :doc:`/how-to/inspect`.
