"""
A Llama-like model
==================

Grouped heads, rotary positions, gated MLPs and RMSNorm need no special care: one call measures every block of a Llama
within a budget of time, widest intervals first.
"""

# %%
import matplotlib.pyplot as plt
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hessianlens as hl

torch.manual_seed(0)
config = LlamaConfig(
    num_hidden_layers=2,
    hidden_size=32,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=100,
)
model = LlamaForCausalLM(config)
problem = hl.problem(model, {"input_ids": torch.randint(100, (4, 16))}, dtype=torch.float64)
print(", ".join(problem.blocks))

# %%
# ``hl.measure`` is what the command ``hessianlens inspect`` runs.

measured = hl.measure(problem, budget="10s", seed=0, progress=False)
measured.plot()
plt.show()

# %%
print(measured)

# %%
# Learning rates per block can be read off: ``measured.param_groups(base_lr=3e-4)``; whether they help is another
# question, see :doc:`/how-to/looking`. Which of 250 model types have closed forms: :doc:`/reference/families`.
