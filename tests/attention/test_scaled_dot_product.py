"""Attention that can be differentiated twice, against autograd through everything written out."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessianlens as hl
from hessianlens.attention.activations import as_activation
from hessianlens.attention.sdpa import derivatives
from hessianlens.memory import LiveBytes
from tests.oracles.plain_attention import plain_attention

attend = hl.scaled_dot_product_attention
TINY = 700  # bytes: every matrix of scores below takes several chunks


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def operands(batch=(2,), heads=2, key_heads=2, length=5, keys=5, width=3, values=4):
    q, k = drawn(*batch, heads, length, width), drawn(*batch, key_heads, keys, width, seed=1)
    return q, k, drawn(*batch, key_heads, keys, values, seed=2)


def boolean(*shape):
    mask = drawn(*shape, seed=3) > -0.5
    mask[..., 1, :] = False  # a row that sees nothing
    return mask


def holes(*shape):
    return drawn(*shape, seed=3).masked_fill(drawn(*shape, seed=4) > 1, -torch.inf)


CASES = {
    "plain": (operands(), {}),
    "causal": (operands(), {"is_causal": True}),
    "more keys than queries, causal": (operands(keys=7), {"is_causal": True}),
    "more queries than keys, causal": (operands(length=7), {"is_causal": True}),
    "scale": (operands(), {"scale": 0.3}),
    "no axis of heads": (tuple(x[0, 0] for x in operands()), {"is_causal": True}),
    "two axes of batches": (operands(batch=(2, 3), heads=1, key_heads=1), {}),
    "keys for all sequences": ((drawn(3, 2, 5, 3), drawn(1, 2, 5, 3, seed=1), drawn(2, 5, 4, seed=2)), {}),
    "boolean mask": (operands(), {"attn_mask": boolean(5, 5)}),
    "boolean mask a sequence": (operands(), {"attn_mask": boolean(2, 1, 5, 5)}),
    "padding": (operands(), {"attn_mask": drawn(2, 1, 1, 5) > -0.7}),
    "bias a head": (operands(), {"attn_mask": drawn(2, 5, 5, seed=3)}),
    "bias with holes": (operands(), {"attn_mask": holes(2, 2, 5, 5)}),
    "shared by heads": (operands(heads=4), {"enable_gqa": True, "is_causal": True}),
    "shared by heads, mask a head": (operands(heads=6), {"enable_gqa": True, "attn_mask": boolean(6, 5, 5)}),
    "shared by heads, mask a sequence": (operands(heads=4), {"enable_gqa": True, "attn_mask": boolean(2, 1, 5, 5)}),
}
BEYOND_TORCH = {
    "window": (operands(), {"window": (1, 2)}),
    "window that sees no key": (operands(length=9, keys=3), {"window": (1, 0)}),
    "causal window": (operands(length=8, keys=8), {"window": (2, 0), "is_causal": True}),
    "window of shared heads": (operands(heads=4), {"window": (1, 0), "enable_gqa": True}),
    "soft cap": (operands(), {"softcap": 0.7, "is_causal": True}),
    "soft cap behind which a mask": (operands(), {"softcap": 0.7, "attn_mask": holes(5, 5)}),
    **{
        name: (operands(), {"activation": as_activation(name), "is_causal": True})
        for name in ("sigmoid", "sigmoid_log_length", "linear", "relu", "tanh", "exp", "relu_normalised", "row_sum")
    },
    "a user's function": (operands(), {"activation": as_activation(lambda row: torch.softmax(2 * row, -1))}),
}
every_case = pytest.mark.parametrize("name", [*CASES, *BEYOND_TORCH])


def torch_attention(q, k, v, **how):
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **how)


def close(a, b):
    return torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def differentiated(attention, inputs, how):
    """Value, gradient, and gradient of the gradient's product with a vector, with respect to every tensor."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    how, extra = dict(how), []
    mask = how.get("attn_mask")
    if mask is not None and mask.is_floating_point() and how.get("softcap") is None:
        how["attn_mask"] = mask.clone().requires_grad_()
        extra = [how["attn_mask"]]
    out = attention(*leaves, **how)
    first = torch.autograd.grad(
        (out * out.detach().cos()).sum() + out.pow(3).sum(), [*leaves, *extra], create_graph=True
    )
    product = sum((g * drawn(*g.shape, seed=7)).sum() for g in first)
    return [out, *first, *torch.autograd.grad(product, [*leaves, *extra])]


@every_case
def test_value_gradient_and_second_derivative(name):
    inputs, how = {**CASES, **BEYOND_TORCH}[name]
    ours = differentiated(lambda *x, **h: attend(*x, memory=TINY, **h), inputs, how)
    theirs = differentiated(plain_attention, inputs, how)
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_torch(name):
    inputs, how = CASES[name]
    if name == "bias with holes":  # torch's own gradient is nan in a row that sees nothing
        close(attend(*inputs, **how), torch_attention(*inputs, **how))
        return
    for a, b in zip(differentiated(attend, inputs, how), differentiated(torch_attention, inputs, how), strict=True):
        close(a, b)


