"""
Long context
============

``hl.scaled_dot_product_attention`` differentiates twice in memory that grows with the length alone: at length 8192 a
gradient penalty keeps 4 MB per head, where one matrix of attention weights takes 268 MB.
"""

# %%
# PyTorch's fused kernels have no second derivative. This function is a drop-in for
# ``torch.nn.functional.scaled_dot_product_attention`` that has one.

import time

import matplotlib.pyplot as plt
import torch

import hessianlens as hl


def gradient_penalty(length):
    """Seconds of a gradient penalty, and megabytes of all tensors that wait for the second derivative."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 16, generator=generator).requires_grad_() for _ in range(3))
    saved = []
    began = time.perf_counter()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        out = hl.scaled_dot_product_attention(q, k, v, is_causal=True)
        (slope,) = torch.autograd.grad(out.square().mean(), q, create_graph=True)
        penalty = (slope.norm() - 1) ** 2
    penalty.backward()
    assert torch.isfinite(q.grad).all()
    return time.perf_counter() - began, sum({t.data_ptr(): t.numel() * t.element_size() for t in saved}.values()) / 1e6


lengths = [1024, 2048, 4096, 8192]
seconds, megabytes = zip(*(gradient_penalty(length) for length in lengths), strict=True)
for length, second, size in zip(lengths, seconds, megabytes, strict=True):
    print(f"length {length}: {second:.2f} s, {size:.1f} MB kept; one matrix of weights: {4e-6 * length**2:.1f} MB")

# %%
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.loglog(lengths, megabytes, "o-", label="kept for the second derivative")
ax.loglog(lengths, [4e-6 * length**2 for length in lengths], "--", label="one matrix of attention weights")
ax.set(xlabel="length of the sequence", ylabel="megabytes")
ax.set_xticks(lengths, lengths)
ax.minorticks_off()
ax.legend()
plt.show()

# %%
# A model needs no change: ``hl.problem`` puts this function in place of the fused one while it differentiates. One
# Hessian-vector product (HVP) with a block of the loss's Hessian, at length 8192.


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50)
        self.q, self.k, self.v = (torch.nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)[:, None]
        attention = torch.nn.functional.scaled_dot_product_attention
        return self.head((x + attention(self.q(x), self.k(x), self.v(x), is_causal=True))[:, 0])


torch.manual_seed(0)
tokens = torch.randint(50, (1, 8192))
problem = hl.problem(Model(), (tokens, tokens.roll(-1)), "cross_entropy", attention="chunked", check=False)
op = hl.hessian(problem, "q.weight", method="hvp")
began = time.perf_counter()
product = op @ torch.ones(op.shape[1])
print(f"HVP with the query block at length 8192: norm {product.norm():.3g}, {time.perf_counter() - began:.1f} s")

# %%
# Everything it takes, and what it does not: :doc:`/how-to/attention-function`. Limits of memory:
# :doc:`/how-to/memory`.
