"""Embeddings, tied and not: pairs of uses, which use dominates, frequencies of words, blocks of words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close
from hessianlab.claims.quantities import gap
from hessianlab.claims.samples import normal
from hessianlab.experiments.statistics import log_log_slope, rank_correlation
from hessianlens.models import Transformer
from hessianlens.models.adapters import problem
from hessianlens.network import ggn, hessian

DECODERS = 3
VOCAB, D_MODEL, LENGTH, SEQUENCES = 64, 8, 6, 32
STEPS, LEARNING_RATE = 100, 0.01
START, TRAINED = "initialisation", "100 steps"


class RepetitionDecoder(nn.Module):
    """A decoder of one block whose unembedding is its embedding, or has the same numbers as a parameter of its own."""

    def __init__(self, seed: int, tied: bool) -> None:
        super().__init__()
        made = Transformer(
            d_model=D_MODEL,
            vocab=VOCAB,
            context=LENGTH,
            norm="pre",
            mlp_activation="gelu",
            seed=seed,
            dtype=torch.float64,
        )
        self.embedding, self.positions = made.token_embedding, made.position_embedding
        self.block, self.norm_final = made.blocks[0], nn.LayerNorm(D_MODEL, dtype=torch.float64)
        self.unembedding = None if tied else nn.Parameter(made.token_embedding.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next words."""
        x = self.norm_final(self.block(self.embedding[tokens] + self.positions))
        return x @ (self.embedding if self.unembedding is None else self.unembedding).T


