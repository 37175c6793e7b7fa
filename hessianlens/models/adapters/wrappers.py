"""Look through what is put around a model: compilers, parallel wrappers, adapters of fine-tuning."""

from __future__ import annotations

from torch import nn

from hessianlens.errors import InputError

_INSIDE = {
    "OptimizedModule": "_orig_mod",  # torch.compile
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "AveragedModel": "module",  # averages of weights, torch.optim.swa_utils
    "DeepSpeedEngine": "module",
    "PeftModel": "base_model",
    "PeftMixedModel": "base_model",
    "BaseTuner": "model",  # LoRA and its like: the model with its adapters in place
}
"""Classes that only pass on what they are called with, and where they keep the model."""


def unwrap_model(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The model inside any number of wrappers, and a note for each of these, the outermost first.

    Classes are recognised by the names of their ancestors, so that none of their packages has to be there.

    >>> inner, notes = unwrap_model(nn.DataParallel(nn.Linear(2, 2)))
    >>> inner, notes
    (Linear(in_features=2, out_features=2, bias=True), ('DataParallel: the module inside is differentiated',))
    """
    notes: list[str] = []
    while (place := _place(model)) is not None:
        inner = getattr(model, place, None)
        if not isinstance(inner, nn.Module):
            break
        _expect_transparent(model)
        notes.append(f"{type(model).__name__}: the module inside is differentiated")
        model = inner
    return model, tuple(notes)


def _place(model: nn.Module) -> str | None:
    """Where a wrapper keeps its model; None for anything else."""
    return next((_INSIDE[kind.__name__] for kind in type(model).__mro__ if kind.__name__ in _INSIDE), None)


def _expect_transparent(model: nn.Module) -> None:
    """Prompt tuning puts tokens in front of the inputs: without its wrapper the model is another one."""
    if "prompt_encoder" in model._modules:
        raise InputError(
            f"model: {type(model).__name__} puts learned tokens in front of the inputs (prompt_encoder), which the "
            "model inside does not see, expected adapters inside the model, such as LoRA; wrap it in a module of your "
            "own that returns its logits, and give a loss."
        )
