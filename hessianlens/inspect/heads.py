"""What a Hugging Face model can be asked to predict."""

HEADS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "encoder": "AutoModel",
}
"""What a model predicts, and the class that loads it."""
