"""Commands that `torchrun` starts in several processes: they join, and the first of them speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hessianlens.distributed import Ranks

_WAIT_MINUTES = 30
"""How long a process is waited for."""
_MOST = 2**31 - 1
"""Processes that torch can count."""


def check_started() -> None:
    """What `torchrun` says of the processes can be true; a command ends with a sentence otherwise."""
    if not _started_by_torchrun():
        return
    from hessianlens.cli.exit_codes import BAD_INPUT, stop

    ranges = {"WORLD_SIZE": (1, _MOST), "RANK": (0, _MOST), "LOCAL_RANK": (0, _MOST), "MASTER_PORT": (1, 65535)}
    for name, (least, most) in ranges.items():
        text = os.environ.get(name, str(least))
        most = started_processes() - 1 if name == "RANK" else most  # WORLD_SIZE has been looked at by then
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most):
            expected = f"expected a whole number from {least} to {most}"
            stop(f"{name}: got {text!r}, {expected}; unset it, or let torchrun set it.", BAD_INPUT)


def _started_by_torchrun() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def started_processes() -> int:
    """How many processes `torchrun` has started for this command; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if _started_by_torchrun() else 1


def is_first() -> bool:
    """Whether this process prints and writes files."""
    return started_processes() == 1 or os.environ["RANK"] == "0"


@contextmanager
def first_prints() -> Iterator[None]:
    """A scope in which all processes but the first are silent; what they fail with without a sentence is shown."""
    with ExitStack() as stack:
        if not is_first():
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


def own_device(device: str) -> str:
    """The device of this process: of several GPUs of a machine, the one with its number.

    >>> own_device("cpu")
    'cpu'
    """
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and started_processes() > 1 else device


@contextmanager
def process_group(device: str) -> Iterator[object]:
    """The group of the processes that `torchrun` has started; None without it.

    Args:
        device: Where this process computes.
    """
    if started_processes() == 1:
        yield None
        return
    from datetime import timedelta

    import torch
    from torch import distributed

    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=timedelta(minutes=_WAIT_MINUTES))
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@contextmanager
def refuse_together(group: object) -> Iterator[None]:
    """A scope in which what one process refuses is refused by all; without a group it imports nothing."""
    if group is None:
        yield
        return
    from hessianlens.distributed import ranks_of

    ranks: Ranks = ranks_of(group)
    with ranks.raise_together("the arguments"):
        yield


def refuse_several(command: str) -> None:
    """End a command that runs in one process with a sentence, where `torchrun` has started several."""
    if started_processes() == 1:
        return
    from hessianlens.cli.exit_codes import BAD_INPUT, stop

    with first_prints():
        given = f"{command}: got {started_processes()} processes from torchrun"
        stop(f"{given}, expected one; inspect is what runs in several.", BAD_INPUT)
