"""Cross-entropy of a linear map of features, over chunks of tokens: the logits are never there all at once."""

from hessianlens.losses.fused_cross_entropy.call import linear_cross_entropy
from hessianlens.losses.fused_cross_entropy.form import CrossEntropyForm, Part

__all__ = ["CrossEntropyForm", "Part", "linear_cross_entropy"]
