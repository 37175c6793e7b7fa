"""A problem on a model that is being trained: the same data and loss, the weights of the moment."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

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
        self._taped: dict[frozenset[str], str] = {}
        self._verified = False

    def now(self) -> Problem:
        """The problem with the weights and buffers that the model has now."""
        state: dict[str, Tensor] = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        missing = [name for name in self.base.params if name not in state]
        if missing:
            raise InputError(
                f"model: {missing[0]} is gone since the monitor was made, expected the same parameters; make a new one."
            )
        params = {name: _like(state[name], old) for name, old in self.base.params.items()}
        fresh = replace(self.base, params=params, verify=self.base.verify and not self._verified)
        fresh.remembered["taped"] = self._taped
        return fresh

    def verified(self) -> None:
        """Second derivatives have been checked: they are those of the same model ever after."""
        self._verified = True

    def trained(self) -> list[Block]:
        """Every parameter that is trained, as a block of its own."""
        named = dict(self.model.named_parameters())
        return [Block.of(name, name, p) for name, p in named.items() if p.requires_grad and name in self.base.params]


def _like(tensor: Tensor, old: Tensor) -> Tensor:
    return tensor.detach().to(device=old.device, dtype=old.dtype)
