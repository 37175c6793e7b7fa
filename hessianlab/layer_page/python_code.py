"""Python that gives each section's numbers again, from the library alone."""

from __future__ import annotations

from textwrap import dedent

from hessianlab.layer_page.facts import LayerFacts


def snippets(facts: LayerFacts) -> dict[str, str]:
    """One program a section; each continues the one named "layer"."""
    texts = {
        "layer": _layer(facts),
        "witnesses": _WITNESSES,
        "maps": _MAPS,
        "blocks": _BLOCKS,
        "growth": _growth(facts),
        "pairs": _pairs(facts),
        "sharpness": _SHARPNESS,
        "algebra": "\n".join(facts.algebra),
    }
    return {name: dedent(text).strip() for name, text in texts.items()}


def _layer(facts: LayerFacts) -> str:
    c = facts.config
    return f"""
    import torch
    import hessianlens as hl

    layer = hl.SelfAttention.random(
        d_model={c.d_model}, d_k={c.d_k}, seed={c.seed}, dtype=torch.float64,
        activation="{c.activation}", causal={c.causal}, temperature={c.temperature},
    )
    generator = torch.Generator().manual_seed({c.seed + 1})
    X, Y = torch.randn(2, {c.batch}, {c.length}, {c.d_model}, generator=generator, dtype=torch.float64)
    loss = hl.SquareLoss(Y)
    H = hl.attention_hessian(layer, X, loss)
    value = loss.value(layer(X))
    """


_WITNESSES = """
    names = list(layer.parameters)
    sizes = [w.numel() for w in layer.parameters.values()]
    weights = torch.cat([w.reshape(-1) for w in layer.parameters.values()])

    def output(flat):
        parts = zip(names, flat.split(sizes))
        return layer.with_parameters({n: p.reshape(layer.parameters[n].shape) for n, p in parts})(X)

    g = H.loss.gradient  # dl/dF
    J = torch.func.jacrev(output)(weights).reshape(Y.numel(), -1)
    dense = {
        "outer": 2 / Y.numel() * J.T @ J,
        "functional": torch.func.hessian(lambda w: (g * output(w)).sum())(weights),
        "full": torch.func.hessian(lambda w: loss.value(output(w)))(weights),
    }
    difference = {
        part: (H.part(part)[:].to_dense() - D).abs().max() / D.abs().max() for part, D in dense.items()
    }
    """

_MAPS = """
    matrices = {part: H.part(part)[:].to_dense() for part in ("full", "outer", "functional")}
    logs = {part: M.abs().log10() for part, M in matrices.items()}  # -inf where an entry is exactly zero
    """

_BLOCKS = """
    norms = {part: H.part(part).norms() for part in ("outer", "functional", "full")}  # norms["full"]["Q", "K"]
    block = H.full["Q", "Q"]
    trace = block.trace()
    eigenvalues = torch.linalg.eigvalsh(block.to_dense())
    negative = eigenvalues[eigenvalues < 0]
    negative_share = negative.abs().sum() / eigenvalues.abs().sum()
    """


def _growth(facts: LayerFacts) -> str:
    growth = facts.growth
    fitted = sum(s <= growth.fit_high for s in growth.sigmas)
    return f"""
    import dataclasses

    def slope(activation, part, row, column):
        scaled = dataclasses.replace(layer, activation=activation)
        sigma = torch.logspace(-1.5, 0, {fitted}, dtype=torch.float64) * {growth.fit_high!r}
        norms = torch.stack([
            hl.attention_hessian(scaled, s * X, grad=H.loss.gradient, curvature=2 / Y.numel())
            .part(part)[row, column].frobenius_norm()
            for s in sigma
        ])
        x = sigma.log() - sigma.log().mean()
        return (x @ norms.log() / (x @ x)).item()

    measured = slope("softmax", "outer", "Q", "Q")
    predicted = hl.predicted_growth("softmax", "outer", "Q", "Q")
    """


def _pairs(facts: LayerFacts) -> str:
    c = facts.config
    return f"""
    pairs = hl.eigenvalue_pairs(H).eigenvalues()
    dense = torch.linalg.eigvalsh(H.t_functional[:].to_dense())

    def rank(length, d_k):
        other = hl.SelfAttention.random(
            d_model={c.d_model}, d_k=d_k, seed={c.seed}, dtype=torch.float64,
            activation="{c.activation}", causal={c.causal}, temperature={c.temperature},
        )
        G = hl.attention_hessian(other, X[:, :length], hl.SquareLoss(Y[:, :length])).t_outer[:].to_dense()
        values = torch.linalg.eigvalsh(G).abs()
        return int((values > len(values) * torch.finfo(G.dtype).eps * values.max()).sum())

    measured = rank({c.length}, {c.d_k})
    bound = hl.t_outer_rank_bound({c.d_model}, {c.d_k})
    exact = hl.t_outer_rank({c.length}, {c.d_model}, {c.d_k})  # softmax, one sequence, no mask
    """


_SHARPNESS = """
    def sharpened(factor):
        sharp = layer.with_parameters({"Q": factor * layer.W_Q})
        S = hl.attention_hessian(sharp, X, loss)
        A = S.heads[0].weights
        return {
            "QQ outer": S.outer["Q", "Q"].frobenius_norm(),
            "QQ functional": S.functional["Q", "Q"].frobenius_norm(),
            "VV": S.outer["V", "V"].frobenius_norm(),
            "M2": hl.second_moment(A, X).norm(),
            "M3": hl.third_moment_along(A, X, S.loss.gradient @ layer.W_V.T).norm(),
            "entropy": hl.attention_entropy(A).mean() if A.min() >= 0 else None,
        }

    at_ten = sharpened(10.0)
    """
