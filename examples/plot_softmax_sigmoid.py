"""
Softmax against sigmoid
=======================

Softmax is not what separates the value block from the query block: sigmoid separates them more, tanh not at all. What
decides is a(0), the weight that an activation gives to a score of zero.
"""

# %%
# Value block over query block, for tokens of growing scale; the same weights and tokens for every activation.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)
scales = torch.logspace(-1.5, 0, 10, dtype=torch.float64)


def value_over_query(activation, scale):
    layer = hl.SelfAttention.random(8, 4, seed=0, dtype=torch.float64, activation=activation)
    H = hl.attention_hessian(layer, scale * X, hl.SquareLoss(Y))
    return float(H.full["V", "V"].frobenius_norm() / H.full["Q", "Q"].frobenius_norm())


figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for activation, style in {"softmax": "-", "sigmoid": "-", "exp": "-", "tanh": "--", "relu": "--"}.items():
    ratios = [value_over_query(activation, scale) for scale in scales]
    ax.loglog(scales, ratios, style, label=f"{activation}, {ratios[0]:.3g} at the left")
ax.set(xlabel="scale of the tokens", ylabel="value block / query block")
ax.legend(title="solid: a(0) is not 0; dashed: a(0) = 0", fontsize=8)
plt.show()

# %%
# The expansion of an activation at zero predicts the power with which each block grows. ``None``: the block is zero.

for activation in ("softmax", "sigmoid", "tanh"):
    powers = {block: hl.layer.predicted_growth(activation, "outer", block, block) for block in "QV"}
    print(f"{activation:8} Gauss-Newton part: Q grows with the power {powers['Q']}, V with {powers['V']}")

# %%
# To move it yourself: :doc:`explore </how-to/explore>`. The claims about it: :doc:`ledger
# </laboratory/generated/ledger>`. Related: :doc:`plot_own_activation`, :doc:`plot_layer_norm`.
