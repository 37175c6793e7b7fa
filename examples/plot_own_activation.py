"""
Your own activation
===================

Any function of a score, or of a row of scores, can take the place of softmax. Its value at zero predicts whether it
separates the query block from the value block.
"""

# %%
# An elementwise function becomes an activation with its derivatives from autograd. A function of a row needs no
# wrapping.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

Elementwise = hl.attention.activations.ElementwiseFunction
activations = {
    "swish, a(0) = 0": Elementwise(torch.nn.functional.silu, "swish"),
    "softplus, a(0) = 0.69": Elementwise(torch.nn.functional.softplus, "softplus"),
    "row of squares, a(0) = 0": lambda row: row**2,
    "sharp softmax, a(0) = 1/L": lambda row: torch.softmax(3 * row, -1),
}
generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)

ratios = {}
for label, activation in activations.items():
    layer = hl.SelfAttention.random(8, 4, seed=0, dtype=torch.float64, activation=activation)
    H = hl.attention_hessian(layer, 0.1 * X, hl.SquareLoss(Y))
    ratios[label] = float(H.full["V", "V"].frobenius_norm() / H.full["Q", "Q"].frobenius_norm())

# %%
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.barh(
    list(ratios),
    list(ratios.values()),
    color=["C0" if "= 0" in label and "0." not in label else "C1" for label in ratios],
)
ax.set(xscale="log", xlabel="value block / query block, tokens of scale 0.1")
ax.axvline(1, color="0.4", linewidth=1)
plt.show()

# %%
# The powers of the token scale with which the Gauss-Newton blocks QQ and VV grow need no Hessian: they are read off
# the activation's expansion at zero.

for label, activation in list(activations.items())[:2]:
    print(label, [hl.layer.predicted_growth(activation, "outer", *block) for block in ("QQ", "VV")])

# %%
# All activations of the library: :doc:`/reference/generated/activations`. Three functions make one of your own with
# closed derivatives: :doc:`/how-to/own-activation`.
