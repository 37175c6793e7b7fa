"""
A real trained model
====================

Training narrows the gap that theory describes. In SmolLM2-135M the value block is 32 to 470 times the query block at
initialisation; after training it is twice the query block in the middle layers and half of it in the last one.
"""

# %%
# These are the recorded results of ``hessianlens study atlas --preset full``, which ships with the package; nothing
# is run or downloaded here.

import math

import matplotlib.pyplot as plt

from hessianlab.claims.trained import StudyRecord

atlas = StudyRecord("study_atlas")


def gap(weights, layer):
    """Value block over query block: a geometric mean over batches."""
    return math.exp(atlas.mean(f"{weights}, 32 tokens: log values over queries, layer {layer}"))


layers = {"fresh": (0, 6, 15, 29), "trained": (0, 1, 6, 12, 21, 29)}
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for weights, measured in layers.items():
    values = [gap(weights, layer) for layer in measured]
    print(f"{weights:8}", {layer: float(f"{value:.2g}") for layer, value in zip(measured, values, strict=True)})
    ax.semilogy(measured, values, "o-", label=f"{weights} weights")
ax.axhline(1, color="0.6", linewidth=1)
ax.set(xlabel="layer of SmolLM2-135M", ylabel="value block / query block")
ax.legend()
plt.show()

# %%
# More of the trained model's Hessian lies in its diagonal blocks.

for weights in layers:
    print(weights, f"{atlas.mean(f'{weights}, 32 tokens: share in diagonal blocks'):.0%} of the squared norm")

# %%
# **Your own checkpoint** takes one command: ``hessianlens inspect ./my-model --data text.txt --out page.html``. The
# atlas on it: ``hessianlens study atlas --set model=./my-model --set weights=trained``. See :doc:`/how-to/inspect`
# and :doc:`/laboratory/studies`.
