"""A scope that leaves no trace in a training run: random states, modes of autograd and autocast."""

from __future__ import annotations

import random

import numpy as np
import torch

from hessianlens.state_guard import Restore, StateChange, TorchState


class untouched(StateChange[None]):
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

    _derivatives: torch.inference_mode | None = None

    def record(self) -> Restore:
        """Random states and modes."""
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        modes = TorchState()

        def restore() -> None:
            if self._derivatives is not None:
                self._derivatives.__exit__(None, None, None)
            modes.restore()
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
            if cuda:
                torch.cuda.set_rng_state_all(cuda)
            if mps is not None:
                torch.mps.set_rng_state(mps)

        return restore

    def change(self) -> None:
        """Gradients on, autocast off."""
        if torch.is_inference_mode_enabled():
            self._derivatives = torch.inference_mode(False)
            self._derivatives.__enter__()
        torch.set_grad_enabled(True)
        for kind in ("cpu", "cuda"):
            torch.set_autocast_enabled(kind, False)
