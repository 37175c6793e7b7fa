"""`Problem.as_written`: the user's batches, logits, attention and loss, whatever a problem makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.problems import Block, Problem

TOKENS, LENGTH, SEQUENCES = 11, 6, 5


class Net(nn.Module):
    """Embedding, one attention layer by PyTorch's call, unembedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(TOKENS, 4), nn.Linear(4, 12)
        self.unembed = nn.Linear(4, TOKENS)

    def forward(self, ids: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(ids))[:, None].chunk(3, -1)
        out: Tensor = self.unembed(nnf.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return out


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().double()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = torch.randint(TOKENS, (2, SEQUENCES, LENGTH), generator=generator)
    return draw[0], draw[1]


def plain(net: Net, batch: tuple[Tensor, Tensor]) -> float:
    with torch.no_grad():
        return float(nnf.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten()))


def same_hvp(one: Problem, other: Problem) -> bool:
    """Whether the two losses have the same gradient and Hessian along a direction, by plain autograd."""

    def hvp(problem: Problem) -> list[Tensor]:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in problem.params.items()}
        with problem.scope():
            loss = torch.stack([problem.batch_loss(leaves, each) for each in problem.data]).sum()
        first = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        generator = torch.Generator().manual_seed(2)
        along = [torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in first]
        inner = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
        return [*first, *torch.autograd.grad(inner, list(leaves.values()))]

    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(hvp(one), hvp(other), strict=True))


def test_all_that_was_replaced_is_put_back(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    made = hl.problem(net, batch, "cross_entropy", micro_batch=2, logits="chunked", attention="chunked")
    written = made.as_written()
    assert len(made.data) == 3 and len(written.data) == 1
    assert torch.equal(written.data[0][0], batch[0])
    assert written.params is made.params and written.blocks is made.blocks and written.reduction == made.reduction
    with torch.no_grad():
        assert float(written.total_loss()) == pytest.approx(plain(net, batch), rel=1e-12)
    assert same_hvp(made, written)
    assert written.as_written() is written


def test_neither_logits_nor_attention_go_through_chunks(
    net: Net, batch: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = hl.problem(net, batch, "cross_entropy", logits="chunked", attention="chunked")

    def refuse(*_: object, **__: object) -> Tensor:
        raise AssertionError("chunks")

    monkeypatch.setattr("hessianlens.models.adapters.losses.linear_cross_entropy", refuse)
    monkeypatch.setattr("hessianlens.models.adapters.twice_differentiable.scaled_dot_product_attention", refuse)
    with pytest.raises(hl.InputError, match="chunks"):
        made.total_loss()
    assert float(made.as_written().total_loss()) == pytest.approx(plain(net, batch), rel=1e-12)


def test_loss_is_called_once_with_the_users_batch(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    seen: list[int] = []

    def loss(outputs: Tensor, given: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(len(given[0]))
        return nnf.cross_entropy(outputs.flatten(0, 1), given[1].flatten())

    made = hl.problem(net, batch, loss, micro_batch=1)
    seen.clear()
    made.as_written().total_loss()
    assert seen == [SEQUENCES]


def test_dtype_and_cut_survive_a_move(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    made = hl.problem(net, batch, "cross_entropy", micro_batch=2).to(torch.float32)
    assert len(made.data) == 3 and made.as_written().dtype == torch.float32
    assert float(made.as_written().total_loss()) == pytest.approx(plain(net, batch), rel=1e-5)


def test_fit_memory_keeps_the_users_batches(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    made = hl.problem(net, batch, "cross_entropy", micro_batch=3)
    need = hl.network.forecast(made, list(made.blocks.values()), probes=1, parts=1)
    fitted = hl.network.fit_memory(made, need.vector_bytes + 2 * need.bytes_per_sequence)
    assert [len(each[0]) for each in fitted.data] == [2, 2, 1]
    assert [len(each[0]) for each in fitted.as_written().data] == [SEQUENCES]


def test_replaced_data_forget_the_uncut_ones(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    made = hl.problem(net, batch, "cross_entropy", micro_batch=2)
    other = replace(made, data=[made.data[0]]).as_written()
    assert len(other.data) == 1 and len(other.data[0][0]) == 2


def test_another_forward_is_another_function(net: Net, batch: tuple[Tensor, Tensor]) -> None:
    made = hl.problem(net, batch, "cross_entropy")
    twice = replace(made, forward=lambda params, each: 2 * made.forward(params, each))
    assert twice.as_written() is twice


def test_a_problem_made_by_hand_is_as_written() -> None:
    w = torch.ones(2)
    made = Problem(
        lambda params, batch: params["w"] * batch,
        lambda out, batch: out.square().sum(),
        {"w": w},
        {"w": Block.of("w", "w", w)},
        [torch.ones(2)],
    )
    assert made.as_written() is made
