"""A scope that leaves no trace in a training run: random states, modes of autograd and autocast."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch


@contextmanager
def untouched() -> Iterator[None]:
    """Derivatives can be taken inside, in full precision; outside nothing has changed, not even the next random number.

    The generators of Python, NumPy and PyTorch (of every device that is in use) are put back. Weights, gradients,
    buffers and modes of a model are not touched by the measurements themselves: they run on detached weights, in a
    scope of their own that restores the mode of every module.

    >>> torch.manual_seed(0).initial_seed()
    0
    >>> with untouched():
    ...     first = torch.rand(1)
    >>> bool(torch.rand(1) == first)
    True
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        if mps is not None:
            torch.mps.set_rng_state(mps)
