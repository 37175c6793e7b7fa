"""hessianlens: the curvature laboratory for Transformers.

The exact Hessian of an attention layer, in three lines::

    layer = hl.SelfAttention(W_Q, W_K, W_V)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    H.full["Q", "K"].frobenius_norm()
"""

from hessianlens import safe_path

if safe_path.is_program():  # before anything is imported that does not belong to this package
    safe_path.forget_current_folder()

import lazy_loader

from hessianlens.renames import with_earlier_names

__version__ = "0.2.0"

# `__init__.pyi` says which name comes from where. A name is imported when it is first used, so that the command line
# can answer --help without torch.
_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_ONE_LEVEL_DOWN = {
    "attention": "Activation FactoredValueAttention RotaryAttention activations attention_entropy first_moment "
    "second_moment third_moment third_moment_along",
    "errors": "RankError",
    "inspect": "load_param_groups",
    "layer": "AttentionHessian eigenvalue_pairs predicted_growth t_outer_rank t_outer_rank_bound",
    "losses": "CustomLoss LowRankCoupledCurvature LowRankTokenCurvature linear_cross_entropy",
    "network": "BlockNorms Forecast PairNorms fit_memory forecast",
    "operators": "BlockGrid Operator StructuredOperator TokenSum",
    "spectra": "Estimate",
}
_EARLIER = {
    "Measured": "inspect.BlockMeasurements",
    "theory": "layer",
    "watching": "monitor",
    **{name: f"{module}.{name}" for module, names in _ONE_LEVEL_DOWN.items() for name in names.split()},
}
"""Where names of earlier versions are now."""


__getattr__ = with_earlier_names(__name__, _public_name, _EARLIER)
