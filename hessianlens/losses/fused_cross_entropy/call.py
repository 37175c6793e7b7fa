"""The call: torch's signature, and what else heads of language models have."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import check_choice, check_number, check_that, expect
from hessianlens.losses.fused_cross_entropy.form import CrossEntropyForm, cross_entropy
from hessianlens.losses.fused_cross_entropy.row_parts import CrossEntropyRule
from hessianlens.sizes import parse_size

MEMORY = "256 MiB"
"""What the logits of a chunk, and what is made of them, may take."""


@torch.compiler.disable
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    memory: str | float = MEMORY,
) -> Tensor:
    """``cross_entropy(H W^T + b, y)``, twice differentiable, without a matrix of tokens by classes.

    The logits of a language model, tens of thousands of numbers per token, are usually held several times: for the
    value, the gradient, and twice more for a second derivative. Here value, gradient and second-order products are
    closed forms over chunks of tokens; every pass recomputes the logits of a chunk and stores only the inputs.
    Features, weight and bias can all be differentiated, so that a weight that is tied to an embedding is right as
    well. Reverse and forward mode and `torch.func`'s transforms (grad, vjp, jvp, jacrev, jacfwd, hessian, vmap) are
    covered; third derivatives raise an error.

    Args:
        input: H, features (..., d).
        linear_weight: W, (V, d).
        target: y, the class of every token, whole numbers (...).
        linear_bias: b, (V,).
        weight: How much each class counts, (V,).
        reduction: "mean" over the tokens that count, by the weights of their classes; "sum"; or "none".
        ignore_index: The target of tokens without a loss.
        label_smoothing: The share of a target that is spread over all classes.
        scale: What ``H W^T + b`` is multiplied by.
        softcap: c, where logits are replaced by ``c tanh(logits / c)``, as in Gemma 2.
        memory: Memory for the logits of a chunk and their derivatives: a number of bytes or "256 MiB".

    Returns:
        A scalar, or with ``reduction="none"`` a loss per token. Half precision is computed in float32.

    >>> h = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)  # 2 sequences of 5 tokens
    >>> W, y = torch.randn(100, 8, dtype=torch.float64), torch.randint(100, (2, 5))
    >>> loss = linear_cross_entropy(h, W, y)
    >>> bool(torch.allclose(loss, torch.nn.functional.cross_entropy((h @ W.T).flatten(0, 1), y.flatten())))
    True
    >>> (g,) = torch.autograd.grad(loss, h, create_graph=True)
    >>> torch.autograd.grad(g.square().sum(), h)[0].shape
    torch.Size([2, 5, 8])
    """
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    h, W, b, dtype = _tensors(input, linear_weight, linear_bias)
    classes = _class_weights(weight, W)
    smoothing = check_number("label_smoothing", label_smoothing, 0.0)
    check_that(smoothing <= 1, "label_smoothing", label_smoothing, "a number from 0 to 1")
    check_that(isinstance(ignore_index, int), "ignore_index", ignore_index, "a whole number")
    rule = CrossEntropyRule(
        ignore_index=ignore_index,
        smoothing=smoothing,
        scale=check_number("scale", scale),
        softcap=None if softcap is None else check_number("softcap", softcap, 0.0, strictly=True),
        workspace=int(parse_size(memory, "memory")),
    )
    y = _targets(target, h, len(W), ignore_index)
    if y.numel() == 0:
        losses = (h.sum() + W.sum()) * y.new_zeros(y.shape, dtype=h.dtype)
    else:
        flat = h.reshape(-1, h.shape[-1])
        losses = cross_entropy(CrossEntropyForm(rule), flat, W, b, y.reshape(-1), classes).reshape(y.shape)
    if reduction == "none":
        return losses.to(dtype)
    total = losses.sum()
    if reduction == "mean":
        counted = y != ignore_index
        own = counted if classes is None else classes[torch.where(counted, y, 0)] * counted
        total = total / own.sum()
    return total.to(dtype)


def _tensors(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, torch.dtype]:
    """Features, weight and bias in the precision of the computation, at least float32, and the dtype of the result."""
    named = {"input": input, "linear_weight": weight, **({} if bias is None else {"linear_bias": bias})}
    for name, tensor in named.items():
        check_that(isinstance(tensor, Tensor), name, tensor, "a tensor")
        check_dense(name, tensor, allow_meta=True)
        expect(tensor.is_floating_point(), f"{name}: got {tensor.dtype}, expected a floating dtype.")
        expect(
            tensor.device == input.device and tensor.dtype == input.dtype,
            f"{name}: got {tensor.dtype} on {tensor.device}, expected {input.dtype} on {input.device} like input.",
        )
    expect(
        input.ndim >= 1 and weight.ndim == 2 and input.shape[-1] == weight.shape[1],
        f"input, linear_weight: got shapes {tuple(input.shape)} and {tuple(weight.shape)}, expected (..., d) and "
        "(V, d).",
    )
    expect(
        bias is None or bias.shape == weight.shape[:1],
        f"linear_bias: got shape {None if bias is None else tuple(bias.shape)}, expected {tuple(weight.shape[:1])}.",
    )
    kind = input.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if input.dtype == torch.float64:  # autocast leaves float64 as it is
        return input, weight, bias, input.dtype
    # Autocast rounds what goes into the linear map, and takes the cross-entropy in float32.
    dtype = torch.get_autocast_dtype(kind) if casts else input.dtype
    h, W = (tensor.to(dtype).to(torch.float32) for tensor in (input, weight))
    return h, W, None if bias is None else bias.to(dtype).to(torch.float32), torch.float32 if casts else dtype


def _class_weights(weight: Tensor | None, W: Tensor) -> Tensor | None:
    if weight is None:
        return None
    check_dense("weight", weight, allow_meta=True)
    expect(
        weight.shape == W.shape[:1] and weight.is_floating_point() and weight.device == W.device,
        f"weight: got {weight.dtype} of shape {tuple(weight.shape)} on {weight.device}, expected a floating number for "
        f"each of the {len(W)} classes on {W.device}.",
    )
    expect(not weight.requires_grad, "weight: got a tensor that requires grad, expected fixed weights; detach it.")
    return weight.to(W.dtype)


def _targets(target: Tensor, h: Tensor, classes: int, ignore_index: int) -> Tensor:
    check_that(isinstance(target, Tensor), "target", target, "a tensor of whole numbers")
    expect(
        not target.is_floating_point() and target.dtype != torch.bool and target.shape == h.shape[:-1],
        f"target: got {target.dtype} of shape {tuple(target.shape)}, expected whole numbers of shape "
        f"{tuple(h.shape[:-1])}, a class per token.",
    )
    expect(target.device == h.device, f"target: got a tensor on {target.device}, expected {h.device} like input.")
    target = target.long()
    if not target.is_meta and not torch._C._functorch.is_functorch_wrapped_tensor(target):
        wrong = target[((target < 0) | (target >= classes)) & (target != ignore_index)]
        expect(
            wrong.numel() == 0,
            f"target: got class {int(wrong[0]) if wrong.numel() else 0}, expected 0 .. {classes - 1} for "
            f"{classes} classes, or {ignore_index} where there is no loss.",
        )
    return target
