"""A user's own attention module in place of the toy Transformer's; imported only where it is asked for."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any, cast

from hessianlens.errors import InputError, expect

_EXPECTED = (
    "expected package.module:Class, a torch.nn.Module made as Class(d_model, heads) that maps (B, L, d) to (B, L, d)"
)


def load_attention(where: str) -> Any:
    """The class behind ``package.module:Class``; modules beside the working directory are found, too."""
    module, colon, name = where.partition(":")
    expect(bool(module and colon and name), f"attention: got {where!r}, {_EXPECTED}.")
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"attention: got {where!r}, which cannot be imported ({error}); {_EXPECTED}.") from error
    finally:
        if added:
            sys.path.remove(here)
    return found


def attention_digest(where: str) -> str:
    """Of the file that defines the class; empty where none is asked for."""
    if not where:
        return ""
    found = load_attention(where)
    file = inspect.getsourcefile(found) if isinstance(found, type) else None
    expect(file is not None, f"attention: got {where!r}, which has no source file; {_EXPECTED}.")
    return hashlib.sha256(Path(cast(str, file)).read_bytes()).hexdigest()[:16]


def put_in(model: Any, where: str, heads: int, seed: int) -> Any:
    """The Transformer with the user's attention in all its blocks, in double precision and drawn from a seed."""
    import torch
    from torch import Tensor, nn

    class Own(nn.Module):
        """What a block asks of attention: the heads' outputs, and their projection, which is the module's own."""

        def __init__(self, module: nn.Module, d_model: int) -> None:
            super().__init__()
            self.module, self.d_model = module, d_model

        def head_outputs(self, X: Tensor) -> Tensor:
            out = self.module(X)
            got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            expect(got == tuple(X.shape), f"attention: {where} returned {got} for {tuple(X.shape)}; {_EXPECTED}.")
            return cast(Tensor, out)

        def project(self, z: Tensor) -> Tensor:
            return z

    kind = load_attention(where)
    width = model.W_U.shape[0]
    for block in model.blocks:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = kind(width, heads)
            except TypeError as error:
                raise InputError(f"attention: {where}({width}, {heads}) failed ({error}); {_EXPECTED}.") from error
        expect(isinstance(module, nn.Module), f"attention: {where} is no torch.nn.Module; {_EXPECTED}.")
        block.attention = Own(module.to(torch.float64), width)
    return model
