"""``hl.explore(layer, X)``: the exact Hessian of a user's layer in a notebook, to move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from hessianlens.errors import InputError, check_that, needs_extra
from hessianlens.explorer.module import module_source
from hessianlens.explorer.standalone import style
from hessianlens.parts import LAYER_PARTS

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlens.attention import AttentionHead, MultiHeadAttention

BROWSER_MAX_WEIGHTS = 600
"""Layers of more weights are computed in Python: their dense Hessian takes the browser about a second."""

SPECTRUM_MAX_WEIGHTS = 2048
"""Eigenvalues of larger Hessians are left out."""


def explore(layer: AttentionHead | MultiHeadAttention, X: Tensor, targets: Tensor | None = None) -> Any:
    """A widget with the norms of all blocks and the spectrum of the exact Hessian of ``mean (layer(X) - targets)^2``.

    Sliders scale the tokens, the temperature and the residual. Layers of up to `BROWSER_MAX_WEIGHTS` weights with
    named activations are computed in the browser, without the kernel; all others in Python.

    Args:
        layer: `SelfAttention`, `SingleMatrixAttention`, `MultiHeadAttention` or any other layer of
            `hessianlens.attention_hessian`.
        X: Tokens, (L, d) or a batch (B, L, d).
        targets: What the output is compared with, shaped as the output; standard normal numbers of seed 0 if omitted.

    Raises:
        InputError: If the layer or its tokens cannot be used, or the extra ``explore`` is not installed.
    """
    make = _widget_class()
    question = LayerQuestion(layer, X, targets)
    return make(question)


class LayerQuestion:
    """A layer, its tokens and its targets, and what is asked about them.

    Args:
        layer: The layer.
        X: Its tokens.
        targets: The targets; see `explore`.
    """

    def __init__(self, layer: Any, X: Tensor, targets: Tensor | None = None) -> None:
        import torch

        from hessianlens.attention import AttentionHead, MultiHeadAttention

        wanted = "an attention layer such as hessianlens.SelfAttention"
        check_that(isinstance(layer, (AttentionHead, MultiHeadAttention)), "layer", layer, wanted)
        self.layer, self.X = layer, X
        with torch.no_grad():
            F = layer(X)
        if targets is None:
            targets = torch.randn(F.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(F)
        if not isinstance(targets, torch.Tensor) or targets.shape != F.shape:
            got = tuple(targets.shape) if isinstance(targets, torch.Tensor) else type(targets).__name__
            raise InputError(f"targets: got {got}; expected the shape of the layer's output, {tuple(F.shape)}.")
        self.targets = targets.to(F)

    @property
    def weights(self) -> int:
        """Number of weights of the layer."""
        return sum(w.numel() for w in self.layer.parameters.values())

    def given(self) -> dict[str, Any]:
        """What the page is given: the layer itself if the browser can compute it, else that Python does."""
        about = {"name": repr(self.layer), "weights": self.weights}
        heads = self._heads_as_numbers()
        if heads is None:
            return {**about, "kernel": True}
        return {**about, "kernel": False, "heads": heads, "X": self.X.tolist(), "targets": self.targets.tolist()}

    def _heads_as_numbers(self) -> list[dict[str, Any]] | None:
        """Every head as JavaScript takes it; None where it does not know its kind or its activation, or is too slow."""
        found = [head_as_numbers(head) for head in _heads(self.layer)]
        if self.X.ndim != 2 or self.weights > BROWSER_MAX_WEIGHTS or None in found:
            return None
        return [head for head in found if head is not None]

    def answer(self, sigma: float = 1.0, temperature: float = 1.0, wrong: float = 1.0) -> dict[str, Any]:
        """Norms of all blocks by part, and the eigenvalues: with the tokens times sigma, and so on.

        >>> import torch
        >>> from hessianlens.attention import SelfAttention
        >>> layer = SelfAttention.random(2, 2, seed=0, dtype=torch.float64)
        >>> found = LayerQuestion(layer, torch.ones(3, 2, dtype=torch.float64)).answer(wrong=0.0)
        >>> found["blocks"], found["norms"]["functional"][0], len(found["values"])
        (['Q', 'K', 'V'], [0.0, 0.0, 0.0], 12)
        """
        import torch

        from hessianlens.attention import MultiHeadAttention
        from hessianlens.layer import attention_hessian
        from hessianlens.operators.grid import block_name

        heads = [replace(head, temperature=head.temperature * temperature) for head in _heads(self.layer)]
        layer = MultiHeadAttention(heads) if isinstance(self.layer, MultiHeadAttention) else heads[0]
        X = sigma * self.X
        with torch.no_grad():
            residual = wrong * (layer(X) - self.targets)
        factor = 1 / residual.numel()
        H = attention_hessian(layer, X, grad=2 * factor * residual, curvature=2 * factor)
        names = list(layer.parameters)
        norms = {part: H.part(part).norms() for part in LAYER_PARTS}
        tables = {part: [[float(found[r, c]) for c in names] for r in names] for part, found in norms.items()}
        small = self.weights <= SPECTRUM_MAX_WEIGHTS
        return {
            "blocks": [block_name(name) for name in names],
            "norms": tables,
            "values": torch.linalg.eigvalsh(H.full[:].to_dense()).tolist() if small else None,
            "loss": factor * float(residual.square().sum()),
        }


def _heads(layer: Any) -> tuple[Any, ...]:
    from hessianlens.attention import MultiHeadAttention

    return layer.heads if isinstance(layer, MultiHeadAttention) else (layer,)


def head_as_numbers(head: Any) -> dict[str, Any] | None:
    """A head as JavaScript takes it; None for one of another kind, with a bias or an activation of the user's.

    >>> import torch
    >>> from hessianlens.attention import SelfAttention
    >>> head_as_numbers(SelfAttention.random(1, 1, activation="tanh", causal=True))["activation"]
    {'name': 'tanh'}
    >>> head_as_numbers(SelfAttention.random(1, 1, activation=torch.sin)) is None
    True
    """
    from hessianlens.attention import SelfAttention, SingleMatrixAttention

    activation = activation_as_numbers(head.activation)
    if type(head) not in (SelfAttention, SingleMatrixAttention) or head.bias is not None or activation is None:
        return None
    mask = None if head.mask is None else head.mask.tolist()
    if mask is not None and head.mask.ndim != 2:
        return None
    weights = {name: weight.tolist() for name, weight in head.parameters.items()}
    options = {"causal": head.causal, "mask": mask, "temperature": float(head.temperature)}
    return {**options, "activation": activation, "weights": weights}


def activation_as_numbers(given: Any) -> dict[str, Any] | None:
    """An activation by name, with its options."""
    from hessianlens.attention.activations import ACTIVATIONS, Sigmoid, SoftCapped

    if isinstance(given, str):
        return {"name": given}
    if type(given) is Sigmoid and not isinstance(given.bias, str):
        return {"name": "sigmoid", "bias": given.bias}
    if type(given) is SoftCapped:
        return {"name": "softmax", "cap": given.cap}
    plain = getattr(given, "name", None)
    known = isinstance(plain, str) and plain in ACTIVATIONS and type(given) is type(ACTIVATIONS[plain]())
    return {"name": plain} if known else None


def widget_source() -> str:
    """The module with the widget as its default export, as anywidget takes it."""
    return f"{module_source()}export default notebook;\n"


@cache
def _widget_class() -> Any:
    """The class of the widget, which needs anywidget."""
    with needs_extra("explore", "hl.explore()"):
        import anywidget
        import traitlets

    class LayerWidget(anywidget.AnyWidget):
        """The scene of a layer; `question` is set in the browser, `answer` by Python."""

        _esm = widget_source()
        _css = style()
        given = traitlets.Dict().tag(sync=True)
        question = traitlets.Dict().tag(sync=True)
        answer = traitlets.Dict().tag(sync=True)

        def __init__(self, layer_question: LayerQuestion) -> None:
            self._layer_question = layer_question
            super().__init__(given=layer_question.given())
            self.observe(self._on_question, names="question")

        def _on_question(self, change: Mapping[str, Any]) -> None:
            asked = dict(change["new"])
            identifier = asked.pop("id", None)
            try:
                found = self._layer_question.answer(**{name: float(value) for name, value in asked.items()})
            except (InputError, TypeError, ValueError) as error:
                found = {"error": str(error)}
            self.answer = {**found, "id": identifier}

    return LayerWidget
