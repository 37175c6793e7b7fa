"""
A visual tour of one Hessian
============================

The Hessian of an attention layer is a 3 x 3 grid of blocks, and the blocks differ in size by orders of magnitude.
"""

# %%
# A layer with its tokens and its loss is all that is needed.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

generator = torch.Generator().manual_seed(1)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)
layer = hl.SelfAttention.random(d_model=8, d_k=4, seed=0, dtype=torch.float64)
H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
H.full[:].plot()
plt.show()
