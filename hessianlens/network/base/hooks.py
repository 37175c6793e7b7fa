"""Where parameters enter a running network: `Hooks` watches every operation that takes one of them.

A weight that enters as ``z = a W + b`` (or ``a W^T + b``, as the gain of a norm, ``z = a * w + b``, or as a table whose
rows are looked up, ``z = W[rows]``) is located at the operation itself, whatever the model is called and however its
modules are nested. A zero ``delta`` is added to z there: derivatives with respect to it are derivatives with respect to
what the weight feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as nnf

from hessianlens.derivatives.operation_mode import OperationMode
from hessianlens.network.base.recognition import inside_transform
from hessianlens.network.base.uses import Kind, OtherOrder, ParameterUses, Use
from hessianlens.problems import tensors
from hessianlens.state_guard import ReplacedAttribute


def as_product(equation: object, watched: list[bool]) -> tuple[str, str, str, str] | None:
    """Letters of ``a`` and W, those that are summed, and those that come out; None if it is no plain product of two.

    >>> as_product("bld,hde->bhle", [False, True])
    ('bld', 'hde', 'd', 'bhle')
    >>> as_product("bld,bde->ble", [False, True]) is None
    True
    """
    if not isinstance(equation, str) or "..." in equation or watched.count(True) != 1 or len(watched) != 2:
        return None
    given, arrow, out = equation.replace(" ", "").partition("->")
    first, comma, second = given.partition(",")
    if not arrow or not comma or any(len(set(letters)) != len(letters) for letters in (first, second, out)):
        return None
    a, W = (second, first) if watched[0] else (first, second)
    summed = "".join(x for x in W if x in a)
    rest = [x for x in a + W if x not in summed]
    plain = bool(summed) and not set(summed) & set(out) and sorted(rest) == sorted(out)
    return (a, W, summed, out) if plain and len(W) > len(summed) else None


@dataclass(frozen=True)
class _ParameterView:
    """A tensor that is a parameter, or one up to constants and a transposition, or the places of its numbers in one."""

    parameter: str
    transposed: bool = False
    places: Tensor | None = None


class Hooks(OperationMode):
    """A scope in which the uses of some parameters are recorded, and deltas added behind them.

    Args:
        parameters: The tensors to watch, by name; they are known again by identity.
        deltas: What to add behind the operation of a number; nothing where there is none. For a table whose rows are
            looked up it may have the shape of the table: it is then looked up too.
        cut: Whether what a weight or gain puts out becomes a leaf, so that what follows depends on the last ones only.
        cut_gains: With `cut`, whether gains are among them.
        linked: With `cut`, sites that stay on the graph of what is in front of them; their leaf is an added zero.
        cut_tables: With `cut`, sites at which what is looked up becomes a leaf too.

    Attributes:
        record: What was seen.
        leaves: The leaves, by site.
        shifts: Site of the leaf that a parameter was added to by itself, by the site of the sum.
        unknown_steps: With `cut`, parameters that something else was done with, by the step of autograd's graph.

    >>> w = torch.eye(2)
    >>> with Hooks({"w": w}, {0: torch.ones(1, 2)}) as hooks:
    ...     torch.zeros(1, 2) @ w
    tensor([[1., 1.]])
    >>> [(use.parameter, use.kind.value) for use in hooks.record.uses]
    [('w', 'a W')]
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        deltas: Mapping[int, Tensor] | None = None,
        cut: bool = False,
        cut_gains: bool = True,
        linked: Container[int] = (),
        cut_tables: Container[int] = (),
    ) -> None:
        super().__init__()
        self._uncut = {Kind.SHIFT, Kind.LOOK_UP} if cut_gains else {Kind.SHIFT, Kind.LOOK_UP, Kind.GAIN}
        self.record, self._deltas, self._cut = ParameterUses(), dict(deltas or {}), cut
        self._linked, self._cut_tables = linked, cut_tables
        self.leaves: dict[int, Tensor] = {}
        self.shifts: dict[int, int] = {}
        self.unknown_steps: dict[object, str] = {}
        self._cuts: dict[int, int] = {}
        self._watched = {id(tensor): _ParameterView(name) for name, tensor in parameters.items()}
        self._kept: list[Tensor] = []  # an identity is free again once its tensor is gone
        self._sites = 0

    @property
    def sites(self) -> int:
        """Operations with parameters so far."""
        return self._sites

    def operation(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Every operation of PyTorch's passes here."""
        if func is nnf.multi_head_attention_forward:
            # Its steps run below this mode; those that matter here are calls of a function of the module's.
            with ReplacedAttribute(nnf, "linear", self._linear):
                return func(*args, **named)
        if not any(map(self._seen, tensors((args, named)))):
            return func(*args, **named)
        if inside_transform():
            return self._other(func, args, named)
        if func in _HANDLERS and _takes(_HANDLERS[func], self, func, *args, **named):
            return _HANDLERS[func](self, func, *args, **named)
        return self._other(func, args, named)

    def _seen(self, tensor: object) -> _ParameterView | None:
        return self._watched.get(id(tensor)) if isinstance(tensor, Tensor) else None

    # --- operations that are understood ------------------------------------------------------------------------------

    def _linear(self, a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return self._affine(_LINEAR, a, self._seen(weight), False, bias, lambda: _LINEAR(a, weight, bias))

    def _affine(
        self,
        func: Callable[..., Any],
        a: Tensor,
        weight: _ParameterView | None,
        in_out: bool,
        bias: Tensor | None,
        run: Callable[[], Tensor],
    ) -> Tensor:
        """``a W + b`` in either layout."""
        uses: list[_Taken] = []
        if self._seen(a) is not None:
            self._unknown(a, func)
        if weight is not None and weight.places is not None:
            places = weight.places if in_out else weight.places.T
            uses.append((weight.parameter, Kind.IN_OUT, a, places))
        elif weight is not None:
            uses.append((weight.parameter, Kind.IN_OUT if in_out != weight.transposed else Kind.OUT_IN, a, None))
        if bias is not None and (shift := self._seen(bias)) is not None:
            uses.append((shift.parameter, Kind.SHIFT, None, shift.places))
        return self._hooked(run(), uses)

    def _product(self, func: Callable[..., Any], a: Tensor, b: Tensor, **named: Any) -> Any:
        """``a @ W``."""
        weight = self._seen(b)
        if named or weight is None or b.ndim != 2:
            return self._other(func, (a, b), named)
        return self._affine(func, a, weight, True, None, lambda: func(a, b))

    def _addmm(self, func: Callable[..., Any], bias: Tensor, a: Tensor, b: Tensor, **named: Any) -> Any:
        """``b + a W``."""
        if named or (self._seen(bias) is not None and bias.ndim != 1):
            return self._other(func, (bias, a, b), named)
        return self._affine(func, a, self._seen(b), True, bias, lambda: func(bias, a, b))

    def _times(self, func: Callable[..., Any], a: Any, b: Any, **named: Any) -> Any:
        """``a * w``, a gain for every feature."""
        gain, other, tensor = (self._seen(b), a, b) if self._seen(b) is not None else (self._seen(a), b, a)
        fits = isinstance(other, Tensor) and self._seen(other) is None and tensor.ndim == 1 and other.ndim > 1
        if named or gain is None or not fits or other.shape[-1:] != tensor.shape:
            return self._other(func, (a, b), named)
        return self._hooked(func(a, b), [(gain.parameter, Kind.GAIN, other, gain.places)])

    def _plus(self, func: Callable[..., Any], a: Any, b: Any, **named: Any) -> Any:
        """``z + w``, a shift for every feature; ``1 + w`` is w up to a constant."""
        shift, other, tensor = (self._seen(b), a, b) if self._seen(b) is not None else (self._seen(a), b, a)
        if not named and shift is not None and not isinstance(other, Tensor):
            return self._same(func(a, b), shift)
        fits = isinstance(other, Tensor) and self._seen(other) is None and tensor.ndim == 1 and other.ndim > 1
        if named or shift is None or not fits or other.shape[-1:] != tensor.shape:
            return self._other(func, (a, b), named)
        if id(other) in self._cuts:
            self.shifts[self._sites] = self._cuts[id(other)]
        return self._hooked(func(a, b), [(shift.parameter, Kind.SHIFT, None, shift.places)])

    def _layer_norm(
        self,
        func: Callable[..., Any],
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        """A norm with gain and shift, as its plain self and these."""
        if len(shape) != 1 or self._seen(x) is not None:
            return self._other(func, (x, shape, weight, bias, *rest), named)
        plain = func(x, shape, None, None, *rest, **named)
        return self._normed(plain, weight, bias)

    def _rms_norm(
        self, func: Callable[..., Any], x: Tensor, shape: Any, weight: Tensor | None = None, *rest: Any, **named: Any
    ) -> Any:
        if len(shape) != 1 or self._seen(x) is not None:
            return self._other(func, (x, shape, weight, *rest), named)
        return self._normed(func(x, shape, None, *rest, **named), weight, None)

    def _normed(self, plain: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        uses: list[_Taken] = []
        z = plain if weight is None else plain * weight
        if weight is not None and (gain := self._seen(weight)) is not None:
            uses.append((gain.parameter, Kind.GAIN, plain, gain.places))
        if bias is not None and (shift := self._seen(bias)) is not None:
            uses.append((shift.parameter, Kind.SHIFT, None, shift.places))
        return self._hooked(z if bias is None else z + bias, uses)

    def _transposed(self, func: Callable[..., Any], tensor: Tensor, *args: Any, **named: Any) -> Any:
        """The other layout of a matrix."""
        seen = self._seen(tensor)
        if seen is not None and (seen.places is not None or tensor.ndim > 2):
            return self._rearranged(func, tensor, *args, **named)
        if seen is None or tensor.ndim != 2 or (args and set(args) not in ({0, 1}, {-1, -2})) or named:
            return self._other(func, (tensor, *args), named)
        return self._same(func(tensor, *args), _ParameterView(seen.parameter, not seen.transposed))

    def _rearranged(self, func: Callable[..., Any], tensor: Tensor, *args: Any, **named: Any) -> Any:
        """The same numbers in another order or shape, as where heads have an axis of their own."""
        seen = self._seen(tensor)
        if seen is None or tensor.numel() > _MOST_PLACES:
            return self._other(func, (tensor, *args), named)
        places = seen.places
        if places is None:
            shape = tensor.shape[::-1] if seen.transposed else tensor.shape
            places = torch.arange(tensor.numel(), device="cpu").reshape(shape)
            places = places.T if seen.transposed else places
        return self._same(
            func(tensor, *args, **named), _ParameterView(seen.parameter, False, func(places, *args, **named))
        )

    def _einsum(self, func: Callable[..., Any], equation: Any, *operands: Any, **named: Any) -> Any:
        """``a, W -> z`` by letters, as a product of two matrices."""
        flat = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
        found = as_product(equation, [self._seen(x) is not None for x in flat]) if not named else None
        if found is None:
            return self._other(func, (equation, *flat), named)
        a, W = (flat[1], flat[0]) if self._seen(flat[0]) is not None else flat
        letters_a, letters_W, summed, out = found
        kept_a, kept_W = ([x for x in letters if x not in summed] for letters in (letters_a, letters_W))
        sizes = dict(zip(letters_a, a.shape, strict=True)) | dict(zip(letters_W, W.shape, strict=True))
        left = a.permute([letters_a.index(x) for x in (*kept_a, *summed)])
        left = left.reshape(*(sizes[x] for x in kept_a), -1)
        turned = self._rearranged(Tensor.permute, W, [letters_W.index(x) for x in (*summed, *kept_W)])
        matrix = self._rearranged(Tensor.reshape, turned, (left.shape[-1], -1))
        z = self._affine(func, left, self._seen(matrix), True, None, lambda: left @ matrix)
        z = z.unflatten(-1, [sizes[x] for x in kept_W])
        return z.permute([[*kept_a, *kept_W].index(x) for x in out])

    def _look_up(
        self,
        func: Callable[..., Any],
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        """Rows of a table; a row that is padding has no gradient, and one that is clipped is no linear map."""
        args = (input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        if max_norm is not None or scale_grad_by_freq or sparse or self._seen(input) is not None:
            return self._other(func, args, {})
        rows = input if padding_idx is None else input.masked_fill(input == padding_idx % len(weight), -1)
        return self._rows(func, args, weight, rows)

    def _selected(self, func: Callable[..., Any], table: Tensor, dim: int, index: Tensor) -> Any:
        """``index_select`` of rows."""
        if dim not in (0, -table.ndim):
            return self._other(func, (table, dim, index), {})
        return self._rows(func, (table, dim, index), table, index)

    def _indexed(self, func: Callable[..., Any], table: Tensor, key: Any) -> Any:
        """``table[:n]`` or ``table[rows]``."""
        whole = isinstance(key, Tensor) and not key.is_floating_point() and key.dtype not in (torch.bool, torch.uint8)
        if not (isinstance(key, slice) or (whole and key.ndim > 0)):
            return self._other(func, (table, key), {})
        numbers = torch.arange(len(table), device=key.device if isinstance(key, Tensor) else "cpu")
        return self._rows(func, (table, key), table, numbers[key])

    def _rows(self, func: Callable[..., Any], args: tuple[Any, ...], table: Tensor, rows: Tensor) -> Any:
        """What a function takes out of a table, which rows it is."""
        seen = self._seen(table)
        if seen is None or seen.transposed or seen.places is not None or table.ndim != 2:
            return self._other(func, args, {})
        return self._hooked(func(*args), [(seen.parameter, Kind.LOOK_UP, None, None)], rows.detach())

    def _converted(self, func: Callable[..., Any], tensor: Tensor, *args: Any, **named: Any) -> Any:
        """The same numbers in another dtype or place."""
        found, seen = func(tensor, *args, **named), self._seen(tensor)
        return found if seen is None or found is tensor else self._same(found, seen)

    # --- everything else ---------------------------------------------------------------------------------------------

    def _other(self, func: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Looking at a parameter, at its shape say, is not using it."""
        found = func(*args, **named)
        several = found if isinstance(found, tuple | list) else [found]
        made = [one for one in several if isinstance(one, Tensor)]
        if made:
            for tensor in tensors((args, named)):
                self._unknown(tensor, func)
                if self._cut and (seen := self._seen(tensor)) is not None:
                    for one in made:
                        self.unknown_steps.setdefault(one.grad_fn, seen.parameter)
        return found

    def _unknown(self, tensor: object, func: Callable[..., Any]) -> None:
        seen = self._seen(tensor)
        if seen is not None:
            self.record.unknown.setdefault(seen.parameter, str(getattr(func, "__name__", func)))

    def _same(self, tensor: Tensor, seen: _ParameterView) -> Tensor:
        self._watched[id(tensor)] = seen
        self._kept.append(tensor)
        return tensor

    def _hooked(self, z: Tensor, uses: list[_Taken], rows: Tensor | None = None) -> Tensor:
        site, self._sites = self._sites, self._sites + 1
        for name, kind, inputs, places in uses:
            self.record.uses.append(Use(name, kind, site, inputs, tuple(z.shape), places, rows))
        if self._cut and (any(kind not in self._uncut for _, kind, *_ in uses) or site in self._cut_tables):
            before = z if site in self._linked else torch.zeros_like(z)
            self.leaves[site] = torch.zeros_like(z) if site in self._linked else z.detach()
            z = before + self.leaves[site].requires_grad_()  # a tensor of its own: the model may go on in place
            self._cuts[id(z)] = site
            self._kept.append(z)
        if site not in self._deltas:
            return z
        delta = self._deltas[site]
        if rows is not None and delta.ndim == 2 and delta.shape != z.shape:  # one for each row of the table
            delta = delta[rows.clamp_min(0)] * (rows >= 0)[..., None]
        if delta.shape != z.shape:
            raise OtherOrder
        return z + delta


_LINEAR = nnf.linear
_Taken = tuple[str, Kind, Tensor | None, Tensor | None]
"""A parameter, how it enters, what it is multiplied with, and its places."""
_MOST_PLACES = 2**24
"""Entries of a parameter up to which their places are followed."""
_PROPERTIES: tuple[Any, ...] = tuple(vars(torch._C.TensorBase)[name].__get__ for name in ("T", "mT"))
"""How the transpose is asked for without a call."""


def _handle_linear(
    hooks: Hooks, func: Callable[..., Any], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    return hooks._linear(input, weight, bias)


def _takes(handler: Callable[..., Any], *args: Any, **named: Any) -> bool:
    """Whether a handler knows a call in this form: PyTorch has several for most functions."""
    try:
        signature(handler).bind(*args, **named)
    except TypeError:
        return False
    return True


def _handlers() -> dict[Any, Callable[..., Any]]:
    """From a function of PyTorch's to what is done with it."""
    found: dict[Any, Callable[..., Any]] = {
        nnf.linear: _handle_linear,
        torch.addmm: Hooks._addmm,
        torch.einsum: Hooks._einsum,
    }
    named: dict[Callable[..., Any], tuple[Any, ...]] = {
        Hooks._product: (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__),
        Hooks._times: (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.multiply, Tensor.multiply),
        Hooks._plus: (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
        Hooks._look_up: (nnf.embedding,),
        Hooks._selected: (torch.index_select, Tensor.index_select),
        Hooks._indexed: (Tensor.__getitem__,),
        Hooks._layer_norm: (nnf.layer_norm, torch.layer_norm),
        Hooks._rms_norm: (nnf.rms_norm, torch.rms_norm) if hasattr(nnf, "rms_norm") else (),
        Hooks._transposed: (torch.t, Tensor.t, torch.transpose, Tensor.transpose, *_PROPERTIES),
        Hooks._rearranged: (
            *(torch.permute, Tensor.permute, torch.reshape, Tensor.reshape, Tensor.view),
            *(torch.flatten, Tensor.flatten, torch.swapaxes, Tensor.swapaxes),
        ),
        Hooks._converted: (Tensor.to, Tensor.float, Tensor.double, Tensor.contiguous, Tensor.type_as),
    }
    for handler, functions in named.items():
        found |= {function: handler for function in functions}
    return found


_HANDLERS = _handlers()
