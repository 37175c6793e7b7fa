"""
Which head worries you?
=======================

One forward pass names the heads that go wrong, while the loss still looks fine.
"""

# %%
# Two models learn to add: one as usual, one without the division of scores by the root of the head's width and at ten
# times the rate.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

task = hl.tasks.Addition(digits=2)


def trained(lr, temperature):
    model = hl.models.Transformer(layers=2, heads=2, d_model=32, d_mlp=64, norm="pre", temperature=temperature, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    problem = hl.problem(model, task.batch(16, seed=1000), task.cross_entropy)
    monitor = hl.Monitor(problem, every=5, overhead=None, quantities=("heads",))
    for step in range(60):
        batch = task.batch(32, seed=step)
        loss = task.cross_entropy(model(batch["tokens"]), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(step, loss=loss)
    return problem, monitor


healthy_problem, healthy = trained(lr=3e-3, temperature=1.0)
failing_problem, failing = trained(lr=3e-2, temperature=0.25)
healthy.alarms, failing.alarms

# %%
# Largest logits along both runs.

fig, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for ax, monitor, title in zip(axes, (healthy, failing), ("healthy", "failing"), strict=True):
    monitor.plot(ax, "largest_logit")
    ax.set_title(title)
plt.show()

# %%
# The heads of the failing model, at this moment: entropy over that of equal weights.

health = hl.attention_health(failing.problem)
health.plot()
plt.show()

# %%
# Alarms, what helps, and the same along a run: :doc:`/how-to/attention-health`. Heads by name: :doc:`plot_gpt2_heads`.
