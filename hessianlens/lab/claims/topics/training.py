"""Claims of the article on softmax about trained models: nothing at initialisation can settle them."""

from __future__ import annotations

from hessianlens.lab.claims.definition import unmeasured
from hessianlens.lab.claims.finding import Verdict

_TOPIC = "training"

too_flat = unmeasured(
    "C13",
    "Brain teaser 1, real-world impact",
    "Custom attention without the exponential fails to train or stays mediocre, because its patterns are too flat.",
    Verdict.NEEDS_TRAINING,
    "It compares trained models. What can be measured without training: weights by row sum are less uniform than "
    "softmax's, not flatter, unless all scores are at least 1 (C27).",
    topic=_TOPIC,
)

slower = unmeasured(
    "C19",
    "Brain teaser 2, the experiment to run",
    "Without scaling, training is 3 to 5 times slower, if it converges at all.",
    Verdict.NEEDS_TRAINING,
    "A ratio of training times, with and without the factor 1/sqrt(d_K), at rates tuned for each.",
    topic=_TOPIC,
)

perplexity = unmeasured(
    "C20",
    "Brain teaser 2, the experiment to run",
    "Without scaling, perplexity ends 10 to 20 % worse.",
    Verdict.NEEDS_TRAINING,
    "A final loss of trained language models.",
    topic=_TOPIC,
)

peaked = unmeasured(
    "C21",
    "Brain teaser 2, the experiment to run",
    "Without scaling, the trained model's attention is far too peaked.",
    Verdict.NEEDS_TRAINING,
    "It is about attention after training, which may shrink its own weights. C18 measures it before training: "
    "peaked for wide heads with unit-variance components, not for the small weights of a GPT-2 initialisation.",
    topic=_TOPIC,
)

raw_dot_products = unmeasured(
    "C25",
    "Brain teaser 3, option 1",
    "Raw dot products as attention weights do not work in practice.",
    Verdict.NEEDS_TRAINING,
    "Whether they work is decided by training. C24 measures their signs and their growth.",
    topic=_TOPIC,
)

relu_performance = unmeasured(
    "C31",
    "Brain teaser 3, option 3",
    "ReLU attention loses 5 to 15 % on most benchmarks and needs careful initialisation and learning rates.",
    Verdict.NEEDS_TRAINING,
    "A comparison of trained models on benchmarks the article does not name.",
    topic=_TOPIC,
)

layer_temperatures = unmeasured(
    "C42",
    "The temperature knob, experiment for technical leaders",
    "Learned temperatures end higher in lower layers and lower in upper layers.",
    Verdict.NEEDS_TRAINING,
    "It is about parameters after fine-tuning. Since a temperature can be absorbed into W_Q (C41), its learned "
    "value says something only together with the scale of the weights.",
    topic=_TOPIC,
)

CLAIMS = (too_flat, slower, perplexity, peaked, raw_dot_products, relu_performance, layer_temperatures)
