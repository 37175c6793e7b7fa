"""One batch of a problem on a tape: HVPs and both parts of them, without a graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor

from hessianlens.curvature.loss_boundary import LogitsBoundary
from hessianlens.curvature.tape.recording import Unrecordable
from hessianlens.curvature.tape.tape import Tape
from hessianlens.losses.fused_cross_entropy import Part
from hessianlens.problems import Batch, ClassesLoss, Logits, LogitsForward, Problem
from hessianlens.work_times import counted_as

_X = "outputs"


class OutputLoss(ABC):
    """A loss of x, where a network's tape ends.

    Attributes:
        kinds: The operations it is made of.
        slope: Its gradient.
    """

    kinds: frozenset[str]
    slope: Tensor

    @abstractmethod
    def full(self, tangent: Tensor) -> Tensor:
        """Its second derivative along a tangent of x."""

    @abstractmethod
    def outer(self, tangent: Tensor) -> Tensor:
        """The Gauss-Newton part of that, split off at the outputs."""

    @abstractmethod
    def inner(self, tangent: Tensor) -> Tensor | None:
        """The rest of it; None if it is zero."""

    def held_bytes(self, others: Collection[int]) -> int:
        """Memory that is held beside some addresses."""
        return 0


class LossTape(OutputLoss):
    """A loss of outputs, on a tape of its own."""

    def __init__(self, problem: Problem, batch: Batch, outputs: Tensor) -> None:
        self._tape = Tape(lambda at: problem.loss(at[_X], batch), {_X: outputs})
        unit = self._tape.output.new_ones(self._tape.output.shape)
        self.slope = self._tape.backward(unit, None, [_X])[_X]
        self._tape.keep(unit)
        self.kinds = self._tape.kinds

    def full(self, tangent: Tensor) -> Tensor:
        """A pass forwards and one back."""
        return self._tape.backward(None, self._tape.forward({_X: tangent}), [_X])[_X]

    def outer(self, tangent: Tensor) -> Tensor:
        """All of it."""
        return self.full(tangent)

    def inner(self, tangent: Tensor) -> None:
        """Nothing."""
        return

    def held_bytes(self, others: Collection[int]) -> int:
        """Memory of the tape."""
        return self._tape.held_bytes(others)


class FusedLogits(OutputLoss):
    """A loss of features in front of a linear map whose outputs are not formed."""

    kinds = frozenset({"linear_cross_entropy"})

    def __init__(self, end: LogitsBoundary) -> None:
        self._end = end
        (self.slope,) = end.gradient()

    def full(self, tangent: Tensor) -> Tensor:
        """By a closed form."""
        return self._end.second_derivative([tangent], Part.FULL)[0]

    def outer(self, tangent: Tensor) -> Tensor:
        """By a closed form."""
        return self._end.outer([tangent])[0]

    def inner(self, tangent: Tensor) -> Tensor | None:
        """By a closed form."""
        found = self._end.inner([tangent])
        return None if found is None else found[0]


Tensors = Mapping[str, Tensor]


class TapedLinearisation:
    """The products of `hessianlens.curvature.Linearisation`, from tapes of the network and of its loss.

    Each is a tangent forwards and the tangent of the backward pass: for ``H v`` once, for ``G v`` and ``(H - G) v``
    one each from the same tangents.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: Parameters with respect to which derivatives will be asked for.
    """

    @counted_as("recording")
    def __init__(self, problem: Problem, batch: Batch, names: Sequence[str]) -> None:
        leaves = {name: problem.params[name] for name in names}
        self._params = {tensor.untyped_storage().data_ptr() for tensor in problem.params.values()}
        with problem.scope():
            self.network, self.downstream = _made(problem, batch, leaves)
        self.network.keep(self.downstream.slope)

    @property
    def kinds(self) -> frozenset[str]:
        """The operations that both tapes are made of, but for those that rearrange numbers or multiply matrices."""
        return self.network.kinds | self.downstream.kinds

    @property
    def held_bytes(self) -> int:
        """Memory that both tapes hold beside the parameters."""
        return self.network.held_bytes(self._params) + self.downstream.held_bytes(self._params)

    def hessian(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``H v``: rows `names`, columns those of `tangents`."""
        moves = self.network.forward(tangents)
        return self.network.backward(self._curved(moves, self.downstream.full), moves, names)

    def gauss_newton(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``G v``."""
        return self.network.backward(self._curved(self.network.forward(tangents), self.downstream.outer), None, names)

    def functional(self, tangents: Tensors, names: Sequence[str]) -> dict[str, Tensor]:
        """``(H - G) v``, which is no difference."""
        moves = self.network.forward(tangents)
        return self.network.backward(self._curved(moves, self.downstream.inner), moves, names)

    def split(self, tangents: Tensors, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """``G v`` and ``(H - G) v`` from the same tangents."""
        moves = self.network.forward(tangents)
        gauss_newton = self.network.backward(self._curved(moves, self.downstream.outer), None, names)
        return gauss_newton, self.network.backward(self._curved(moves, self.downstream.inner), moves, names)

    def _curved(self, moves: Mapping[int, Tensor], product: Callable[[Tensor], Tensor | None]) -> Tensor | None:
        """``C J v``; None if it is zero."""
        tangent = self.network.result(moves)
        return None if tangent is None else product(tangent)


def _made(problem: Problem, batch: Batch, leaves: Tensors) -> tuple[Tape, OutputLoss]:
    """The tape of the network, and what lies behind it."""
    forward, loss = problem.forward, problem.loss
    if not isinstance(forward, LogitsForward) or not isinstance(loss, ClassesLoss):
        network = Tape(lambda at: problem.forward({**problem.params, **at}, batch), leaves)
        return network, LossTape(problem, batch, network.output.detach())
    found: list[Logits] = []

    def features(at: Tensors) -> Tensor:
        found.append(forward.logits({**problem.params, **at}, batch))
        return found[0].hidden

    network = Tape(features, leaves)
    (logits,) = found
    own = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    if any(t is not None and t.untyped_storage().data_ptr() in own for t in (logits.weight, logits.bias)):
        raise Unrecordable("the last linear map, whose outputs are not formed, is one of them")
    return network, FusedLogits(LogitsBoundary(loss, logits, batch))
