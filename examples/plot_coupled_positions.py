"""
Attention couples the curvature of positions
============================================

**In front of attention, a change at one position reaches the loss at all that look at it.** In the block of the
position embedding, 22 % of the squared norm lies between different positions with one layer, and 32 % with four.
"""

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

task = hl.tasks.Addition()
data = task.batch(16, seed=0)

# %%
# The Hessian of the position embedding has one row for every position and feature; the norm of the small matrix between
# two positions says how much they are coupled. It is exact.


def coupling(layers: int) -> torch.Tensor:
    model = hl.models.Transformer(layers=layers, d_model=8, heads=2, norm="pre", dtype=torch.float64)
    H = hl.hessian(hl.problem(model, data, task.cross_entropy), "pos").to_dense()
    by_position = H.reshape(18, 8, 18, 8).permute(0, 2, 1, 3).flatten(2).norm(dim=-1)
    return by_position / by_position.max()


depths = (1, 2, 4)
found = {layers: coupling(layers) for layers in depths}

# %%
# Rows and columns are positions of sums such as ``51656+73891=125547``. A loss is read at positions 11 to 16, in front
# of the digits of the answer; all positions before are curved through attention alone, and nothing depends on the last.

fig, axes = plt.subplots(1, 3, figsize=(9, 3.4), sharey=True, layout="constrained")
for ax, (layers, matrix) in zip(axes, found.items(), strict=True):
    image = ax.imshow(matrix.clamp(min=1e-4).log10(), vmin=-4, vmax=0, cmap="viridis")
    ax.set(title=f"{layers} layer{'s' if layers > 1 else ''}", xlabel="position", xticks=range(0, 18, 5))
axes[0].set(ylabel="position", yticks=range(0, 18, 5))
fig.colorbar(image, ax=axes, label="coupling, log10 of the largest")

# %%
# How much of the squared norm lies between different positions:

for layers, matrix in found.items():
    share = 1 - float(matrix.diagonal().square().sum() / matrix.square().sum())
    print(f"{layers} layers: {100 * share:.0f} %")

# %%
# How such blocks are found exactly: :doc:`/explanation/earlier-layers`. Blocks of any model: :doc:`/how-to/models`.