def test_a_wrong_second_derivative_is_seen(monkeypatch):
    right = derivatives._gather_turned
    monkeypatch.setattr(
        derivatives, "_gather_turned", lambda found, piece, turned, e, dq, dk: right(found, piece, turned, e, dq, None)
    )
    with pytest.raises(AssertionError):
        test_value_gradient_and_second_derivative("causal")


TRANSFORMS = {
    "hessian": torch.func.hessian,
    "reverse over reverse": lambda f, a: torch.func.jacrev(torch.func.jacrev(f, a), a),
    "forward over forward": lambda f, a: torch.func.jacfwd(torch.func.jacfwd(f, a), a),
    "reverse over forward": lambda f, a: torch.func.jacrev(torch.func.jacfwd(f, a), a),
}
SMALL = {
    "causal": (operands((1,), 2, 2, 3, 3, 2, 1), {"is_causal": True}),
    "shared heads and a mask": (operands((1,), 4, 2, 2, 3, 2, 2), {"enable_gqa": True, "attn_mask": boolean(2, 3)}),
    "sigmoid": (operands((1,), 1, 1, 3, 3, 2, 2), {"activation": as_activation("sigmoid")}),
    "soft cap": (operands((1,), 1, 1, 3, 3, 2, 2), {"softcap": 0.6}),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", SMALL)
def test_transforms_of_torch_func(name, transform):
    inputs, how = SMALL[name]
    which = (0, 1, 2)
    ours = TRANSFORMS[transform](lambda *x: attend(*x, memory=300, **how).tanh().sum(), which)(*inputs)
    theirs = torch.func.hessian(lambda *x: plain_attention(*x, **how).tanh().sum(), which)(*inputs)
    for row, expected in zip(ours, theirs, strict=True):
        for a, b in zip(row, expected, strict=True):
            close(a, b)


def test_vmap_and_jvp():
    (q, k, v), change = operands(), drawn(2, 2, 5, 3, seed=9)
    close(torch.func.vmap(attend, in_dims=(0, None, None))(q, k[0], v[0]), attend(q, k[:1], v[:1]))
    for attention in (attend, plain_attention):
        out, moved = torch.func.jvp(lambda q, a=attention: a(q, k, v, is_causal=True), (q,), (change,))
        close(out, plain_attention(q, k, v, is_causal=True))
        close(moved, torch.func.jvp(lambda q: plain_attention(q, k, v, is_causal=True), (q,), (change,))[1])


@pytest.mark.expensive
@every_case
def test_numerical_differences_agree(name):
    inputs, how = {**CASES, **BEYOND_TORCH}[name]
    leaves = [x.clone().requires_grad_() for x in inputs]

    def attention(*x):
        return attend(*x, memory=TINY, **how)

    forward = name != "a user's function"  # its derivatives are PyTorch's own, whose forward mode does not nest
    assert torch.autograd.gradcheck(attention, leaves, check_forward_ad=forward, fast_mode=True)
    assert torch.autograd.gradgradcheck(attention, leaves, check_fwd_over_rev=forward, fast_mode=True)


def test_a_gauss_newton_product_by_two_reverse_passes_may_be_differentiated_again():
    q, k, v = (x.requires_grad_() for x in operands((1,), 1, 1, 3, 3, 2, 2))
    out = attend(q, k, v)
    g = torch.zeros_like(out, requires_grad=True)
    (vjp,) = torch.autograd.grad(out, q, g, create_graph=True)
    (jvp,) = torch.autograd.grad(vjp, g, drawn(1, 1, 3, 2), create_graph=True)
    (ours,) = torch.autograd.grad(jvp.square().sum(), k)
    expected = torch.func.grad(
        lambda k: torch.func.jvp(lambda q: plain_attention(q, k, v), (q,), (drawn(1, 1, 3, 2),))[1].square().sum()
    )(k.detach())
    close(ours, expected)


def test_a_third_derivative_is_refused():
    q, k, v = (x.requires_grad_() for x in operands((1,), 1, 1, 3, 3, 2, 2))
    (first,) = torch.autograd.grad(attend(q, k, v).pow(3).sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), q, create_graph=True)
    with pytest.raises(hl.InputError, match="third derivative"):
        torch.autograd.grad(second.sum(), q)


def test_nothing_of_the_size_of_the_scores_is_kept():
    q, k, v = (torch.randn(1, 2, 200, 4, requires_grad=True) for _ in range(3))
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        out = attend(q, k, v, is_causal=True)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        torch.autograd.grad(first.square().sum(), k)
    assert max(sizes) <= q.numel()