def _sequences(seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets: words with probabilities 1 / rank, and the second half of a sequence repeats the first."""
    generator = torch.Generator().manual_seed(900 + seed)
    chances = 1 / torch.arange(1, VOCAB + 1, dtype=torch.float64)
    half = torch.multinomial(chances, SEQUENCES * LENGTH // 2, replacement=True, generator=generator)
    half = half.reshape(SEQUENCES, -1)
    words = torch.cat([half, half, half[:, :1]], 1)
    return words[:, :-1], words[:, 1:]


def _train(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nnf.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimiser.step()


@dataclass(frozen=True, eq=False)
class TiedCurvature:
    """Blocks of a tied matrix and of its uses, rows of words one after the other.

    Attributes:
        tied: Hessian of the tied matrix.
        look_up: Of the use as embedding, as if it were a parameter of its own.
        unembedding: Of the use as unembedding.
        pair: Between the two, rows of the look-up.
        outer_pair: Its Gauss-Newton part.
        outer_look_up: That of the look-up.
        inputs: How often a word is an input.
        targets: How often it is a target.
    """

    tied: Tensor
    look_up: Tensor
    unembedding: Tensor
    pair: Tensor
    outer_pair: Tensor
    outer_look_up: Tensor
    inputs: Tensor
    targets: Tensor

    @property
    def pair_share(self) -> float:
        """Norm of the blocks between the uses over that of the whole."""
        return float((self.pair + self.pair.T).norm() / self.tied.norm())

    @property
    def outer_share(self) -> float:
        """Norm of the Gauss-Newton part of these over theirs."""
        return float((self.outer_pair + self.outer_pair.T).norm() / (self.pair + self.pair.T).norm())

    def output_share(self, rows: Tensor) -> float:
        """Share of the unembedding in the Gauss-Newton trace of these words."""
        look_up, unembedding = (_row_traces(H)[rows].sum() for H in (self.outer_look_up, self.unembedding))
        return float(unembedding / (look_up + unembedding))


def _row_traces(H: Tensor) -> Tensor:
    """Trace of every word's block."""
    return H.diagonal().reshape(-1, D_MODEL).sum(1)


def _share_of_words(H: Tensor) -> float:
    """Share of the squared norm in the blocks of words with themselves."""
    words = H.reshape(len(H) // D_MODEL, D_MODEL, -1, D_MODEL)
    return float(words.diagonal(dim1=0, dim2=2).square().sum() / H.square().sum())


def _curvature(model: RepetitionDecoder, inputs: Tensor, targets: Tensor) -> TiedCurvature:
    apart = RepetitionDecoder(0, tied=False)
    apart.load_state_dict({**model.state_dict(), "unembedding": model.embedding.detach()})
    both, uses = (problem(one, (inputs, targets), "cross_entropy") for one in (model, apart))
    return TiedCurvature(
        hessian(both, "embed", method="exact").to_dense(),
        hessian(uses, "embed", method="exact").to_dense(),
        hessian(uses, "unembedding", method="exact").to_dense(),
        hessian(uses, "embed", "unembedding", method="exact").to_dense(),
        ggn(uses, "embed", "unembedding", method="exact").to_dense(),
        ggn(uses, "embed", method="exact").to_dense(),
        *(torch.bincount(words.flatten(), minlength=VOCAB) for words in (inputs, targets)),
    )


@measured
def _decoders() -> dict[str, list[TiedCurvature]]:
    """At initialisation and after training."""
    found: dict[str, list[TiedCurvature]] = {START: [], TRAINED: []}
    for seed in seeds(DECODERS):
        model, data = RepetitionDecoder(seed, tied=True), _sequences(seed)
        found[START].append(_curvature(model, *data))
        _train(model, *data)
        found[TRAINED].append(_curvature(model, *data))
    return found


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


@claim("D11")
def pair_of_uses() -> Finding:
    """The blocks between the two uses of a tied matrix, beside the whole."""
    found = _decoders()
    shares = {when: [one.pair_share for one in several] for when, several in found.items()}
    outer = {when: [one.outer_share for one in several] for when, several in found.items()}
    sums = [
        gap(one.tied, one.look_up + one.unembedding + one.pair + one.pair.T)
        for several in found.values()
        for one in several
    ]
    return Finding(
        checks=tuple(at_most(f"{when}: pair of uses over the whole", shares[when], 0.1) for when in found),
        support=(
            at_most("both uses and both pairs against the tied matrix's Hessian", sums, 1e-9),
            at_least(f"{START}: pair of uses over the whole", shares[START], 0.2),
            at_most(f"{START}: Gauss-Newton part of the pair over the pair", outer[START], 0.5),
            at_least(f"{TRAINED}: the same", outer[TRAINED], 0.7),
        ),
        numbers={"start": _mean(shares[START]), "trained": _mean(shares[TRAINED]), "outer": _mean(outer[START])},
        example="first decoder, norms at initialisation: "
        + ", ".join(
            f"{name} {float(block.norm()):.2f}"
            for one in found[START][:1]
            for name, block in (
                ("look-up", one.look_up),
                ("unembedding", one.unembedding),
                ("the two between them", one.pair + one.pair.T),
                ("tied", one.tied),
            )
        )
        + ".",
    )


@claim("D12")
def output_use() -> Finding:
    """Share of the unembedding in the Gauss-Newton trace of a tied matrix."""
    found = _decoders()
    everywhere = torch.ones(VOCAB, dtype=torch.bool)
    shares = {when: [one.output_share(everywhere) for one in several] for when, several in found.items()}
    absent = [one.output_share(one.inputs == 0) for several in found.values() for one in several]
    unseen = [int((one.inputs == 0).sum()) for one in found[START]]
    return Finding(
        checks=tuple(at_least(f"{when}: share of the unembedding in the trace", shares[when], 0.5) for when in found),
        conditional=(at_least("words that are no inputs: the same", absent, 0.5),),
        support=(
            at_least("words that are no inputs: the same", absent, 1 - 1e-12),
            at_most(f"{TRAINED}: share of the unembedding in the trace", shares[TRAINED], 0.5),
        ),
        numbers={"start": _mean(shares[START]), "trained": _mean(shares[TRAINED])},
        example=f"{TRAINED}: "
        + ", ".join(f"{share:.2f}" for share in shares[TRAINED])
        + f" of the trace in three decoders; of {VOCAB} words {min(unseen)} to {max(unseen)} are no inputs.",
    )


def _frequency_correlation(one: TiedCurvature) -> float:
    """Between the curvature of a word's row of the unembedding and how often the word is a target."""
    return rank_correlation(one.targets.tolist(), _row_traces(one.unembedding).tolist())[0]


def _readout(vocab: int, targets: Tensor, biases: Tensor) -> Tensor:
    """Hessian of an unembedding of zeros, whose biases alone predict."""
    model = nn.Linear(D_MODEL, vocab).double()
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(biases)
    data = (normal(first_seed(), len(targets), D_MODEL), targets)
    return hessian(problem(model, data, "cross_entropy"), "weight", method="exact").to_dense()


@claim("D13")
def frequent_words() -> Finding:
    """Curvature of the unembedding's rows, beside the frequencies of words."""
    found = _decoders()
    correlations = {when: [_frequency_correlation(one) for one in several] for when, several in found.items()}
    targets = _sequences(first_seed())[1].flatten()
    counts = torch.bincount(targets, minlength=VOCAB).double() + 0.5
    alike, known = (_row_traces(_readout(VOCAB, targets, biases)) for biases in (torch.zeros(VOCAB), counts.log()))
    power = log_log_slope(counts.tolist(), known.tolist())
    assert power is not None
    checks = {
        when: at_least(f"{when}: rank correlation of curvature and frequency", correlations[when], 0.7)
        for when in found
    }
    return Finding(
        checks=tuple(checks.values()),
        conditional=(checks[TRAINED],),
        support=(
            at_most(f"{START}: rank correlation", correlations[START], 0.5),
            close(
                "uniform predictions: largest over smallest curvature of a row",
                float(alike.max() / alike.min()),
                1,
                1e-9,
            ),
            close("biases that know the frequencies: power of the frequency", power, 1, 0.1),
        ),
        numbers={
            "start": _mean(correlations[START]),
            "power": power,
            "factor": float(known.max() / known.min()),
        },
        example="rank correlation in three decoders: "
        + "; ".join(f"{when} {', '.join(f'{r:.2f}' for r in several)}" for when, several in correlations.items())
        + ".",
    )


FEW_WORDS = (2, 8, 64)


@claim("D14")
def blocks_of_words() -> Finding:
    """Share of the squared norm in the blocks of words with themselves."""
    found = _decoders()
    unembedding = {when: [_share_of_words(one.unembedding) for one in several] for when, several in found.items()}
    look_up = {when: [_share_of_words(one.look_up) for one in several] for when, several in found.items()}
    uniform = [
        _share_of_words(_readout(words, torch.arange(SEQUENCES) % words, torch.zeros(words))) * words / (words - 1)
        for words in FEW_WORDS
    ]
    checks = {
        (use, when): at_least(f"{use}, {when}: share of the squared norm in the words' blocks", shares[when], 0.9)
        for use, shares in (("unembedding", unembedding), ("look-up", look_up))
        for when in found
    }
    return Finding(
        checks=tuple(checks.values()),
        conditional=(checks["unembedding", START],),
        support=(
            close(f"uniform predictions, {len(FEW_WORDS)} vocabularies: share over (V - 1) / V", uniform, 1, 1e-9),
            at_most(f"unembedding, {TRAINED}: share", unembedding[TRAINED], 0.9),
            at_most(f"look-up, {START}: share", look_up[START], 0.9),
        ),
        numbers={"trained": _mean(unembedding[TRAINED]), "look_up": _mean(look_up[START])},
        example="shares in three decoders: unembedding "
        + "; ".join(f"{when} {', '.join(f'{share:.2f}' for share in unembedding[when])}" for when in found)
        + f"; look-up {', '.join(f'{share:.2f}' for share in look_up[START])}.",
    )
