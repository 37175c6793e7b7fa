"""
The edge of stability of the optimiser you use
==============================================

Gradient descent trains at ``2 / lr``. Sign descent trains at a line of its own, in its own norm.
"""

# %%
# The sharpness of sign descent is the largest curvature over all sign vectors, and its threshold is twice the 1-norm of
# the gradient over the learning rate. A monitor knows both from the class of the optimiser.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl


class SignSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.sign())


task = hl.tasks.Addition(digits=1)
batch = task.batch(64, seed=0)


def watched(make, steps):
    model = hl.models.Transformer(d_model=8, d_mlp=16, vocab=task.vocab, context=task.context, dtype=torch.float64)
    optimizer = make(model.parameters())
    problem = hl.problem(model, batch, task.cross_entropy)
    monitor = hl.Monitor(problem, optimizer=optimizer, every=steps // 25, overhead=None, quantities=("edge",))
    for _ in range(steps):
        optimizer.zero_grad()
        task.cross_entropy(model(batch["tokens"]), batch).backward()
        optimizer.step()
        monitor.step()
    return monitor


runs = {
    "gradient descent": watched(lambda p: torch.optim.SGD(p, lr=0.2), 250),
    "sign descent": watched(lambda p: SignSGD(p, lr=0.01), 250),
}

# %%
# Both rise to their dashed line and stay there.

fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for ax, (name, monitor) in zip(axes, runs.items(), strict=True):
    monitor.plot(ax, "sharpness")
    ax.set_title(name)
plt.show()

# %%
# Thresholds of each optimiser: :doc:`/how-to/monitor`. A run with all quantities: :doc:`plot_training`.
