"""
One query-key matrix or two
===========================

Writing the scores with two matrices instead of one adds a part to the Hessian whose eigenvalues come in pairs plus
and minus: half of them negative, each repeated once per head dimension. With one merged matrix that part does not
exist.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)
two = hl.SelfAttention.random(8, 4, seed=0, dtype=torch.float64)
one = hl.SingleMatrixAttention(two.W_Q @ two.W_K.T / 4**0.5, two.W_V)
H_two = hl.attention_hessian(two, X, hl.SquareLoss(Y))
H_one = hl.attention_hessian(one, X, hl.SquareLoss(Y))
print("same output:", torch.allclose(two(X), one(X)))

# %%
# The pairs come from the singular values of one 8 x 8 matrix.

pairs = hl.layer.eigenvalue_pairs(H_two)
print(pairs)
pairs.plot()
plt.show()

# %%
# The whole query-key spectrum in both ways of writing the same function.

figure, axes = plt.subplots(1, 2, figsize=(9, 3.3), layout="constrained", sharey=True)
for ax, title, matrix in (
    (axes[0], "two matrices", H_two.full[["Q", "K"], ["Q", "K"]]),
    (axes[1], "one matrix", H_one.full["QK", "QK"]),
):
    values = torch.linalg.eigvalsh(matrix.to_dense()).flip(0)
    ax.plot(values, ".")
    ax.axhline(0, color="0.7", linewidth=1)
    ax.set(title=f"{title}: {(values < -1e-10).double().mean():.0%} negative", xlabel="index")
axes[0].set_ylabel("eigenvalue")
plt.show()

# %%
# Derivation, rank and gauge directions: :doc:`/explanation/query-key`.
