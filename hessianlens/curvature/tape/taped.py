"""One batch of a problem on a tape: products with its Hessian and the two parts of it, without a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hessianlens.curvature.tape.program import Tape
from hessianlens.problems import Batch, Problem


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
            self.network = Tape(lambda at: problem.forward({**problem.params, **at}, batch), leaves)
            outputs = self.network.output.detach()
            self.loss = Tape(lambda at: problem.loss(at["outputs"], batch), {"outputs": outputs})
        unit = self.loss.output.new_ones(self.loss.output.shape)
        self.network.keep(self.loss.backward(unit, None, ["outputs"])["outputs"])
        self.loss.keep(unit)

    @property
    def kinds(self) -> frozenset[str]:
        """The operations that both tapes are made of, but for those that rearrange numbers or multiply matrices."""
        return self.network.kinds | self.loss.kinds

    @property
    def held_bytes(self) -> int:
        """Memory that both tapes hold beside the parameters."""
        return self.network.held_bytes(self._params) + self.loss.held_bytes(self._params)

    def hessian(self, tangents: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """``H v``: rows `names`, columns those of `tangents`."""
        moves = self.network.forward(tangents)
        return self.network.backward(self._curved(moves), moves, names)

    def gauss_newton(self, tangents: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """``G v``."""
        return self.network.backward(self._curved(self.network.forward(tangents)), None, names)

    def functional(self, tangents: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
        """``(H - G) v``, which is no difference."""
        return self.network.backward(None, self.network.forward(tangents), names)

    def split(
        self, tangents: Mapping[str, Tensor], names: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """``G v`` and ``(H - G) v`` from the same tangents."""
        moves = self.network.forward(tangents)
        gauss_newton = self.network.backward(self._curved(moves), None, names)
        return gauss_newton, self.network.backward(None, moves, names)

    def _curved(self, moves: Mapping[int, Tensor]) -> Tensor | None:
        """``C J v``; None if it is zero."""
        tangent = self.network.result(moves)
        if tangent is None:
            return None
        return self.loss.backward(None, self.loss.forward({"outputs": tangent}), ["outputs"])["outputs"]
