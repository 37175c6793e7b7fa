"""
A visual tour of one Hessian
============================

The Hessian of an attention layer is a 3 x 3 grid of blocks. Here the value block is sixteen times as large as the
query block, 43 % of the eigenvalues are negative, and every number is exact.
"""

# %%
# A layer, its tokens and its loss are all that is needed. Tokens have scale 0.2, as behind an embedding at
# initialisation.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

generator = torch.Generator().manual_seed(1)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)
layer = hl.SelfAttention.random(d_model=8, d_k=4, seed=0, dtype=torch.float64)
H = hl.attention_hessian(layer, 0.2 * X, hl.SquareLoss(Y))
H.full[:].plot()
plt.show()

# %%
# The Hessian is the sum of a Gauss-Newton (GGN) part and a functional part. The query block is almost entirely
# functional; the value block is entirely Gauss-Newton, since values enter linearly.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
H.outer[:].plot(ax=axes[0])
axes[0].set_title("Gauss-Newton part")
H.functional[:].plot(ax=axes[1])
axes[1].set_title("functional part")
plt.show()

# %%
# Every entry, blue above zero and red below, of the block of queries with keys.

H.full["Q", "K"].plot()
plt.show()

# %%
# The whole spectrum: many negative eigenvalues, although the loss is convex in the output.

eigenvalues = torch.linalg.eigvalsh(H.full[:].to_dense())
print(f"{int((eigenvalues < -1e-12).sum())} of {len(eigenvalues)} eigenvalues are negative")
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(eigenvalues.flip(0), ".")
ax.set(xlabel="index", ylabel="eigenvalue")
ax.set_yscale("symlog", linthresh=1e-6)
ax.axhline(0, color="0.7", linewidth=1)
plt.show()

# %%
# Continue with :doc:`plot_softmax_sigmoid`, :doc:`plot_own_module`, or :doc:`the derivation </explanation/hessian>`.
