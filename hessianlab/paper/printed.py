"""The paper's setting: one sequence, one softmax attention layer, the mean squared error."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlab.paper.data_terms import moment_1, z_1, z_2
from hessianlab.paper.kronecker import identity, kron, softmax_jacobian, softmax_second_derivative, vec
from hessianlens.operators.commutation import commutation_matrix

Block = Literal["Q", "K", "V"]


class PrintedLayer:
    """What the printed layers share: `F = A X W_V` under the square loss `||F - Y||^2 / (L d_V)`."""

    X: Tensor
    W_V: Tensor
    Y: Tensor

    @property
    def A(self) -> Float[Tensor, "L L"]:
        """The attention matrix; each row sums to one."""
        raise NotImplementedError

    @property
    def L(self) -> int:
        """Number of tokens."""
        return self.X.shape[0]

    @property
    def d_V(self) -> int:
        """Width of tokens and values."""
        return self.X.shape[1]

    @property
    def loss_factor(self) -> float:
        """`2 / (L d_V)`: the square loss has gradient `2/(L d_V) (F - Y)` and curvature `2/(L d_V) I`."""
        return 2 / (self.L * self.d_V)

    @property
    def F(self) -> Float[Tensor, "L d_V"]:
        """The output of the layer."""
        return self.A @ self.X @ self.W_V

    @property
    def delta(self) -> Float[Tensor, "Ld_V 1"]:
        """The residual `vec(F - Y)`, a column (erratum `residual-orientation`)."""
        return vec(self.F - self.Y)

    @property
    def Z_1(self) -> Float[Tensor, "Ld_V d_V_squared"]:
        """Data term of the first softmax derivative (Theorem 3.1)."""
        return z_1(self.X, softmax_jacobian(self.A))

    @property
    def Z_2(self) -> Float[Tensor, "Ld_V_cubed d_V_squared"]:
        """Data term of the second softmax derivative (Theorem 3.2)."""
        return z_2(self.X, softmax_second_derivative(self.A))


@dataclass(frozen=True, eq=False)
class PrintedAttention(PrintedLayer):
    """Softmax self-attention with square loss, in the letters of the paper (Section 2, Equation (1)).

    `F = A X W_V`, `A = softmax(T)` row by row, `T = X W_Q W_K^T X^T / (t sqrt(d_K))`, and the loss is
    `||F - Y||^2 / (L d_V)`. The paper takes input and output width equal; its `d_V` is both.

    Attributes:
        X: The sequence, a token in each row, `L x d_V`.
        W_Q: Query weights, `d_V x d_K`.
        W_K: Key weights, `d_V x d_K`.
        W_V: Value weights, `d_V x d_V`.
        Y: The target, `L x d_V`.
        temperature: The divisor `t` of Section 4.3; one everywhere else.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2, seed=0)
        >>> setting.F.shape, setting.delta.shape
        (torch.Size([4, 3]), torch.Size([12, 1]))
        >>> torch.allclose(setting.loss, torch.nn.functional.mse_loss(setting.F, setting.Y))
        True
    """

    # Plain tensors: __post_init__ checks the shapes and explains what does not fit.
    X: Tensor
    W_Q: Tensor
    W_K: Tensor
    W_V: Tensor
    Y: Tensor
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.X.ndim != 2:
            raise ValueError(f"X has shape {tuple(self.X.shape)}, expected two dimensions (L, d_V)")
        if self.W_Q.ndim != 2:
            raise ValueError(f"W_Q has shape {tuple(self.W_Q.shape)}, expected two dimensions (d_V, d_K)")
        length, d_V = self.X.shape
        d_K = self.W_Q.shape[1]
        given_x = f"X is (L, d_V) = {(length, d_V)}"
        require_shape("W_Q", self.W_Q, "(d_V, d_K)", (d_V, d_K), given_x)
        require_shape("W_K", self.W_K, "(d_V, d_K)", (d_V, d_K), f"W_Q is (d_V, d_K) = {(d_V, d_K)}")
        require_shape("W_V", self.W_V, "(d_V, d_V)", (d_V, d_V), given_x)
        require_shape("Y", self.Y, "(L, d_V)", (length, d_V), given_x)
        require_one_dtype(X=self.X, W_Q=self.W_Q, W_K=self.W_K, W_V=self.W_V, Y=self.Y)
        if not self.temperature > 0:
            raise ValueError(f"temperature is {self.temperature}, expected a positive number")

    @classmethod
    def random(
        cls, L: int, d_V: int, d_K: int, seed: int = 0, dtype: torch.dtype = torch.float64
    ) -> "PrintedAttention":
        """A setting with standard normal tokens, weights and target."""
        generator = torch.Generator().manual_seed(seed)
        shapes = ((L, d_V), (d_V, d_K), (d_V, d_K), (d_V, d_V), (L, d_V))
        X, W_Q, W_K, W_V, Y = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)
        return cls(X, W_Q, W_K, W_V, Y)

    @property
    def d_K(self) -> int:
        """Width of queries and keys."""
        return self.W_Q.shape[1]

    @property
    def scale(self) -> float:
        """The divisor `t sqrt(d_K)` of the scores."""
        return self.temperature * math.sqrt(self.d_K)

    @property
    def T(self) -> Float[Tensor, "L L"]:
        """The scores; row `i` belongs to query `i`."""
        return self.X @ self.W_Q @ self.W_K.T @ self.X.T / self.scale

    @property
    def A(self) -> Float[Tensor, "L L"]:
        """The attention matrix; each row sums to one."""
        return torch.softmax(self.T, dim=-1)

    @property
    def loss(self) -> Float[Tensor, ""]:
        """`||F - Y||^2 / (L d_V)`."""
        return self.delta.square().mean()

    @property
    def M_1(self) -> Float[Tensor, "L d_V"]:
        """First attention moment (Definition 3.1)."""
        return moment_1(self.X, self.A)


def score_factor(setting: PrintedAttention, block: Block) -> Float[Tensor, "d_V_squared parameters"]:
    """How the product `W_Q W_K^T` moves with one of its factors.

    For "Q" it is `I_{d_V} kron W_K`, for "K" it is `(W_Q kron I_{d_V}) K_{d_K,d_V}`. These two matrices close
    the query and key blocks of Theorems 3.1 and 3.2, and together they are `V` of Remark D.1.

    Example:
        >>> setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
        >>> product = vec(setting.W_Q @ setting.W_K.T)
        >>> torch.allclose(score_factor(setting, "Q") @ vec(setting.W_Q), product)
        True
        >>> torch.allclose(score_factor(setting, "K") @ vec(setting.W_K), product)
        True
    """
    eye = identity(setting.d_V, setting.X)
    if block == "Q":
        return kron(eye, setting.W_K)
    if block == "K":
        swap = commutation_matrix(setting.d_K, setting.d_V, eye.dtype, eye.device)
        return kron(setting.W_Q, eye) @ swap
    raise ValueError(f"the scores do not depend on block {block!r}; expected 'Q' or 'K'")


def require_block(*blocks: str) -> None:
    """Raise a `ValueError` unless every name is "Q", "K" or "V"."""
    for block in blocks:
        if block not in ("Q", "K", "V"):
            raise ValueError(f"unknown block {block!r}; expected 'Q', 'K' or 'V'")


def require_shape(name: str, tensor: Tensor, letters: str, expected: tuple[int, ...], because: str) -> None:
    """Raise a `ValueError` that says what was given, what was expected and why, if the shape is another."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {letters} = {expected} because {because}")


def require_one_dtype(**tensors: Tensor) -> None:
    """Raise a `ValueError` unless all tensors share one floating type."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) != 1 or not all(dtype.is_floating_point for dtype in dtypes.values()):
        given = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise ValueError(f"got {given}; expected the same floating type for all")