def run_twice(inputs, how, memory):
    """Value, gradients and second derivatives, with the most memory held and the tensors made."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    with LiveBytes(leaves) as live:
        out = attend(*leaves, memory=memory, **how)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    return [out, *first, *second], live


@pytest.mark.parametrize("name", ["causal", "bias a head", "shared by heads, mask a head", "causal window"])
def test_a_dry_run_has_the_shapes_of_a_run(name):
    inputs, how = {**CASES, **BEYOND_TORCH}[name]
    hidden = {key: x.to("meta") if isinstance(x, torch.Tensor) else x for key, x in how.items()}
    expected, _ = run_twice(inputs, how, TINY)
    found, _ = run_twice([x.to("meta") for x in inputs], hidden, TINY)
    assert [x.shape for x in found] == [x.shape for x in expected]


def test_a_dry_run_takes_two_chunks_and_holds_what_a_run_holds():
    inputs, how, memory = operands(length=600, keys=600, width=8, values=8), {"is_causal": True}, 2**21
    real, dry = (run_twice([x.to(device) for x in inputs], how, memory)[1] for device in ("cpu", "meta"))
    assert dry.peak == pytest.approx(real.peak, rel=0.25)
    assert dry.made < real.made / 4
    long, _ = run_twice([torch.empty(8, 2, 2**17, 32, device="meta") for _ in range(3)], how, 2**26)
    assert long[0].shape == (8, 2, 2**17, 32)


def test_dropped_weights_are_the_same_in_every_derivative():
    inputs = [x.clone().requires_grad_() for x in operands((1,), 1, 1, 3, 3, 2, 2)]

    def dropping(*x):
        torch.manual_seed(5)
        return attend(*x, dropout_p=0.4, memory=300)

    assert torch.autograd.gradcheck(dropping, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(dropping, inputs, fast_mode=True)
    ones = torch.ones(1, 1, 400, 8, dtype=torch.float64)
    kept = attend(ones, ones, torch.eye(400, dtype=torch.float64)[None, None], dropout_p=0.25) * 400 * 0.75
    assert set(kept.unique().round(decimals=9).tolist()) == {0.0, 1.0}
    assert abs(float(kept.mean()) - 0.75) < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_is_computed_in_float32(dtype):
    q, k, v = (x.to(dtype).requires_grad_() for x in operands(length=40, keys=40))
    out = attend(q, k, v, is_causal=True)
    (first,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.float().square().sum(), k)
    assert out.dtype == first.dtype == second.dtype == dtype
    exact = plain_attention(*(x.detach().double() for x in (q, k, v)), is_causal=True)
    assert (out.double() - exact).abs().max() <= 2 * torch.finfo(dtype).eps * exact.abs().max()


def test_autocast_gives_the_dtype_of_torch_and_stays_out_of_the_passes():
    q, k, v = (x.float().requires_grad_() for x in operands())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attend(q, k, v)
        assert out.dtype == F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        (first,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
        torch.autograd.grad(first.square().sum(), k)
    rounded = plain_attention(*(x.detach().bfloat16().double() for x in (q, k, v)))
    assert (out.double() - rounded).abs().max() <= 2 * torch.finfo(torch.bfloat16).eps * rounded.abs().max()


def test_the_answer_does_not_depend_on_the_memory_and_repeats_itself():
    inputs = operands(length=30, keys=30)
    small, large = (differentiated(lambda *x, m=m, **h: attend(*x, memory=m, **h), inputs, {}) for m in (500, "1 GiB"))
    for a, b in zip(small, large, strict=True):
        close(a, b)
    for a, b in zip(large, differentiated(attend, inputs, {}), strict=True):
        assert torch.equal(a, b)


def test_no_queries_and_no_keys():
    q, k, v = operands()
    assert attend(q[..., :0, :], k, v).shape == (2, 2, 0, 4)
    assert attend(q, k[..., :0, :], v[..., :0, :]).eq(0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_mask": torch.ones(5, 5, dtype=torch.bool), "is_causal": True}, "one of the two"),
        ({"attn_mask": torch.ones(3, 5, dtype=torch.bool)}, r"attn_mask: got shape \(3, 5\)"),
        ({"attn_mask": torch.ones(5, 5, dtype=torch.int64)}, "attn_mask: got torch.int64"),
        ({"dropout_p": 1.0}, "dropout_p"),
        ({"scale": float("nan")}, "scale"),
        ({"window": -1}, "window"),
        ({"softcap": 0.0}, "softcap"),
        ({"memory": "much"}, "memory"),
        ({"activation": "softmix"}, "activation"),
        ({"key": torch.zeros(2, 2, 5, 7, dtype=torch.float64)}, "expected .*L, E"),
        ({"key": torch.zeros(2, 2, 5, 3)}, "key: got torch.float32"),
        ({"key": drawn(2, 3, 5, 3), "value": drawn(2, 3, 5, 4)}, "broadcast"),
        ({"key": drawn(2, 3, 5, 3), "value": drawn(2, 3, 5, 4), "enable_gqa": True}, "multiple"),
    ],
)
def test_refused(change, message):
    q, k, v = operands()
    with pytest.raises(hl.InputError, match=message):
        attend(**{"query": q, "key": k, "value": v, **change})


def test_a_bias_behind_a_cap_is_not_differentiated():
    bias = drawn(5, 5).requires_grad_()
    with pytest.raises(hl.InputError, match="softcap"):
        attend(*operands(), attn_mask=bias, softcap=1.0).sum().backward()
