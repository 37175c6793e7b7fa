"""Modules in the way that people write them: parametrised weights, adapters, caches, checkpoints, inner derivatives.

Each is a habit of real code, small enough for a dense Hessian; those of `tests.hostile.cases` are traps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf
from torch.utils.checkpoint import checkpoint

from tests.hostile.cases import Attention, D, Decoder, Layer, decoder
from tests.hostile.specimen import Batch, Specimen, randn, regression, with_random_weights

WORDS = 5

HABITS: dict[str, Callable[[], Specimen]] = {}
"""By what they do."""


def habit(made: Callable[[], Specimen]) -> Callable[[], Specimen]:
    HABITS[made.__name__] = made
    return made


class Maps(nn.Module):
    """Two maps and a last one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Words(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(WORDS, D), nn.ModuleList([Layer(Attention(bias=True))])
        self.norm, self.lm_head = nn.LayerNorm(D), nn.Linear(D, WORDS, bias=False)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.norm(self.layers[0](self.embed(ids)))

    def forward(self, ids: Tensor) -> Tensor:
        return self.lm_head(self.hidden(ids))


def ids(sequences: int = 2, length: int = 4, seed: int = 1) -> Tensor:
    return torch.randint(WORDS, (sequences, length), generator=torch.Generator().manual_seed(seed))


def language(
    model: nn.Module, loss: Callable[[Tensor, Batch], Tensor] | str = "cross_entropy", **options: object
) -> Specimen:
    """Two batches of other lengths."""
    return Specimen(with_random_weights(model), [(ids(), ids(seed=2)), (ids(3, 6, 3), ids(3, 6, 4))], loss, options)


def as_it_is(model: nn.Module) -> Specimen:
    """A model whose weights are set before they are parametrised."""
    x = randn(2, 4, D, seed=7)
    with torch.no_grad():
        out = model.eval()(x)
    return Specimen(model, [(x, randn(*out.shape, seed=8))])


def token_losses(out: Tensor, batch: Batch) -> Tensor:
    """``[sequence, position]``."""
    return nnf.cross_entropy(out.flatten(0, 1), batch[1].flatten(), reduction="none").reshape(batch[1].shape)


# --- weights that are made of others ---------------------------------------------------------------------------------


class _Sinh(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return torch.sinh(X)


@habit
def orthogonal_weight() -> Specimen:
    model = with_random_weights(Maps())
    nn.utils.parametrizations.orthogonal(model.second)
    return as_it_is(model)


@habit
def spectral_norm() -> Specimen:
    model = with_random_weights(Maps())
    nn.utils.parametrizations.spectral_norm(model.second)
    return as_it_is(model)


@habit
def parametrised_queries() -> Specimen:
    model = with_random_weights(Decoder(Attention(bias=True)))
    nn.utils.parametrize.register_parametrization(model.layers[0].attn.q_proj, "weight", _Sinh())
    return as_it_is(model)


@habit
def parametrisation_computed_once_for_two_uses() -> Specimen:
    class Twice(Maps):
        def forward(self, x: Tensor) -> Tensor:
            with nn.utils.parametrize.cached():
                return self.last(torch.tanh(self.second(torch.tanh(self.second(self.first(x))))))

    model = with_random_weights(Twice())
    nn.utils.parametrize.register_parametrization(model.second, "weight", _Sinh())
    return as_it_is(model)


class _Adapted(nn.Module):
    """A weight with a low-rank one added by hand, and the length of its rows learned apart from it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.length = nn.Linear(D, D), nn.Parameter(torch.zeros(D))
        self.A, self.B = nn.Parameter(torch.zeros(1, D)), nn.Parameter(torch.zeros(D, 1))

    def forward(self, x: Tensor) -> Tensor:
        W = self.base.weight + self.B @ self.A
        return nnf.linear(x, self.length[:, None] * W / W.norm(dim=1, keepdim=True), self.base.bias)


@habit
def adapter_merged_by_hand() -> Specimen:
    class Adapted(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.v_proj = _Adapted()

    return decoder(Adapted)


@habit
def weights_doubled_by_functional_call() -> Specimen:
    class Doubled(Maps):
        def forward(self, x: Tensor) -> Tensor:
            weights = {name: 2 * p for name, p in self.second.named_parameters()}
            return self.last(torch.tanh(torch.func.functional_call(self.second, weights, (torch.tanh(self.first(x)),))))

    return regression(Doubled())


@habit
def weights_of_another_module_by_functional_call() -> Specimen:
    class Swapped(Maps):
        def forward(self, x: Tensor) -> Tensor:
            weights = dict(self.first.named_parameters())
            z = torch.func.functional_call(self.second, weights, (torch.tanh(self.first(x)),))
            return self.last(torch.tanh(z) + self.second(x))

    return regression(Swapped())


@habit
def hypernetwork_of_the_tokens() -> Specimen:
    class Hyper(Maps):
        def __init__(self) -> None:
            super().__init__()
            self.second = nn.Linear(D, D * D)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(self.first(x) @ self.second(x.mean(1)).unflatten(-1, (D, D))))

    return regression(Hyper())


@habit
def buffer_recomputed_from_a_weight() -> Specimen:
    class Buffered(Maps):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("gram", torch.zeros(D, D), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.gram = self.first.weight @ self.first.weight.T
            return self.last(torch.tanh(self.second(torch.tanh(self.first(x)) @ self.gram)))

    return regression(Buffered())


@habit
def one_flat_parameter() -> Specimen:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(torch.zeros(2 * D * D))

        def forward(self, x: Tensor) -> Tensor:
            first, second = (piece.view(D, D) for piece in self.flat.split(D * D))
            return torch.tanh(x @ first) @ second

    return regression(Flat())


@habit
def overlapping_strides() -> Specimen:
    class Strided(Maps):
        def forward(self, x: Tensor) -> Tensor:
            W = torch.as_strided(self.first.weight, (D, D), (1, 1))
            return self.last(torch.tanh(x @ W) + self.second(x))

    return regression(Strided())


@habit
def frozen_copy_of_a_module() -> Specimen:
    class Copied(Maps):
        def forward(self, x: Tensor) -> Tensor:
            target = copy.deepcopy(self.second).requires_grad_(False)
            return self.last(torch.tanh(self.second(self.first(x))) + target(x))

    return regression(Copied())


# --- attention -------------------------------------------------------------------------------------------------------


@habit
def cache_of_keys_and_values_in_chunks() -> Specimen:
    class Cached(Attention):
        def forward(self, x: Tensor) -> Tensor:
            self.past, found = None, []
            for piece in x.split(2, 1):
                q, k, v = self.operands(piece)
                if self.past is not None:
                    k, v = (torch.cat(both, 1) for both in zip(self.past, (k, v), strict=True))
                self.past = k, v
                found.append(self.mixed(piece, torch.softmax(self.scores(q, k), -1), v))
            return torch.cat(found, 1)

    return decoder(Cached)


@habit
def difference_of_two_attentions() -> Specimen:
    class Difference(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.q2, self.k2, self.share = nn.Linear(D, D), nn.Linear(D, D), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.operands(x)
            second = torch.softmax(self.scores(self.q2(x), self.k2(x)), -1)
            return self.mixed(x, torch.softmax(self.scores(q, k), -1) - torch.sigmoid(self.share) * second, v)

    return decoder(Difference)


@habit
def learned_slope_of_distances() -> Specimen:
    class Sloped(Attention):
        def __init__(self) -> None:
            super().__init__(bias=True)
            self.slope, self.cap = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

        def scores(self, q: Tensor, k: Tensor) -> Tensor:
            n, cap = torch.arange(q.shape[1], dtype=q.dtype), 2 + self.cap**2
            return cap * torch.tanh((super().scores(q, k) - self.slope.exp() * (n[:, None] - n).abs()) / cap)

    return decoder(Sloped)


@habit
def two_attentions_with_one_output_map() -> Specimen:
    class Two(Attention):
        def __init__(self) -> None:
            super().__init__(bias=True)
            self.q2 = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.operands(x)
            queries = (q, self.q2(x))
            return sum((self.mixed(x, torch.softmax(self.scores(each, k), -1), v) for each in queries), torch.zeros(()))

    return decoder(Two)


@habit
def keys_of_the_first_layer_in_all() -> Specimen:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.lm_head = nn.ModuleList([Attention(True), Attention(True)]), nn.Linear(D, 2)
            self.mix = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            k = self.layers[0].k_proj(x)
            for layer in self.layers:
                q, v = layer.q_proj(x), layer.v_proj(x)
                x = x + self.mix * layer.o_proj(torch.softmax(layer.scores(q, k), -1) @ v)
            return self.lm_head(torch.tanh(x))

    return regression(Shared())


@habit
def scores_of_the_layer_before() -> Specimen:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.lm_head = nn.ModuleList([Attention(True), Attention(True)]), nn.Linear(D, 2)

        def forward(self, x: Tensor) -> Tensor:
            scores = torch.zeros(())
            for layer in self.layers:
                q, k, v = layer.operands(x)
                scores = scores + layer.scores(q, k)
                x = x + layer.mixed(x, torch.softmax(scores, -1), v)
            return self.lm_head(torch.tanh(x))

    return regression(Residual())


@habit
def positions_halt_on_their_own() -> Specimen:
    class Halting(Decoder):
        def __init__(self) -> None:
            super().__init__(Attention(True))
            self.halt = nn.Linear(D, 1)

        def forward(self, x: Tensor) -> Tensor:
            once = self.layers[0](x)
            done, twice = torch.sigmoid(self.halt(once)), self.layers[0](once)
            return self.lm_head(torch.tanh(done * once + (1 - done) * twice))

    return regression(Halting())


@habit
def bias_of_keys_as_a_key_of_its_own() -> Specimen:
    class Sink(Attention):
        def __init__(self) -> None:
            super().__init__(bias=True)

        def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().operands(x)
            first = [b.expand(len(x), 1, -1) for b in (self.k_proj.bias, self.v_proj.bias)]
            return q, torch.cat([first[0], k], 1), torch.cat([first[1], v], 1)

    return decoder(Sink)


@habit
def half_of_the_queries_detached() -> Specimen:
    class Detached(Attention):
        def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().operands(x)
            return 0.5 * q + 0.5 * q.detach(), k, v

    return decoder(Detached)


# --- how a model is run ----------------------------------------------------------------------------------------------


@habit
def checkpointed_layer() -> Specimen:
    """Run again in the backward pass, when the model has its own parameters again."""

    class Checkpointed(Decoder):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return self.lm_head(torch.tanh(x))

    return regression(Checkpointed(Attention(bias=True)))


@habit
def checkpoint_in_a_checkpoint() -> Specimen:
    class Nested(Maps):
        def step(self, x: Tensor) -> Tensor:
            return checkpoint(lambda at: torch.tanh(self.second(at)), x, use_reentrant=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(lambda at: self.step(self.step(at)), self.first(x), use_reentrant=False))

    return regression(Nested())


@habit
def other_path_for_long_sequences() -> Specimen:
    """A second use of a weight that the first batch does not show."""

    class Long(Words):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x + torch.tanh(self.layers[0].attn.o_proj(x)) if ids.shape[1] > 4 else x

    return language(Long())


@habit
def running_mean_beside() -> Specimen:
    class Running(Maps):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(D))

        def forward(self, x: Tensor) -> Tensor:
            z = torch.tanh(self.first(x))
            self.mean.mul_(0.9).add_(z.detach().mean((0, 1)), alpha=0.1)
            return self.last(torch.tanh(self.second(z)))

    return regression(Running())


@habit
def inner_step_of_gradient_descent() -> Specimen:
    class Inner(Maps):
        def forward(self, x: Tensor) -> Tensor:
            W = self.first.weight
            slope = torch.func.grad(lambda at: torch.tanh(nnf.linear(x, at)).square().mean())(W)
            return self.last(torch.tanh(nnf.linear(x, W - 0.5 * slope)))

    return regression(Inner())


@habit
def derivative_by_the_inputs_in_the_outputs() -> Specimen:
    class Physics(Maps):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                at = x.detach().requires_grad_()
                u = super().forward(at)
                (slope,) = torch.autograd.grad(u.sum(), at, create_graph=True)
            return torch.cat([u, slope], -1)

    return regression(Physics())


@habit
def experts_by_scattered_tokens() -> Specimen:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.last = nn.Linear(D, 3), nn.Linear(D, 2)
            self.experts = nn.ModuleList(nn.Linear(D, D) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(0, 1)
            weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
            out = torch.zeros_like(flat)
            for number, expert in enumerate(self.experts):
                row, place = torch.where(chosen == number)
                out.index_add_(0, row, torch.tanh(expert(flat[row])) * weights[row, place, None])
            return self.last(out.view_as(x))

    return regression(Experts())


@habit
def two_words_predicted_by_one_head() -> Specimen:
    class Tied(Words):
        def __init__(self) -> None:
            super().__init__()
            self.lm_head.weight, self.scale = self.embed.weight, nn.Parameter(torch.ones(()))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.hidden(ids)
            return self.lm_head(x * self.scale) + 0.5 * self.lm_head(torch.tanh(self.layers[0](x)))

    return language(Tied())


# --- losses ----------------------------------------------------------------------------------------------------------


@habit
def penalty_on_the_normaliser() -> Specimen:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        return token_losses(out, batch).mean() + 0.1 * out.logsumexp(-1).square().mean()

    return language(Words(), loss)


@habit
def sequences_ranked_in_pairs() -> Specimen:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        value = token_losses(out, batch).sum(1)
        return nnf.softplus(value[:, None] - value).mean()

    return language(Words(), loss)


@habit
def contrast_between_sequences() -> Specimen:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        z = nnf.normalize(out.mean(1), dim=-1)
        return nnf.cross_entropy(z @ z.T + batch[1].double().mean(1), torch.arange(len(z)))

    return language(Words(), loss)


@habit
def words_seen_before_are_penalised() -> Specimen:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        seen = out.softmax(-1).gather(-1, batch[0][:, None].expand(-1, out.shape[1], -1)).tril().sum(-1)
        return token_losses(out, batch).mean() - 0.1 * torch.log(1 - 0.1 * seen).mean()

    return language(Words(), loss)


@habit
def easy_tokens_count_less() -> Specimen:
    def loss(out: Tensor, batch: Batch) -> Tensor:
        value = token_losses(out, batch)
        return ((1 - (-value).exp()) ** 2 * value).mean()

    return language(Words(), loss)
