"""
Spectrum and density of a block
===============================

The spectrum of an MLP block is a bulk at zero with a few large positive outliers; 7 % of its eigenvalues lie clearly
below zero.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

model = hl.models.Transformer(layers=2, d_model=16, d_mlp=32, dtype=torch.float64)
task = hl.tasks.Addition()
problem = hl.problem(model, task.batch(16, seed=0), task.cross_entropy)
op = hl.hessian(problem, "layer0.mlp.in")

# %%
# Stochastic Lanczos quadrature (SLQ) gives the density from 4 probes of 48 HVPs each; the operator itself never
# becomes a matrix.

density = hl.density(op, probes=4, steps=48, seed=0, method="lanczos")
density.plot()
plt.show()

# %%
# Shares of eigenvalues by sign, and the largest ones.

print(hl.inertia(density, relative=1e-3))
largest = hl.eigenvalues(op, 5)
print("largest:", [f"{float(value):.4g}" for value in largest.values])

# %%
# This block has 512 parameters, so its eigenvalues can be had exactly as well.

exact = torch.linalg.eigvalsh(op.to_dense())
print(f"largest, dense: {exact[-1]:.4g}; negative: {(exact < -1e-3 * exact[-1]).double().mean():.0%}")
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.hist(exact, bins=80)
ax.set(yscale="log", xlabel="eigenvalue", ylabel="count")
plt.show()

# %%
# All estimators and their intervals: :doc:`/how-to/models`. Spectra of all blocks of a model on one page:
# :doc:`/how-to/inspect`.
