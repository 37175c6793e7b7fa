"""
Curvature during training
=========================

One line after each step records the largest eigenvalue, trace, signs and attention entropy of a run, within a share
of the time that you allow, and changes nothing in the run.
"""

# %%
# A plain training loop. ``overhead=None`` measures every ten steps whatever it takes; the default keeps within a
# tenth of the time.

import matplotlib.pyplot as plt
import torch

import hessianlens as hl

model, task = hl.models.Transformer(layers=2, d_model=16, heads=2, d_mlp=32, norm="pre"), hl.tasks.Addition(digits=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
probe = hl.problem(model, task.batch(16, seed=1234), task.cross_entropy)
monitor = hl.Monitor(probe, ["layer*.attn.q", "layer*.attn.v"], optimizer=optimizer, every=20, overhead=None)

for step in range(1, 121):
    batch = task.batch(32, seed=step)
    loss = task.cross_entropy(model(batch["tokens"]), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.step(loss=loss)

# %%
# Sharpness of the whole model, with the stability threshold of gradient descent with momentum, 2 (1 + m) / lr.

monitor.plot()
plt.show()

# %%
# The trace of the query and value blocks along the run.

monitor.plot(quantity="trace")
plt.show()

# %%
# **Hugging Face and Lightning.** ``monitor.attach(trainer)`` hands over step, optimiser and loss, and puts the
# numbers into the trainer's own log, and with it into Weights & Biases or TensorBoard:
#
# .. code-block:: python
#
#    monitor = hl.Monitor(model, data=probe_batch, optimizer=None)
#    trainer = transformers.Trainer(model, args, train_dataset=data)      # or lightning.Trainer(...)
#    monitor.attach(trainer)
#    trainer.train()
#
# **Saved checkpoints.** ``hessianlens watch runs/checkpoint-* --data text.txt --out run.html`` measures the same
# afterwards.

print(monitor)

# %%
# All quantities, their cost, and resuming: :doc:`/how-to/monitor`. What the threshold means: :doc:`/how-to/monitor`,
# "The edge of stability". Heads in trouble: :doc:`/how-to/attention-health`.
