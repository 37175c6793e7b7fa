"""
Layer norm
==========

Layer norm in front of attention (pre-LN) takes the scale of the embedding out of the ratio of value block to query
block: it stays within a factor of eight, where without a norm, or with post-LN, it changes by five orders of
magnitude and more.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

task = hl.tasks.Addition(digits=2)
data = task.batch(8, seed=0)
scales = [0.03, 0.1, 0.3, 1.0, 3.0]


def ratio(norm, scale):
    model = hl.models.Transformer(
        layers=1, d_model=16, d_mlp=32, norm=norm, embedding_std=scale, seed=0, dtype=torch.float64
    )
    problem = hl.problem(model, data, task.cross_entropy)
    norms = hl.block_norms(problem, ["layer0.attn.q", "layer0.attn.v"], parts=("full",), method="exact")
    return norms["layer0.attn.v", "full"].value / norms["layer0.attn.q", "full"].value


figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for norm, label in ((None, "no norm"), ("pre", "pre-LN"), ("post", "post-LN")):
    ratios = [ratio(norm, scale) for scale in scales]
    print(f"{label:8}", *(f"{value:.3g}" for value in ratios))
    ax.loglog(scales, ratios, "o-", label=label)
ax.set(xlabel="scale of the embedding", ylabel="value block / query block")
ax.legend()
plt.show()

# %%
# Depth and layer norm in the figures of the literature: :doc:`/laboratory/figures`. Norms of queries and keys
# instead: :doc:`plot_own_attention`.
