"""One batch of a problem on one shared graph: every first and second derivative product that curvature needs.

With outputs ``f(theta)``, loss gradient ``g`` and loss curvature ``C`` at the outputs (or, where those are not formed,
at what they would be formed of),

    J v,  J^T u,  C u,  and  (sum_k g_k d^2 f_k / dr dc) v

all come from one forward pass: ``s(u) = J_c^T u`` is built once with a graph; differentiating ``<s(u), v>`` with
respect to the row parameters gives the functional product and with respect to u gives ``J v``, in one backward pass.

Several vectors at once, ``[vector, *parameter]``, go through the same graph in one vectorised backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from time import perf_counter

import torch
from torch import Tensor

from hessianlens.curvature.loss_boundary import OutputsBoundary, loss_boundary_of
from hessianlens.curvature.missing_derivatives import locate_missing_derivative
from hessianlens.derivatives.difference import cannot_be_differentiated_twice
from hessianlens.derivatives.graph import OnceOnly, once_only, once_only_reason, refusal, refusals_of
from hessianlens.derivatives.step_check import StepCheck
from hessianlens.problems import Batch, Problem
from hessianlens.work_times import counted_as


class Linearisation:
    """The derivatives of one batch with respect to chosen parameters.

    Args:
        problem: What is differentiated.
        batch: One batch of its data.
        names: Parameters with respect to which derivatives will be asked for.
        check: Watches every pass, to say afterwards whether derivatives are certainly right; default: nothing does.

    Attributes:
        product_seconds: Time that the last product took by itself; the graph stays, and serves the next one.
    """

    product_seconds = 0.0

    @counted_as("recording")
    def __init__(self, problem: Problem, batch: Batch, names: Sequence[str], check: StepCheck | None = None) -> None:
        self.problem, self.batch, self.check = problem, batch, check
        self.leaves = {name: problem.params[name].detach().requires_grad_() for name in names}
        with problem.scope(), torch.enable_grad(), nullcontext() if check is None else check.forward():
            self.end = loss_boundary_of(problem, {**problem.params, **self.leaves}, batch)
        if problem.model_check is not None and isinstance(self.end, OutputsBoundary):
            problem.model_check.seen(problem.forward, problem.params, batch, self.end.outputs)
        self._gradients: dict[tuple[str, ...], list[Tensor]] = {}

    # Hessian products need the loss through the graph, Gauss-Newton products the loss at the outputs: neither is built
    # before it is asked for.

    def _loss(self, tensors: Sequence[Tensor]) -> Tensor:
        check = self.check
        with self.problem.scope(), torch.enable_grad(), nullcontext() if check is None else check.forward():
            value = self.end.loss(tensors)
        if check is not None:
            check.results += [value, *self.end.tensors]
        return value

    @property
    def outputs(self) -> Tensor:
        """The network's outputs."""
        with self.problem.scope(), torch.enable_grad():
            return self.end.outputs

    @cached_property
    def loss(self) -> Tensor:
        """This batch's share of the loss."""
        return self._loss(self.end.tensors)

    @cached_property
    def _points(self) -> list[Tensor]:
        return [tensor.detach().requires_grad_() for tensor in self.end.tensors]

    @cached_property
    def _slopes(self) -> list[Tensor]:
        value = self._loss(self._points)
        self._expect_twice(once_only(value), self._points, self._points)
        return self._grad([value], self._points, [torch.ones_like(value)], graph=True)

    @cached_property
    def _dummies(self) -> list[Tensor]:
        return [slope.detach().clone().requires_grad_() for slope in self._slopes]

    @cached_property
    def _once_in_outputs(self) -> list[OnceOnly]:
        return [one for tensor in self.end.tensors for one in once_only(tensor)]

    @cached_property
    def _once_in_loss(self) -> list[OnceOnly]:
        return once_only(self.loss)

    @cached_property
    def _transposed_graph(self) -> dict[str, Tensor]:
        """``s(u) = J^T u`` with its graph, for all parameters in one pass: one is no cheaper where others follow."""
        found = self._grad(self.end.tensors, list(self.leaves.values()), self._dummies, graph=True)
        return dict(zip(self.leaves, found, strict=True))

    def _leaves(self, names: Sequence[str]) -> list[Tensor]:
        return [self.leaves[name] for name in names]

    def gradient(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The gradient of this batch's loss."""
        found = self._grad([self.loss], self._leaves(names), [torch.ones_like(self.loss)], graph=False)
        return dict(zip(names, found, strict=True))

    def vjp_gradient(self) -> dict[str, Tensor]:
        """The gradient with respect to all parameters, from the graph that `split` keeps for its products."""
        return {name: vjp.detach() for name, vjp in self._transposed_graph.items()}

    def transposed(
        self, cotangents: Sequence[Tensor], names: Sequence[str], several: bool = False
    ) -> dict[str, Tensor]:
        """``J^T u``."""
        found = self._grad(self.end.tensors, self._leaves(names), cotangents, graph=False, several=several)
        return dict(zip(names, found, strict=True))

    def loss_curvature(self, tangents: Sequence[Tensor], several: bool = False) -> list[Tensor]:
        """``C u``: the Gauss-Newton part of the loss where the network ends, times a vector."""
        found = None if several else self.end.outer(tangents)
        return (
            self._grad(self._slopes, self._points, tangents, graph=False, several=several) if found is None else found
        )

    @property
    def takes_several(self) -> bool:
        """Whether several vectors can be multiplied at once; closed forms at the end of a network take one."""
        return isinstance(self.end, OutputsBoundary)

    def hessian(self, tangents: Mapping[str, Tensor], names: Sequence[str], several: bool = False) -> dict[str, Tensor]:
        """``H v``: rows `names`, columns those of `tangents`, by double backward through the loss.

        Args:
            tangents: By parameter, one vector; or several, along an axis in front.
            names: Parameters of the rows.
            several: Whether there are several.
        """
        columns, rows = tuple(tangents), self._leaves(names)
        self._expect_twice(self._once_in_loss, self._leaves(columns), rows)
        if columns not in self._gradients:
            ones = torch.ones_like(self.loss)
            self._gradients[columns] = self._grad([self.loss], self._leaves(columns), [ones], graph=True)
        start = perf_counter()
        found = self._grad(self._gradients[columns], rows, list(tangents.values()), graph=False, several=several)
        self.product_seconds = perf_counter() - start
        return dict(zip(names, found, strict=True))

    def gauss_newton(
        self, tangents: Mapping[str, Tensor], names: Sequence[str], several: bool = False
    ) -> dict[str, Tensor]:
        """``G v``, which takes the tangent of the outputs that a functional product comes with."""
        return self.split(tangents, names, several)[0]

    def functional(
        self, tangents: Mapping[str, Tensor], names: Sequence[str], several: bool = False
    ) -> dict[str, Tensor]:
        """``(H - G) v``, which is no difference."""
        return self._functional(tangents, names, several)[0]

    def split(
        self, tangents: Mapping[str, Tensor], names: Sequence[str], several: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gauss-Newton and functional products, ``G v`` and ``(H - G) v``, from one graph; neither is a difference."""
        functional, ends = self._functional(tangents, names, several)
        self._slopes  # noqa: B018 - made once
        start = perf_counter()
        ggn = self.transposed(self.loss_curvature(ends, several), names, several)
        self.product_seconds += perf_counter() - start
        return ggn, functional

    def _functional(
        self, tangents: Mapping[str, Tensor], names: Sequence[str], several: bool
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        """``(H - G) v``, and ``J v``, which comes with it."""
        columns, rows = tuple(tangents), self._leaves(names)
        # The Jacobian's product with a tangent takes a second derivative too, whatever the rows.
        self._expect_twice(self._once_in_outputs, self._leaves(columns), self._leaves(columns))
        vjp = [self._transposed_graph[name] for name in columns]
        start = perf_counter()
        found = self._grad(vjp, [*rows, *self._dummies], list(tangents.values()), graph=False, several=several)
        functional, ends = dict(zip(names, found, strict=False)), found[len(rows) :]
        downstream = None if several else self.end.inner(ends)
        if downstream is not None:
            more = self.transposed(downstream, names)
            functional = {name: part + more[name] for name, part in functional.items()}
        self.product_seconds = perf_counter() - start
        return functional, ends

    def _grad(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        weights: Sequence[Tensor],
        graph: bool,
        several: bool = False,
    ) -> list[Tensor]:
        """Vector-Jacobian product; zero where an input plays no part. The graph stays for further products."""
        alive = [(o, w) for o, w in zip(outputs, weights, strict=True) if o.requires_grad]
        shapes = [(*weights[0].shape[:1], *x.shape) if several else tuple(x.shape) for x in inputs]
        if not alive:
            return [x.new_zeros(shape) for x, shape in zip(inputs, shapes, strict=True)]
        check = nullcontext() if self.check is None else self.check.backward()
        with refusals_of(self._locate_missing_derivative), torch.set_grad_enabled(graph), check:
            found = torch.autograd.grad(
                [o for o, _ in alive],
                list(inputs),
                [w for _, w in alive],
                retain_graph=True,
                create_graph=graph,
                allow_unused=True,
                is_grads_batched=several,
            )
        return [x.new_zeros(shape) if d is None else d for x, shape, d in zip(inputs, shapes, found, strict=True)]

    def _expect_twice(self, found: Sequence[OnceOnly], columns: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        """No Function between columns and rows hands out constants for derivatives: None then means zero."""
        for one in found:
            if one.reaches(columns) and one.reaches(rows):
                raise refusal(self._locate_missing_derivative(), once_only_reason(one.function))

    def _locate_missing_derivative(self) -> str:
        found = locate_missing_derivative(self.problem, self.batch, list(self.leaves), cannot_be_differentiated_twice)
        return found or "model: a step outside of its modules"


def loss_gradient(problem: Problem, names: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """The loss on all data, and its gradient by name of parameter."""

    def share() -> list[Tensor]:
        loss = torch.zeros((), dtype=torch.float64)
        total = {name: torch.zeros_like(problem.params[name]) for name in names}
        for batch in problem.data:
            at = Linearisation(problem, batch, names)
            loss += at.loss.detach().double().cpu()
            for name, slope in at.gradient(names).items():
                total[name] += slope
        return [loss, *total.values()]

    loss, *gradient = problem.ranks.all_reduce("the gradient of the loss", share)
    return float(loss), dict(zip(names, gradient, strict=True))
