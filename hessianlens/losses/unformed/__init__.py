"""Cross-entropy of a linear map of features, over chunks of tokens: the logits are never there all at once."""

from hessianlens.losses.unformed.call import linear_cross_entropy
from hessianlens.losses.unformed.form import CrossEntropyForm, Part

__all__ = ["CrossEntropyForm", "Part", "linear_cross_entropy"]
