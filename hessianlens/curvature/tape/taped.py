"""One batch of a problem on a tape: products with its Hessian and the two parts of it, without a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from hessianlens.curvature.endings import InFrontOfLogits
from hessianlens.curvature.tape.behind import Behind, LossTape, UnformedLogits
from hessianlens.curvature.tape.program import Tape
from hessianlens.curvature.tape.recording import Unrecordable
from hessianlens.problems import Batch, ClassesLoss, Logits, LogitsForward, Problem

Tensors = Mapping[str, Tensor]


class Taped:
    """The products of `hessianlens.curvature.Linearisation`, from tapes of the network and of its loss.

    Each is a tangent forwards and the tangent of the backward pass: for ``H v`` once, for ``G v`` and ``(H - G) v``
    one each from the same tangents.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: Parameters with respect to which derivatives will be asked for.
    """

    def __init__(self, problem: Problem, batch: Batch, names: Sequence[str]) -> None:
        leaves = {name: problem.params[name] for name in names}
        self._params = {tensor.untyped_storage().data_ptr() for tensor in problem.params.values()}
        with problem.scope():
            self.network, self.behind = _made(problem, batch, leaves)
        self.network.keep(self.behind.slope)

    @property
    def kinds(self) -> frozenset[str]:
        """The operations that both tapes are made of, but for those that rearrange numbers or multiply matrices."""
        return self.network.kinds | self.behind.kinds

    @property
    def held_bytes(self) -> int:
        """Memory that both tapes hold beside the parameters."""
        return self.network.held_bytes(self._params) + self.behind.held_bytes(self._params)

    def hessian(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``H v``: rows `names`, columns those of `tangents`."""
        moves = self.network.forward(tangents)
        return self.network.backward(self._curved(moves, self.behind.full), moves, names)

    def gauss_newton(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``G v``."""
        return self.network.backward(self._curved(self.network.forward(tangents), self.behind.outer), None, names)

    def functional(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``(H - G) v``, which is no difference."""
        moves = self.network.forward(tangents)
        return self.network.backward(self._curved(moves, self.behind.inner), moves, names)

    def split(self, tangents: Tensors, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """``G v`` and ``(H - G) v`` from the same tangents."""
        moves = self.network.forward(tangents)
        gauss_newton = self.network.backward(self._curved(moves, self.behind.outer), None, names)
        return gauss_newton, self.network.backward(self._curved(moves, self.behind.inner), moves, names)

    def _curved(self, moves: Mapping[int, Tensor], product: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """``C J v``; None if it is zero."""
        tangent = self.network.result(moves)
        return None if tangent is None else product(tangent)


def _made(problem: Problem, batch: Batch, leaves: Tensors) -> tuple[Tape, Behind]:
    """The tape of the network, and what lies behind it."""
    forward, loss = problem.forward, problem.loss
    if not isinstance(forward, LogitsForward) or not isinstance(loss, ClassesLoss):
        network = Tape(lambda at: problem.forward({**problem.params, **at}, batch), leaves)
        return network, LossTape(problem, batch, network.output.detach())
    met: list[Logits] = []

    def features(at: Tensors) -> Tensor:
        met.append(forward.logits({**problem.params, **at}, batch))
        return met[0].hidden

    network = Tape(features, leaves)
    (logits,) = met
    own = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    if any(t is not None and t.untyped_storage().data_ptr() in own for t in (logits.weight, logits.bias)):
        raise Unrecordable("the last linear map, whose outputs are not formed, is one of them")
    return network, UnformedLogits(InFrontOfLogits(loss, logits, batch))
