"""The graph between a result and its leaves: what lies on the way, and what of it cannot be differentiated twice.

Autograd answers None, or a constant, both where a leaf plays no part and behind a `torch.autograd.Function` whose
backward is marked ``@once_differentiable``. The graph distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hessianlens.errors import InputError, RankError

_MARKED = getattr(once_differentiable(lambda _: None), "__code__", None)
"""The code that ``@once_differentiable`` puts around every backward."""
_LEAF = "torch::autograd::AccumulateGrad"
"""The name of the node of a leaf."""
_KINKS = ("Relu", "Prelu", "Hard", "Softshrink", "Abs", "Max", "Min", "Amax", "Amin", "Clamp", "Threshold", "Topk")
"""How the names of steps begin whose derivative jumps."""
_PLAIN = {
    *("View", "UnsafeView", "ReshapeAlias", "Expand", "Squeeze", "Unsqueeze", "Permute", "Transpose", "T", "Clone"),
    *("Alias", "Slice", "Select", "Split", "SplitWithSizes", "Unbind", "Cat", "Stack", "ToCopy"),
    *("Mm", "Bmm", "Addmm", "Baddbmm", "Mv", "Addmv", "Dot"),
}
"""Steps of PyTorch's own that move numbers around or multiply matrices; which of them are taken depends on shapes."""
_NO_SECOND = (
    "differentiate twice",
    "is not implemented",
    "double backward",
    "no autograd formula was registered",
    "you must implement either the backward or vjp",
    "incompatible with .grad()",
    "not compatible with .grad()",
    "donated buffers",
)
"""What PyTorch's errors say where a derivative of a derivative is missing."""


@dataclass(frozen=True, eq=False)
class OnceOnly:
    """A Function on the way that can be differentiated once.

    Attributes:
        function: The name of its class.
        leaves: The leaves behind it.
    """

    function: str
    leaves: tuple[Tensor, ...]

    def reaches(self, tensors: Sequence[Tensor]) -> bool:
        """Whether one of these leaves lies behind it."""
        return any(leaf is tensor for leaf in self.leaves for tensor in tensors)


def steps_of(result: Tensor) -> Iterator[Any]:
    """The steps between a result and its leaves.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> [step.name() for step in steps_of(weight.tanh())]
    ['TanhBackward0', 'torch::autograd::AccumulateGrad']
    """
    return _nodes(result.grad_fn)


def once_only(result: Tensor) -> list[OnceOnly]:
    """The Functions between a result and its leaves whose backward is marked ``@once_differentiable``.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> once_only((weight.tanh() * 3).sum())
    []
    """
    marked = [node for node in _nodes(result.grad_fn) if _is_marked(node)]
    return [OnceOnly(node._forward_cls.__name__, tuple(_leaves(node))) for node in marked]


def custom_functions(result: Tensor) -> set[str]:
    """Names of the Functions between a result and its leaves that PyTorch has no formula of its own for."""
    return {node.name() for node in _nodes(result.grad_fn) if hasattr(node, "_forward_cls") or "CppNode" in node.name()}


def kinds(result: Tensor) -> frozenset[str]:
    """The kinds of steps between a result and its leaves, but for those that move numbers around or multiply matrices.

    >>> weight = torch.ones(2, 2, requires_grad=True)
    >>> sorted(kinds((weight @ weight).T.tanh().sum()))
    ['Sum', 'Tanh']
    """
    names = (node.name() for node in _nodes(result.grad_fn) if node.name() != _LEAF)
    return frozenset(name.rstrip("0123456789").removesuffix("Backward") for name in names) - _PLAIN


def narrower(result: Tensor) -> bool:
    """Whether a step is computed in a narrower dtype than the result, or may be because nobody can look into it.

    >>> weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    >>> narrower(weight.tanh()), narrower(weight.float().tanh().double())
    (False, True)
    """
    eps = torch.finfo(result.dtype).eps
    return bool(custom_functions(result)) or any(torch.finfo(dtype).eps > eps for dtype in _dtypes(result))


def in_half_precision(result: Tensor) -> bool:
    """Whether a step is computed in half precision."""
    return any(dtype.itemsize <= 2 for dtype in _dtypes(result))


