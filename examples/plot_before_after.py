"""
Before and after training
=========================

A hundred steps of training raise the curvature of single blocks up to fifteenfold, and of others hardly at all.
``compare`` sets two states of a model side by side with paired intervals: both are measured with the same probes.
"""

# %%
import matplotlib.pyplot as plt
import torch

import hessianlens as hl

model, task = hl.models.Transformer(layers=2, d_model=16, d_mlp=32, norm="pre"), hl.tasks.Addition(digits=2)
data = task.batch(32, seed=1234)


def measured():
    problem = hl.problem(model, data, task.cross_entropy, dtype=torch.float64)
    return hl.measure(
        problem, ["layer*.attn.?", "layer*.mlp.in", "layer*.mlp.out"], budget=None, probes=20, seed=0, progress=False
    )


before = measured()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(100):
    batch = task.batch(64, seed=step)
    loss = task.cross_entropy(model(batch["tokens"]), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
after = measured()

# %%
comparison = before.compare(after)
comparison.plot()
plt.show()

# %%
print(comparison)

# %%
# ``after.page("change.html", before=before)`` writes a page; from the command line: ``hessianlens compare A B``. See
# :doc:`/how-to/looking`.
