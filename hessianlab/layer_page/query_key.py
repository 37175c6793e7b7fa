"""The query-key part split at the scores: eigenvalue pairs and rank."""

from __future__ import annotations

import numpy as np
import torch

from hessianlab.experiments.statistics import rounding
from hessianlab.layer_page.facts import Pairs, Rank
from hessianlab.layer_page.setting import Setting, random_layer
from hessianlab.layer_page.witnesses import relative_gap
from hessianlens.losses import SquareLoss
from hessianlens.theory import attention_hessian, eigenvalue_pairs, t_outer_rank, t_outer_rank_bound

_WIDTHS = 11


def pairs(setting: Setting) -> Pairs:
    """Plus and minus the singular values of a d x d matrix, against the eigenvalues of the dense matrix."""
    found = eigenvalue_pairs(setting.hessian)
    closed = found.eigenvalues()
    dense = torch.linalg.eigvalsh(setting.hessian.t_functional[:].to_dense())
    return Pairs(
        singular_values=tuple(found.values.tolist()),
        multiplicity=found.multiplicity,
        rank=found.rank,
        nonzero=found.nonzero,
        negative=int((dense < -rounding(dense)).sum()),
        closed=tuple(closed.tolist()),
        dense=tuple(dense.tolist()),
        largest_difference=relative_gap(closed, dense),
    )


def ranks(setting: Setting) -> tuple[Rank, ...]:
    """The T-outer-product Hessian of new layers of several query widths, on all tokens and on the first half."""
    config = setting.config
    lengths = sorted({config.length, max(2, config.length // 2)}, reverse=True)
    widths = sorted({round(w) for w in np.linspace(1, 1.25 * config.d_model, _WIDTHS)})
    return tuple(_rank(setting, length, d_k) for length in lengths for d_k in widths)


def _rank(setting: Setting, length: int, d_k: int) -> Rank:
    config = setting.config
    loss = SquareLoss(setting.loss.targets[:, :length])
    H = attention_hessian(random_layer(config, d_k=d_k), setting.X[:, :length], loss)
    signed = torch.linalg.eigvalsh(H.t_outer[:].to_dense())
    values = signed.abs().sort(descending=True).values
    rank, largest = int((values > max(rounding(signed), setting.residue)).sum()), float(values[0])
    generic = config.activation == "softmax" and config.batch == 1 and not config.causal
    return Rank(
        length=length,
        d_k=d_k,
        measured=rank,
        bound=t_outer_rank_bound(config.d_model, d_k),
        exact=t_outer_rank(length, config.d_model, d_k) if generic else None,
        smallest_kept=float(values[rank - 1]) / largest if rank else None,
        largest_dropped=float(values[rank]) / largest if 0 < rank < len(values) else None,
    )