def leaves_of(result: Tensor) -> list[Tensor]:
    """The tensors with a gradient that a result is computed from.

    >>> w = torch.ones(2, requires_grad=True)
    >>> [leaf is w for leaf in leaves_of((3 * w).sum())], leaves_of(torch.zeros(()))
    ([True], [])
    """
    return list(_leaves(result.grad_fn)) if result.grad_fn is not None else [result] * result.requires_grad


def padding(result: Tensor) -> list[tuple[Tensor, int]]:
    """Embeddings, and the row of each that PyTorch leaves out of its gradient on purpose.

    >>> embedding = torch.nn.Embedding(3, 2, padding_idx=1)
    >>> [(leaf is embedding.weight, row) for leaf, row in padding(embedding(torch.tensor([0, 1])))]
    [(True, 1)]
    """
    found: list[tuple[Tensor, int]] = []
    for node in _nodes(result.grad_fn):
        row = getattr(node, "_saved_padding_idx", -1) if node.name().startswith("Embedding") else -1
        if row >= 0:  # looking for the leaves below every node would take a time quadratic in their number
            found.extend((leaf, row) for leaf in _leaves(node) if leaf.ndim == 2 and row < len(leaf))
    return found


def has_kink(result: Tensor) -> bool:
    """Whether a step is known to have a derivative that jumps.

    >>> has_kink(torch.ones(1, requires_grad=True).relu()), has_kink(torch.ones(1, requires_grad=True).tanh())
    (True, False)
    """
    return any(node.name().startswith(_KINKS) or "Pool" in node.name() for node in _nodes(result.grad_fn))


@contextmanager
def refusals_of(where: Callable[[], str]) -> Iterator[None]:
    """A scope in which a missing derivative becomes `refusal`: PyTorch says so, or a backward in Python raises.

    Args:
        where: Finds out what it is that cannot be differentiated, once something cannot.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_refusal(error):
            raise
        said = str(error).strip().splitlines()[0].partition(". ")[0].rstrip(".")
        raise refusal(where(), f"PyTorch says '{said}'") from error
    except (InputError, RankError, MemoryError):
        raise
    except Exception as error:  # PyTorch itself raises none but the above
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(".")
        raise refusal(where(), f"a backward of its own raised '{said}'") from error


def is_refusal(error: RuntimeError) -> bool:
    """Whether an error of PyTorch's says that a derivative is missing."""
    said = str(error).lower()
    return any(words in said for words in _NO_SECOND)


def refusal(where: str, why: str) -> InputError:
    """The error for what cannot be differentiated twice.

    Args:
        where: What cannot, beginning with the argument it came in.
        why: The reason.
    """
    return InputError(
        f"{where} cannot be differentiated twice: {why}. Use an implementation made of plain PyTorch operations "
        "(eager, unfused, not compiled)."
    )


def once_only_reason(function: str) -> str:
    """The reason, for a Function that `once_only` found."""
    return f"the backward of its {function} is marked @once_differentiable, which autograd would take for a constant"


def expect_twice_differentiable(where: str, result: Tensor) -> None:
    """Refuse a result with a Function on the way to its leaves that can be differentiated once only."""
    found = once_only(result)
    if found:
        raise refusal(where, once_only_reason(found[0].function))


def _nodes(root: Any) -> Iterator[Any]:
    """Every node from `root` on, each once."""
    seen, left = {root}, [root] if root is not None else []
    while left:
        node = left.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                left.append(following)


def _dtypes(result: Tensor) -> set[torch.dtype]:
    """Floating dtypes of the steps."""
    found = {one.dtype for node in _nodes(result.grad_fn) for one in node._input_metadata}
    return {dtype for dtype in found if dtype.is_floating_point}


def _leaves(root: Any) -> Iterator[Tensor]:
    return (node.variable for node in _nodes(root) if node.name() == _LEAF)


def _is_marked(node: Any) -> bool:
    """Whether the backward of a Function is marked, possibly under further decorators."""
    function = getattr(node, "_forward_cls", None)
    for name in ("backward", "vjp"):
        backward = getattr(function, name, None)
        while backward is not None:
            if getattr(backward, "__code__", None) is _MARKED:
                return True
            backward = getattr(backward, "__wrapped__", None)
    return False
