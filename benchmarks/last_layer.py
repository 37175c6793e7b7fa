"""Every block of the last attention layer of a GPT-2 and of what lies behind it: exactly, or sampled to 1 %."""

from __future__ import annotations

import time
from functools import cache
from statistics import NormalDist

import torch
from torch import Tensor, nn

import hessianlens as hl
from benchmarks.results import PEER, Timing
from hessianlens.problems import Problem

PROBES = 20
WANTED = 0.01
"""Relative standard error that the sampled norms are to reach."""
_STEPS = 60


def last_layer_problem(tiny: bool, trained: bool) -> tuple[Problem, list[str]]:
    """Four layers, d = 256, 1,000 words, 4 x 64 tokens; the blocks from the last attention on."""
    layers, width, vocabulary, sequences, length = (2, 16, 20, 2, 8) if tiny else (4, 256, 1000, 4, 64)
    model = _model(layers, width, vocabulary, length, trained)
    tokens = text(vocabulary, sequences, length, seed=1)
    problem = hl.problem(model, {"input_ids": tokens, "labels": tokens}, check=False)
    last = f"layer{layers - 1}."
    downstream = [n for n in problem.blocks if n.startswith((last, "norm_final", "unembed")) and ".norm1" not in n]
    return problem, downstream


@cache
def _model(layers: int, width: int, vocabulary: int, length: int, trained: bool) -> nn.Module:
    model = gpt2(layers, width, vocabulary, length)
    if trained:
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(_STEPS):
            batch = text(vocabulary, 8, length, seed=100 + step)
            optimiser.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            optimiser.step()
    return model.eval()


def gpt2(layers: int, width: int, vocabulary: int, length: int) -> nn.Module:
    """A small GPT-2 with fresh weights, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
    sizes = {"n_layer": layers, "n_embd": width, "n_head": 4, "vocab_size": vocabulary, "n_positions": length}
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **ends, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def text(vocabulary: int, sequences: int, length: int, seed: int) -> Tensor:
    """Words of a Zipf law, every second one decided by the word before it: what a model can learn something from."""
    generator = torch.Generator().manual_seed(seed)
    law = 1 / torch.arange(1, vocabulary + 1, dtype=torch.float64)
    words = torch.multinomial(law, sequences * length, replacement=True, generator=generator).reshape(sequences, length)
    words[:, 1::2] = (words[:, : 2 * (length // 2) : 2] * 7 + 3) % vocabulary
    return words


def as_intervals(timings: tuple[Timing, ...]) -> str:
    """What the ratio is if 1 % is what a user reads: half the width of a 95 % interval, not a standard error."""
    (peer,) = (timing for timing in timings if timing.role == PEER)
    wider = NormalDist().inv_cdf(0.975) ** 2
    ratio = peer.ratio.median
    return (
        f"1 % is a standard error here: a ratio of {ratio:.1f}x. For 95 % intervals that reach 1 % to either side "
        f"sampling takes {wider:.2f} times as many products: {wider * ratio:.1f}x. {_COUNTED}"
    )


_COUNTED = (
    "Exact norms of the first map of the MLP alone take 153 G multiply-adds as they are found here: 34 and 68 to form "
    "the 1024 x 1024 curvature of 256 tokens on and above its diagonal in both parts, 51 for the inner products of all "
    "pairs of tokens in three parts; what lies behind the attention takes some 70 more."
)


def sampling_factor(problem: Problem, names: list[str]) -> float:
    """How many times longer than with 20 probes all norms take with as many as each of them needs.

    A block gets what its hardest part needs; a norm that is zero to rounding needs none.
    """
    spent = wanted = 0.0
    for name in names:
        start = time.process_time()
        norms = hl.block_norms(problem, [name], probes=PROBES, method="probes")
        seconds = time.process_time() - start
        largest = max(norm.value for norm in norms.values())
        errors = [norm.stderr / norm.value for norm in norms.values() if norm.value > 1e-6 * largest]
        spent += seconds
        wanted += seconds * max((error / WANTED) ** 2 for error in errors)
    return wanted / spent
