"""What a model predicts, by its class: which loss is its own, or why there is none."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

_CAUSAL = ("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "GenerationDecoder")
_DECODED = ("ForConditionalGeneration", "ForTextToText", "MTModel", "EncoderDecoderModel")
_SPANS = ("ForQuestionAnswering", "ForQuestionAnsweringSimple")
_CLASSES = ("TokenClassification", "ForMaskedLM", "ForPreTraining", "ForMultipleChoice", "ForNextSentencePrediction")

_OTHERS = {
    "ForCTC": "has a loss over alignments (CTC), no sum over positions",
    "Segmentation": "enlarges its outputs to the size of the labels before it compares them",
    "Detection": "matches its boxes with those of the labels",
    "ForMaskedImageModeling": "reconstructs pixels",
    "CLIPModel": "compares the images and texts of a batch with each other",
}
"""Heads whose own loss is none of those known here."""

_REMEDY = "give loss='cross_entropy', 'square' or 'bce' with targets, or a function of outputs and batch"


def decodes(model: nn.Module) -> bool:
    """Whether a model has an encoder, and a decoder that predicts labels."""
    return head_kind(model, None) == "decoder"


def head_kind(model: nn.Module, targets: Tensor | None) -> str | None:
    """What a Hugging Face head predicts, by the name of its class or of an ancestor; None for other models.

    "causal" (the next token), "decoder" (the labels, by an encoder and a decoder), "classes", "span" (start and end of
    an answer), "regression" or "multi_label".
    """
    if not hasattr(model, "config"):
        return None
    for name in _names(model):
        if name.endswith("WithLMHeadModel") and targets is not None:  # XLM, FlauBERT: labels are not moved on
            return "classes"
        if name.endswith(_CAUSAL):
            return "causal"
        if name.endswith(_DECODED) and getattr(model.config, "is_encoder_decoder", False):
            return "decoder"
        if name.endswith(_SPANS):
            return "span"
        if name.endswith(_CLASSES):
            return "classes"
        if name.endswith("Classification"):
            return _classification_kind(model.config, targets)
    return None


def no_own_loss(model: nn.Module, kind: str | None, targets: object) -> str:
    """Why a model has no loss of its own on this data, and what to do.

    >>> no_own_loss(nn.Linear(2, 2), None, targets=None)
    "loss: Linear is a plain module, which has no loss of its own, and the data has no targets; give loss=..."
    """
    found = "" if targets is not None else ", and the data has no targets"
    name = type(model).__name__
    if kind is not None:
        wanted = "'start_positions' and 'end_positions'" if kind == "span" else "'labels'"
        return (
            f"loss: {name}'s own loss compares its outputs with labels, and the data has none; give a dict with "
            f"{wanted}, or a loss: a function of outputs and batch."
        )
    if not hasattr(model, "config"):
        return f"loss: {name} is a plain module, which has no loss of its own{found}; {_REMEDY}."
    for own in _names(model):
        reason = next((why for end, why in _OTHERS.items() if own.endswith(end)), None)
        if reason is not None:
            return f"loss: {name} {reason}: its own loss is not known here{found}; {_REMEDY}."
        if own.endswith("Model") and not own.endswith("PreTrainedModel"):
            return f"loss: {name} has no head and so no loss of its own{found}; load it with a head, or {_REMEDY}."
    return f"loss: {name} is not among the classes whose own loss is known here{found}; {_REMEDY}."


def _names(model: nn.Module) -> Iterator[str]:
    """Names of the model's class and of its ancestors, up to what all models share."""
    for kind in type(model).__mro__:
        if kind.__name__ in ("PreTrainedModel", "Module"):
            return
        yield kind.__name__


def _classification_kind(config: object, targets: Tensor | None) -> str:
    """As Hugging Face decides it: what the configuration states, else by the number and dtype of the labels."""
    stated = getattr(config, "problem_type", None)
    if stated is None and getattr(config, "num_labels", None) == 1:
        return "regression"
    if stated is None and isinstance(targets, Tensor) and targets.is_floating_point():
        return "multi_label"
    return {"regression": "regression", "multi_label_classification": "multi_label"}.get(str(stated), "classes")
