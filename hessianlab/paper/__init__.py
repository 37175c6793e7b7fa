"""The printed matrices of "What Does It Mean to Be a Transformer?", dense and runnable.

For readers who come from the paper: each numbered statement is a function that builds the matrix as it is
written there, with Kronecker products and row-major `vec`. Everything is dense, so keep the sizes small.
`ERRATA` lists the places where the printed text had to be corrected.

Example:
    >>> import torch
    >>> from hessianlab import paper
    >>> setting = paper.PrintedAttention.random(L=4, d_V=3, d_K=2, seed=0)
    >>> H = paper.theorem_3_1(setting, "Q", "Q") + paper.theorem_3_2(setting, "Q", "Q")
    >>> def loss(W_Q):
    ...     return paper.PrintedAttention(setting.X, W_Q, setting.W_K, setting.W_V, setting.Y).loss
    >>> torch.allclose(H, torch.func.hessian(loss)(setting.W_Q).reshape(6, 6))
    True
"""

from hessianlab.paper.data_terms import (
    duplicated_residual,
    moment_1,
    moment_2,
    moment_3,
    shuffling_matrix,
    z_1,
    z_1_from_moments,
    z_2,
    z_2_from_moments,
)
from hessianlab.paper.errata import ERRATA, Erratum
from hessianlab.paper.kronecker import (
    block_diagonal,
    equation_13,
    equation_16,
    equation_17,
    equation_20,
    identity,
    index_swap_matrix,
    khatri_rao,
    kron,
    lemma_b_3,
    softmax_entry_hessians,
    softmax_jacobian,
    softmax_second_derivative,
    vec,
)
from hessianlab.paper.printed import PrintedAttention, score_factor
from hessianlab.paper.query_key import (
    PrintedSingleMatrix,
    equation_22,
    lemma_4_1,
    lemma_d_2,
    merge_query_key,
    query_first,
    remark_d_1_b,
    remark_d_1_u,
    remark_d_1_v,
    t_functional,
    t_outer_product,
)
from hessianlab.paper.theorems import (
    lemma_b_1,
    score_product_matrix,
    theorem_3_1,
    theorem_3_2,
    theorem_3_2_query_key,
)
from hessianlab.paper.variants import (
    PrintedMultiHead,
    intra_sequence_covariance,
    linear_output,
    multi_head_functional,
    multi_head_outer,
    remark_4_1_functional,
    remark_4_1_outer,
    remark_e_1,
)

__all__ = [
    "ERRATA",
    "Erratum",
    "PrintedAttention",
    "PrintedMultiHead",
    "PrintedSingleMatrix",
    "block_diagonal",
    "duplicated_residual",
    "equation_13",
    "equation_16",
    "equation_17",
    "equation_20",
    "equation_22",
    "identity",
    "index_swap_matrix",
    "intra_sequence_covariance",
    "khatri_rao",
    "kron",
    "lemma_4_1",
    "lemma_b_1",
    "lemma_b_3",
    "lemma_d_2",
    "linear_output",
    "merge_query_key",
    "moment_1",
    "moment_2",
    "moment_3",
    "multi_head_functional",
    "multi_head_outer",
    "query_first",
    "remark_4_1_functional",
    "remark_4_1_outer",
    "remark_d_1_b",
    "remark_d_1_u",
    "remark_d_1_v",
    "remark_e_1",
    "score_factor",
    "score_product_matrix",
    "shuffling_matrix",
    "softmax_entry_hessians",
    "softmax_jacobian",
    "softmax_second_derivative",
    "t_functional",
    "t_outer_product",
    "theorem_3_1",
    "theorem_3_2",
    "theorem_3_2_query_key",
    "vec",
    "z_1",
    "z_1_from_moments",
    "z_2",
    "z_2_from_moments",
]
