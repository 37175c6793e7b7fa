"""The GPT-2-style decoder of the literature, every part of it configurable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessianlens.attention.activations import ActivationLike
from hessianlens.checks import check_dense, check_dtype
from hessianlens.errors import InputError, check_flag, check_number, check_seed, check_whole, describe_value, expect
from hessianlens.memory import ensure_fits
from hessianlens.models.arguments import head_width
from hessianlens.models.attention import Attention
from hessianlens.models.block import MLP, TransformerBlock, layer_norm
from hessianlens.models.embedding import check_tokens, look_up
from hessianlens.models.initialisation import fill_normal, generator

if TYPE_CHECKING:
    from typing import Self


class Transformer(nn.Module):
    """``logits = norm_final(blocks(E[tokens] + P)) W_U + b_U``; see `TransformerBlock` for the equations of a block.

    The defaults are the paper's model (Appendix F): one block, one head, causal softmax, no norm, ReLU. Only plain
    differentiable operations are used, so derivatives of any order exist.

    Weights: every matrix from N(0, (init_scale / sqrt(d_model))^2), biases zero, norms at gain one and shift zero. All
    matrices come as standard normals from one generator in this order: token_embedding, position_embedding; block by
    block W_Q, W_K (or W_QK), W_V, W_O, W_in, W_out; W_U. They are scaled and then rounded to the dtype, so one seed
    means the same weights in every dtype, and `embedding_std` rescales the two embeddings and changes nothing else.

    Args:
        layers: Number of blocks.
        d_model: Width of the residual stream.
        heads: Attention heads per block.
        d_mlp: Width of the MLP; 4 d_model by default.
        vocab: Number of tokens.
        context: Number of learned positions, the longest sequence.
        attention: Attention activation: a name from `hessianlens.attention.activations.ACTIVATIONS`, an `Activation` or
            a function of a row of scores.
        norm: ``None``, ``"pre"`` (LayerNorm before attention, before the MLP and before the unembedding) or ``"post"``
            (LayerNorm after each residual sum).
        residual_scale: Factor of the skip connection around attention; the one around the MLP has none.
        seed: Seed of all weights.
        d_head: Width of a head; d_model / heads by default.
        query_key: ``"dual"`` for W_Q and W_K, ``"single"`` for one matrix W_QK per head, with no sqrt(d_head).
        temperature: Divides the scores.
        causal: Token i sees tokens 0 .. i only.
        mlp: ``False`` leaves out the MLP and its skip connection.
        mlp_activation: A name from `hessianlens.models.block.MLP_ACTIVATIONS` or a function of a tensor.
        attention_bias: ``False`` leaves out b_Q, b_K, b_V and b_O.
        init_scale: See above.
        embedding_std: Standard deviation of both embeddings; ``None`` for that of the other matrices.
        dtype: Dtype of the weights and of the output.

    >>> model = Transformer(layers=2, d_model=8, heads=2, attention="sigmoid", norm="pre")
    >>> model(torch.zeros(3, 18, dtype=torch.int64)).shape
    torch.Size([3, 18, 12])
    >>> [name for name, _ in model.blocks[0].attention.named_parameters()]
    ['W_Q', 'W_K', 'W_V', 'W_O', 'b_Q', 'b_K', 'b_V', 'b_O']
    """

    def __init__(
        self,
        layers: int = 1,
        d_model: int = 128,
        heads: int = 1,
        d_mlp: int | None = None,
        vocab: int = 12,
        context: int = 18,
        attention: ActivationLike = "softmax",
        norm: str | None = None,
        residual_scale: float = 1.0,
        seed: int = 0,
        *,
        d_head: int | None = None,
        query_key: str = "dual",
        temperature: float = 1.0,
        causal: bool = True,
        mlp: bool = True,
        mlp_activation: str | Callable[[Tensor], Tensor] = "relu",
        attention_bias: bool = True,
        init_scale: float = 0.8,
        embedding_std: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        for name, count in {"layers": layers, "d_model": d_model, "vocab": vocab, "context": context}.items():
            check_whole(name, count)
        check_dtype(dtype)
        check_flag("mlp", mlp)
        inner = 4 * d_model if d_mlp is None else check_whole("d_mlp", d_mlp)
        check_whole("heads", heads)
        width = heads * (head_width(d_model, heads) if d_head is None else check_whole("d_head", d_head))
        numbers = (vocab * 2 + context + layers * (4 * width + (2 * inner if mlp else 0)), d_model)
        ensure_fits("The weights", numbers, torch.float64, torch.device("cpu"), "take a smaller model", 2)
        self.token_embedding = nn.Parameter(torch.zeros(vocab, d_model, dtype=dtype))
        self.position_embedding = nn.Parameter(torch.zeros(context, d_model, dtype=dtype))

        def block() -> TransformerBlock:
            attend = Attention(
                d_model,
                heads,
                d_head,
                activation=attention,
                query_key=query_key,
                temperature=temperature,
                causal=causal,
                bias=attention_bias,
                dtype=dtype,
            )
            dense = MLP(d_model, 4 * d_model if d_mlp is None else d_mlp, mlp_activation, dtype) if mlp else None
            return TransformerBlock(attend, dense, norm=norm, residual_scale=residual_scale)

        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm_final = layer_norm(d_model, dtype) if norm == "pre" else None
        self.W_U = nn.Parameter(torch.zeros(d_model, vocab, dtype=dtype))
        self.b_U = nn.Parameter(torch.zeros(vocab, dtype=dtype))
        self._weight_std = check_number("init_scale", init_scale, 0.0) / math.sqrt(d_model)
        self._draw(embedding_std, check_seed(seed))

    def _draw(self, embedding_std: float | None, seed: int) -> None:
        source = generator(seed)
        self._draw_embeddings(embedding_std, source)
        for matrix in [p for p in self.blocks.parameters() if p.ndim == 2] + [self.W_U]:
            fill_normal(matrix, self._weight_std, source)

    def _draw_embeddings(self, std: float | None, source: torch.Generator) -> None:
        chosen = self._weight_std if std is None else check_number("embedding_std", std, 0.0)
        for table in (self.token_embedding, self.position_embedding):
            fill_normal(table, chosen, source)

    def redraw_embeddings(self, std: float | None, seed: int) -> Self:
        """Draw both embeddings anew from N(0, std^2), in place; all other weights stay as they are.

        With the model's own seed the result is the model that ``embedding_std=std`` would have made.

        >>> model = Transformer(d_model=4, seed=3).redraw_embeddings(0.1, seed=3)
        >>> torch.equal(model.token_embedding, Transformer(d_model=4, seed=3, embedding_std=0.1).token_embedding)
        True
        """
        self._draw_embeddings(std, generator(seed))
        return self

    def embed(self, tokens: Int[Tensor, "*b l"]) -> Float[Tensor, "*b l d"]:
        """Token plus position embedding, the residual stream that enters block 0."""
        length, context = check_tokens(tokens, self.token_embedding.is_meta).shape[-1], len(self.position_embedding)
        expect(
            length <= context,
            f"tokens: got sequences of {length}, expected at most context = {context}; "
            "shorten them or build the model with a larger context.",
        )
        return look_up(self.token_embedding, tokens) + self.position_embedding[:length]

    def unembed(self, residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        """Logits from the residual stream after the last block."""
        self._check_width("residual", residual, self.W_U.shape[0])
        last = residual if self.norm_final is None else self.norm_final(residual)
        return last @ self.W_U + self.b_U

    def forward(self, tokens: Int[Tensor, "*b l"]) -> Float[Tensor, "*b l v"]:
        """Logits (B, L, vocab) of tokens (B, L); (L, vocab) of a single sequence (L,)."""
        residual = self.embed(tokens)
        for block in self.blocks:
            residual = block(residual)
        return self.unembed(residual)

    def residual(self, tokens: Int[Tensor, "*b l"], layer: int = -1) -> Float[Tensor, "*b l d"]:
        """The residual stream (B, L, d_model) that enters block `layer`; negative numbers count from the end."""
        stream = self.embed(tokens)
        for block in self.blocks[: self._index(layer)]:
            stream = block(stream)
        return stream

    def attention_input(self, tokens: Int[Tensor, "*b l"], layer: int = -1) -> Float[Tensor, "*b l d"]:
        """X (B, L, d_model), what W_Q, W_K and W_V of block `layer` act on."""
        return self._block(layer).attention_input(self.residual(tokens, layer))

    def _check_width(self, name: str, given: object, width: int) -> None:
        """Vectors of a width, in the precision of the weights."""
        on_meta = self.W_U.is_meta and isinstance(given, Tensor) and given.is_meta  # neither has contents
        vectors = cast(Tensor, given) if on_meta else check_dense(name, given)
        expect(
            vectors.shape[-1:] == (width,) and vectors.dtype == self.W_U.dtype,
            f"{name}: got {vectors.dtype} of shape {tuple(vectors.shape)}, expected {self.W_U.dtype} and {width} in "
            "the last axis.",
        )

    def extra_repr(self) -> str:
        """Sizes that no part shows by itself."""
        return f"vocab={len(self.token_embedding)}, context={len(self.position_embedding)}"

    def _index(self, layer: object) -> int:
        depth = len(self.blocks)
        if isinstance(layer, bool) or not isinstance(layer, int) or not -depth <= layer < depth:
            raise InputError(
                f"layer: got {describe_value(layer)}, expected 0 .. {depth - 1}, or -{depth} .. -1 counted from the "
                "end."
            )
        return layer % depth

    def _block(self, layer: int) -> TransformerBlock:
        return cast(TransformerBlock, self.blocks[self._index(layer)])
