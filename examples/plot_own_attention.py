"""
Your own attention variant: QK-norm and sinks
=============================================

Normalising queries and keys closes the gap between the query and the value block: their ratio no longer depends on
the scale of the tokens. A sink leaves the gap as it is.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

generator = torch.Generator().manual_seed(0)
X, Y = torch.randn(2, 12, 8, generator=generator, dtype=torch.float64)
norm = hl.attention.QueryKeyNorm("rms", gain=torch.ones(4, dtype=torch.float64))
variants = {
    "plain softmax": {},
    "QK-norm": {"query_norm": norm, "key_norm": norm},
    "softmax off by one (a sink)": {"sink": 0.0},
}
scales = torch.logspace(-1.5, 0.3, 10, dtype=torch.float64)

figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for label, options in variants.items():
    layer = hl.SelfAttention.random(8, 4, seed=0, dtype=torch.float64, **options)
    grids = [hl.attention_hessian(layer, scale * X, hl.SquareLoss(Y)).outer for scale in scales]
    ratios = [float(grid["Q", "Q"].frobenius_norm() / grid["V", "V"].frobenius_norm()) for grid in grids]
    print(f"{label:28} {ratios[0]:.2g} to {ratios[-1]:.2g}")
    ax.loglog(scales, ratios, "--" if "sink" in label else "-", label=label)
ax.set(xlabel="scale of the tokens", ylabel="query block / value block (Gauss-Newton)")
ax.legend()
plt.show()

# %%
# An attention that nobody has written yet is a module like any other. In the last layer its blocks are exact wherever
# the operations between the weights and the scores are recognised; elsewhere they are exact at the linear maps, or
# come from HVPs.


class ScaledByNorm(torch.nn.Module):
    """Cosine attention with a learned temperature."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.temperature = torch.nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        unit = torch.nn.functional.normalize
        scores = self.temperature * unit(self.q(x), dim=-1) @ unit(self.k(x), dim=-1).mT
        return scores.softmax(-1) @ self.v(x)


torch.manual_seed(0)
problem = hl.problem(ScaledByNorm().double(), (X[None], Y[None]), "square")
for name in problem.blocks:
    op = hl.hessian(problem, name)
    print(f"{name:12} |H| = {op.frobenius_norm():.4g}, exact: {op.exact}; {op.why}")

# %%
# The derivation: :doc:`/explanation/query-key-norm`. How to add a variant: :doc:`/how-to/own-attention`.
