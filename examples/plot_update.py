"""
What did this step do?
======================

This step of AdamW was short: the loss is nearly straight along it, and the quadratic model would go six times as far.
"""

# %%
# A model in training, and the optimiser that is about to make its next step, with the gradients of a backward pass.
# Asking for the step does not make it: neither model nor optimiser change.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

task = hl.tasks.Addition(digits=2)
model = hl.models.Transformer(layers=2, heads=2, d_model=16, d_mlp=32, norm="pre")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
batch = task.batch(64, seed=0)
for _ in range(40):
    task.cross_entropy(model(batch["tokens"]), batch).backward()
    optimizer.step()
    optimizer.zero_grad()
task.cross_entropy(model(batch["tokens"]), batch).backward()

problem = hl.problem(model, batch, task.cross_entropy)
step = hl.directional(problem, optimizer, by="block")
step

# %%
# The loss along the step: where the dots leave the curve, the quadratic model is no longer to be trusted.

step.loss_picture().plot()
plt.show()

# %%
# Pairs of groups. Red lowers the loss; ``step.page("step.html")`` has all of it on one page.

step.pair_picture().plot()
plt.show()

# %%
# Updates, groups and pages: :doc:`/how-to/updates`. Which block needs a smaller rate: :doc:`/how-to/learning-rates`.
