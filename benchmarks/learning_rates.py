"""Do learning rates from measured curvature help? ``python -m benchmarks.learning_rates``

A small Transformer learns to add, with one learning rate for all and with groups from `BlockMeasurements.param_groups`,
measured on one batch before training. Every choice is given the same steps, batches and base learning rates to choose
from, and is judged by the loss on held-out sums at its best base rate, over several seeds of weights and batches.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import torch

import hessianlens as hl

SEEDS, STEPS, BATCH = range(4), 250, 64
POWERS = (0.0, 0.25, 0.5, 1.0)
"""How much of the curvature goes into the rates; 0 is one rate for all."""
Make = Callable[[Any], torch.optim.Optimizer]
OPTIMISERS: dict[str, tuple[Make, tuple[float, ...]]] = {
    "SGD, momentum 0.9": (lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9), (0.03, 0.1, 0.3)),
    "AdamW": (lambda groups: torch.optim.AdamW(groups, lr=1e-3), (1e-3, 3e-3, 1e-2)),
}


def trained(make: Make, base: float, power: float, seed: int) -> float:
    """The loss on held-out sums after training; infinite where training went astray."""
    torch.manual_seed(seed)
    task = hl.tasks.Addition(digits=2)
    model = hl.models.Transformer(
        layers=2, d_model=16, d_mlp=32, vocab=task.vocab, context=task.context, seed=seed, norm="pre"
    )
    problem = hl.problem(model, task.batch(16, seed=9000 + seed), task.cross_entropy)
    measured = hl.measure(problem, budget=None, probes=8, parts=("full",), method="probes", progress=False)
    optimizer = make(measured.param_groups(base, power=power))
    for step in range(STEPS):
        batch = task.batch(BATCH, seed=1000 * seed + step)
        optimizer.zero_grad()
        task.cross_entropy(model(batch["tokens"]), batch).backward()
        optimizer.step()
    held = task.batch(512, seed=7777)
    with torch.no_grad():
        loss = float(task.cross_entropy(model(held["tokens"]), held))
    return loss if loss == loss else float("inf")


def main() -> None:
    """Print a line a choice: mean and standard deviation over seeds at the best base rate, and all others."""
    torch.set_num_threads(1)
    for name, (make, rates) in OPTIMISERS.items():
        plain: list[float] = []
        for power in POWERS:
            losses = {rate: [trained(make, rate, power, seed) for seed in SEEDS] for rate in rates}
            best = min(losses, key=lambda rate: fmean(losses[rate]))
            plain = plain or losses[best]
            gains = [mine - theirs for mine, theirs in zip(losses[best], plain, strict=True)]
            others = ", ".join(f"{rate:g}: {fmean(found):.3f}" for rate, found in losses.items())
            print(
                f"{name:<18} power {power:<5} best at {best:<6g} loss {fmean(losses[best]):.3f} "
                f"± {stdev(losses[best]):.3f}; against one rate {fmean(gains):+.3f} ± {stdev(gains):.3f} ({others})",
                flush=True,
            )


if __name__ == "__main__":
    main()
