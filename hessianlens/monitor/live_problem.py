"""A problem whose weights are those that its model has at the moment."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from hessianlens.curvature import TapeTests
from hessianlens.curvature.repeated import GraphTests
from hessianlens.errors import InputError
from hessianlens.problems import Block, Problem, check_problem


class LiveProblem:
    """A problem whose weights are read anew from its model.

    Args:
        problem: From `hessianlens.problem`; what it was made from must still be there.
    """

    def __init__(self, problem: Problem) -> None:
        source = check_problem(problem).source
        if not isinstance(source, nn.Module):
            raise InputError(
                "problem: it has no model to be watched, expected one that hessianlens.problem(model, ...) made."
            )
        self.base, self.model = problem, source
        # Whether a tape may take over from autograd's graph is a property of the model's steps: it is tested once.
        self._tape_tests, self._graph_tests = TapeTests(), GraphTests()
        self._verified = False

    def now(self, copied: bool = False) -> Problem:
        """The problem with the weights and buffers that the model has now.

        Args:
            copied: Whether they stay what they are when training goes on, which takes memory for a second set of them.
        """
        state: dict[str, Tensor] = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        missing = [name for name in self.base.params if name not in state]
        if missing:
            raise InputError(
                f"model: {missing[0]} is gone since the monitor was made, expected the same parameters; make a new one."
            )
        params = {name: _like(state[name], old) for name, old in self.base.params.items()}
        if copied:
            params = {name: _copy(tensor, state[name]) for name, tensor in params.items()}
        fresh = replace(self.base, params=params, verify=self.base.verify and not self._verified)
        return fresh.with_cached(self._tape_tests).with_cached(self._graph_tests)

    def verified(self) -> None:
        """Second derivatives have been checked: they are those of the same model ever after."""
        self._verified = True

    def trained(self) -> list[Block]:
        """Every parameter that is trained, as a block of its own."""
        named = dict(self.model.named_parameters())
        return [Block.of(name, name, p) for name, p in named.items() if p.requires_grad and name in self.base.params]


def _copy(tensor: Tensor, original: Tensor) -> Tensor:
    """Memory of its own, unless another dtype or device has made that so."""
    return tensor.clone() if tensor.data_ptr() == original.data_ptr() else tensor


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    return tensor.detach().to(device=old.device, dtype=old.dtype)
