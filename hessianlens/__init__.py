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

__version__ = "0.1.0"

# `__init__.pyi` says which name comes from where. A name is imported when it is first used, so that the command line
# can answer --help without torch.
_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_RENAMED = {"theory": "layer", "watching": "monitor"}


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        import warnings

        warnings.warn(f"hessianlens.{name} is now hessianlens.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return _public_name(_RENAMED.get(name, name))
