"""The words a reader may not know: what they mean, and links to that at their first use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from hessianlab.pages import typeset
from hessianlab.report.exponents import RULE


@dataclass(frozen=True)
class Word:
    """An entry: its address, its name, the pattern it is found by, and what it means."""

    slug: str
    name: str
    pattern: str
    meaning: str


GLOSSARY: tuple[Word, ...] = (
    Word("hessian", "Hessian", r"Hessians?", "The table of all second derivatives of the loss: how the slope in one "
         "direction changes along another."),
    Word("block", "Block", r"[Bb]locks?(?! of width)", "The part of the Hessian that belongs to one weight matrix (a "
         "diagonal block) or to a pair of them: QQ belongs to the queries, VV to the values, QK to queries and keys."),
    Word("query", "Query, key, value", r"query-key|quer(?:y|ies)|keys?|values? block", "The three weight matrices of "
         "an attention layer: queries and keys decide where a token looks, values what it takes from there."),
    Word("norm", "Norm of a block", r"Frobenius norms?|norms? of", "The root of the sum of the squared entries, one "
         "number for the size of a block."),
    Word("outer", "Outer part", r"outer[- ]product|[Oo]uter(?: part)?|Gauss[-–]Newton(?: part)?", "Also Gauss-Newton "
         "part: the curvature of the loss seen through the first derivatives of the network. It has no negative "
         "eigenvalues if the loss is convex."),
    Word("functional", "Functional part", r"(?<!T-)[Ff]unctional(?: part)?", "The Hessian minus its outer part: the "
         "network's own second derivative, weighted by the gradient of the loss at its output. Its eigenvalues "
         "have both signs."),
    Word("t-functional", "T-functional and T-outer part", r"T-(?:functional|outer(?:-product)?)(?: part)?", "T is the "
         "matrix of attention scores. The query-key part of the Hessian split there, at T, instead of at the output: "
         "the T-functional part is there only because two matrices, queries and keys, are multiplied to scores; the "
         "T-outer part is what a single matrix would have, too."),
    Word("sigma", "σ, the embedding scale", r"σ|sigma", "The number all embeddings are multiplied by. At "
         "initialisation it is about 0.2 in the networks shown; a thin upright line marks σ = 1."),
    Word("power", "Power, exponent", r"exponents?|powers? of", "A norm that goes as σ to the power 5 is multiplied by "
         "32 when σ doubles. The exponent is the slope on logarithmic axes."),
    Word("moment", "Moment", r"moments?", "Of an attention row: the mean of the tokens under its weights (first), "
         "their covariance (second), their skewness (third). Weights that do not sum to one, as sigmoid's, give sums "
         "instead of means."),
    Word("activation", "Activation, a(0)", r"activations?|a\(0\)", "The function that turns scores into attention "
         "weights; softmax is the usual one. a(0) is its value at a score of zero. “linear” takes the scores as they "
         "are; “ReLU / row sum” and “scores / row sum” divide max(t, 0), or t itself, by the sum of their row, "
         "and have no value where all scores are zero; “sigmoid(t − log L)” subtracts the logarithm of the length L."),
    Word("agrees", "Agrees, differs, open", r"agrees?|cannot be decided", f"{RULE} Other figures state their own "
         "tolerance."),
    Word("one-hot", "Uniform and one-hot attention", r"one-hot|[Uu]niform attention", "Uniform: every token gets the "
         "same weight. One-hot: one token gets all of it."),
    Word("temperature", "Temperature", r"temperatures?", "A number the scores are divided by: high temperatures make "
         "attention uniform, low ones one-hot."),
    Word("eigenvalue", "Eigenvalue, spectrum", r"eigenvalues?|spectr(?:um|a)", "The curvature along one of the "
         "directions in which a Hessian acts by itself; all of them are its spectrum. Negative ones bend down."),
    Word("indefinite", "Indefinite", r"indefinite|positive semi-definite", "A matrix with eigenvalues of both signs is "
         "indefinite; one without negative ones is positive semi-definite."),
    Word("rank", "Rank and rank bound", r"rank(?! correlation)(?: bound)?|ranks|bound of Lemma D\.2", "The number of "
         "directions that are not flat. The rank bound is the most that a formula allows, whatever the data."),
    Word("residual", "Residual, F − Y", r"[Rr]esiduals?|F - Y", "Output F minus target Y: what is still wrong."),
    Word("layer-norm", "Layer norm, Pre-LN", r"[Ll]ayer norms?|Pre-LN", "Rescales every token to the same length; "
         "Pre-LN puts it in front of each layer."),
    Word("skip", "Skip connection", r"skip connections?|skips", "Passes the input of a layer on beside the layer and "
         "adds it to the output."),
    Word("draw", "Draw", r"draws?", "One set of random weights, tokens or both. Numbers are means over several, with "
         "their spread."),
    Word("published", "Measured (predicted, published)", r"(?!)", "Measured: in this run. Predicted: by counting "
         "powers or from a formula. Published: as the paper or article draws or states it."),
)  # fmt: skip
"""In the order of the page's argument."""


class Linker:
    """Sets words and links those of the glossary, each once; a page has one linker for every section."""

    def __init__(self) -> None:
        self._left = {word.slug: re.compile(rf"(?<![\w-])(?:{word.pattern})(?![\w-])") for word in GLOSSARY}

    def __call__(self, words: object) -> Markup:
        """Text with its first technical words linked.

        >>> print(Linker()("The block of the queries"))
        The <a class="word" href="#word-block">block</a> of the <a class="word" href="#word-query">queries</a>
        """
        text = str(words)
        spans: list[tuple[int, int, str]] = []
        for slug, pattern in list(self._left.items()):
            found = next((m for m in pattern.finditer(text) if _free(m.span(), spans)), None)
            if found:
                spans.append((*found.span(), slug))
                del self._left[slug]
        return Markup("").join(self._pieces(text, sorted(spans)))

    def _pieces(self, text: str, spans: list[tuple[int, int, str]]) -> Iterator[Markup]:
        end = 0
        for start, stop, slug in spans:
            yield typeset(text[end:start])
            yield Markup(f'<a class="word" href="#word-{slug}">{typeset(text[start:stop])}</a>')
            end = stop
        yield typeset(text[end:])


def _free(span: tuple[int, int], taken: list[tuple[int, int, str]]) -> bool:
    return all(span[1] <= start or stop <= span[0] for start, stop, _ in taken)
