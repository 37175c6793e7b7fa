"""
Exact against estimated
=======================

With twenty random probes, one Hessian-vector product (HVP) each, the norm of a block has an interval from -12 % to
+21 %. The closed form leaves rounding only.
"""

# %%
# The query block of a small Transformer, once in closed form and once from HVPs alone.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

model = hl.models.Transformer(layers=1, d_model=16, d_mlp=32, dtype=torch.float64)
task = hl.tasks.Addition()
problem = hl.problem(model, task.batch(8, seed=0), task.cross_entropy)
exact = hl.hessian(problem, "layer0.attn.q")
print("exact:", exact.exact, "-", exact.why)
truth = float(exact.frobenius_norm())

# %%
# ``method="hvp"`` leaves structure aside: every number then comes from HVPs with random probes, with its 95 %
# interval.

products = hl.hessian(problem, "layer0.attn.q", method="hvp")
counts = [5, 10, 20, 40, 80]
estimates = [hl.frobenius(products, probes=count, seed=1) for count in counts]
for count, estimate in zip(counts, estimates, strict=True):
    print(f"{count:3} probes: {estimate}   error {estimate.value / truth - 1:+.1%}")

# %%
figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
low, high = (torch.tensor([estimate.interval()[end] for estimate in estimates]) for end in (0, 1))
values = torch.tensor([estimate.value for estimate in estimates])
ax.errorbar(counts, values, [values - low, high - values], fmt="o", capsize=4, label="from probes, 95 % interval")
ax.axhline(truth, color="C1", label="exact")
ax.set(xscale="log", xlabel="probes (one HVP each)", ylabel="Frobenius norm of the query block")
ax.set_xticks(counts, counts)
ax.minorticks_off()
ax.legend()
plt.show()

# %%
# Which blocks can be exact, and at what price: :doc:`/how-to/models`. When sampling is the better choice:
# :doc:`/how-to/why-sampled`. How exact "exact" is: :doc:`/explanation/exactness`.
