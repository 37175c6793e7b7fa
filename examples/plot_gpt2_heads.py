"""
GPT-2, one attention head at a time
===================================

At initialisation the value block of each head is hundreds of times its query block, and heads of one layer differ by
up to half. Every number is exact.
"""

# %%
# A GPT-2 of Hugging Face from its configuration, so nothing is downloaded. Its fused attention is handled: no change
# to the model.

import matplotlib.pyplot as plt
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hessianlens as hl

torch.manual_seed(0)
config = GPT2Config(
    n_layer=2,
    n_head=4,
    n_embd=32,
    vocab_size=100,
    n_positions=32,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    bos_token_id=0,
    eos_token_id=0,
)
model = GPT2LMHeadModel(config)
batch = {"input_ids": torch.randint(100, (4, 16))}
problem = hl.problem(model, batch, dtype=torch.float64)

# %%
# ``layer1.attn.q.head2`` names the part of one head. A pattern names all of them.

norms = hl.block_norms(problem, ["layer*.attn.q.head*", "layer*.attn.v.head*"], parts=("full",), seed=0)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained", sharey=True)
for layer, ax in enumerate(axes):
    for kind, colour in (("q", "C0"), ("v", "C1")):
        found = [norms[f"layer{layer}.attn.{kind}.head{head}", "full"] for head in range(4)]
        error = torch.tensor([[e.value - e.interval()[0], e.interval()[1] - e.value] for e in found]).T.clamp(min=0)
        ax.errorbar(range(4), [e.value for e in found], error, fmt="o", color=colour, capsize=3, label=kind)
    ax.set(yscale="log", title=f"layer {layer}: {norms[f'layer{layer}.attn.q.head0', 'full'].method}", xlabel="head")
    ax.set_xticks(range(4))
axes[0].set_ylabel("Frobenius norm of the head's block")
axes[0].legend()
plt.show()

# %%
# Logits, entropy, sinks and alarms of each head: :doc:`/how-to/attention-health`. Names of blocks:
# :doc:`/reference/generated/blocks`.
