"""The printed statements against automatic differentiation, and every erratum in both forms."""

import dataclasses
import functools
import itertools
import math

import pytest
import torch

from hessianlab import paper
from hessianlab.paper import PrintedAttention, PrintedMultiHead, PrintedSingleMatrix
from hessianlens.operators.commutation import commutation_matrix
from tests.oracles.autograd import dense_parts

BLOCKS = ("Q", "K", "V")
PAIRS = list(itertools.product(BLOCKS, BLOCKS))
SHAPES = [(4, 3, 2), (4, 3, 3), (4, 3, 5), (2, 3, 2), (3, 3, 1)]  # L, d_V, d_K
CASES = [(*shape, seed, 1.0) for shape in SHAPES for seed in range(3)] + [(4, 3, 2, 3, 2.5)]

each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_pair = pytest.mark.parametrize(("row", "col"), PAIRS)


def make(case):
    *sizes, temperature = case
    return dataclasses.replace(PrintedAttention.random(*sizes), temperature=temperature)


def same(actual, expected, tolerance=1e-10):
    return actual.shape == expected.shape and bool((actual - expected).norm() <= tolerance * expected.norm())


def flat(tensor, rows):
    return tensor.reshape(rows, -1)


# --- oracles: nothing below uses a closed form --------------------------------------------------------------


def forward(setting, weights, activation):
    X = setting.X
    scores = X @ weights["Q"] @ weights["K"].T @ X.T / (setting.temperature * math.sqrt(setting.d_K))
    attention = torch.softmax(scores, -1) if activation == "softmax" else scores
    return attention @ X @ weights["V"]


@functools.cache
def oracle(case, activation="softmax"):
    return square_loss_oracle(make(case), activation)


def square_loss_oracle(setting, activation="softmax"):
    weights = {"Q": setting.W_Q, "K": setting.W_K, "V": setting.W_V}
    return dense_parts(lambda W: forward(setting, W, activation), mean_square(setting.Y), weights)


def mean_square(Y):
    return lambda F: torch.nn.functional.mse_loss(F, Y)


def split_at_scores(setting):
    """T-outer-product and T-functional Hessian for the order [W_Q; W_K], by automatic differentiation."""

    def scores(W):
        return setting.X @ W["Q"] @ W["K"].T @ setting.X.T / (setting.temperature * math.sqrt(setting.d_K))

    def loss(T):
        return mean_square(setting.Y)(torch.softmax(T, -1) @ setting.X @ setting.W_V)

    split = dense_parts(scores, loss, {"Q": setting.W_Q, "K": setting.W_K})
    return split.outer, split.functional


# --- Appendix A and Lemmas B.2, B.3 -------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "q"), [(2, 3), (3, 2), (1, 4), (3, 3)])
def test_commutation_matrix_is_the_derivative_of_transposition(n, q):
    X = torch.rand(n, q, dtype=torch.float64)
    derivative = torch.func.jacrev(lambda X: X.T)(X).reshape(n * q, n * q)
    assert torch.equal(commutation_matrix(q, n, torch.float64), derivative)


def test_commutation_matrix_needs_positive_sizes():
    with pytest.raises(ValueError, match="at least 1"):
        commutation_matrix(0, 2)


def test_kronecker_identities():
    X, Y = torch.rand(2, 3, dtype=torch.float64), torch.rand(4, 2, dtype=torch.float64)
    assert same(paper.equation_16(X, Y), flat(torch.func.jacrev(lambda X: torch.kron(X, Y))(X), 48).clone())
    assert same(paper.equation_17(X, Y), flat(torch.func.jacrev(lambda Y: torch.kron(X, Y))(Y), 48).clone())
    assert same(paper.equation_13(X), paper.vec(X))
    assert same(*paper.lemma_b_3(X))
    assert same(*paper.equation_20(2, 3, torch.float64))
    assert torch.equal(paper.index_swap_matrix(2, 3) @ paper.vec(X.float()), paper.vec(X.float().T))


def test_khatri_rao_multiplies_blocks():
    A, B = torch.rand(4, 6, dtype=torch.float64), torch.rand(2, 9, dtype=torch.float64)
    product = paper.khatri_rao(A, B, row_blocks=2, col_blocks=3)
    assert product.shape == (4, 18)
    for i, j in itertools.product(range(2), range(3)):
        block = torch.kron(A[2 * i : 2 * i + 2, 2 * j : 2 * j + 2], B[i : i + 1, 3 * j : 3 * j + 3])
        assert same(product[2 * i : 2 * i + 2, 6 * j : 6 * j + 6], block)
    with pytest.raises(ValueError, match="cannot be cut"):
        paper.khatri_rao(A, B, row_blocks=3)


# --- softmax and data terms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("L", [2, 3, 5])
def test_softmax_derivatives(L):
    T = torch.randn(L, L, dtype=torch.float64, generator=torch.Generator().manual_seed(L))
    A = torch.softmax(T, -1)
    first = torch.func.jacrev(lambda T: torch.softmax(T, -1))(T)
    second = torch.func.hessian(lambda T: torch.softmax(T, -1))(T)
    assert same(paper.softmax_jacobian(A), first.reshape(L**2, L**2))
    assert same(paper.softmax_second_derivative(A), second.reshape(L**4, L**2))


def test_remark_c_1_is_lemma_c_1_for_two_tokens():
    A = torch.softmax(torch.randn(2, 2, dtype=torch.float64), -1)
    expected = torch.zeros(4, 4, 4, dtype=torch.float64)
    for i in range(2):
        p, q = A[i]
        bp, bq = 1 - 2 * p, 1 - 2 * q
        here = slice(2 * i, 2 * i + 2)
        first = [(p - p**2) * bp, -p * q * bp, -p * q * bp, -p * q * bq]
        second = [-p * q * bp, -p * q * bq, -p * q * bq, (q - q**2) * bq]
        expected[2 * i, here, here] = torch.stack(first).reshape(2, 2)
        expected[2 * i + 1, here, here] = torch.stack(second).reshape(2, 2)
    assert same(paper.softmax_second_derivative(A), expected.reshape(16, 4))


@each_case
def test_remark_3_1_moments_give_the_data_terms(case):
    setting = make(case)
    L, d = setting.L, setting.d_V
    assert same(paper.z_1_from_moments(setting.X, setting.A), setting.Z_1)
    assert same(paper.z_2_from_moments(setting.X, setting.A), setting.Z_2)
    assert setting.Z_1.shape == (L * d, d**2) and setting.Z_2.shape == (L * d**3, d**2)


def test_shuffling_matrix_has_the_second_form_of_the_proof():
    d, eye = 3, torch.eye(3)
    K = commutation_matrix(d, d)
    assert torch.equal(paper.shuffling_matrix(d), paper.kron(K, eye) @ paper.kron(eye, paper.vec(eye)))


# --- Lemma B.1, Theorems 3.1 and 3.2, Remark 4.1 ------------------------------------------------------------


@each_case
@pytest.mark.parametrize("block", BLOCKS)
def test_lemma_b_1(case, block):
    assert same(paper.lemma_b_1(make(case), block), oracle(case).jacobian[:, oracle(case).ranges[block]])


@each_case
@each_pair
def test_theorem_3_1(case, row, col):
    assert same(paper.theorem_3_1(make(case), row, col), oracle(case).block("outer", row, col))


@each_case
@each_pair
def test_theorem_3_2(case, row, col):
    setting, truth = make(case), oracle(case)
    functional = paper.theorem_3_2(setting, row, col)
    assert same(functional, truth.block("functional", row, col))
    assert same(paper.theorem_3_1(setting, row, col) + functional, truth.block("full", row, col))


@each_case
@each_pair
def test_remark_4_1(case, row, col):
    setting, truth = make(case), oracle(case, "linear")
    outer = paper.remark_4_1_outer(setting, row, col)
    functional = paper.remark_4_1_functional(setting, row, col)
    assert same(outer, truth.block("outer", row, col))
    assert same(functional, truth.block("functional", row, col))
    assert same(outer + functional, truth.block("full", row, col))


# --- one matrix, the split at the scores, many heads --------------------------------------------------------


@each_case
def test_lemma_4_1_and_equation_22(case):
    single = paper.merge_query_key(make(case))

    def output(W):
        return torch.softmax(single.X @ W["QK"] @ single.X.T, -1) @ single.X @ single.W_V

    truth = dense_parts(output, mean_square(single.Y), {"QK": single.W_QK})
    assert same(paper.equation_22(single), truth.jacobian)
    assert same(paper.lemma_4_1(single), truth.full)
    assert same(paper.lemma_4_1(single, "outer"), truth.outer)
    assert same(paper.lemma_4_1(single, "functional"), truth.functional)
    assert not same(paper.lemma_4_1(single, printed=True), truth.full, 0.1)
    assert same(single.loss_factor * paper.remark_d_1_u(make(case)), truth.full)
    slope = torch.func.grad(lambda W: mean_square(single.Y)(output({"QK": W})))(single.W_QK)
    assert same(single.loss_factor * paper.remark_d_1_b(make(case)), slope)


@each_case
def test_remark_d_1(case):
    setting, truth = make(case), oracle(case)
    outer, functional = split_at_scores(setting)
    assert same(paper.query_first(paper.t_outer_product(setting)), outer)
    assert same(paper.query_first(paper.t_functional(setting)), functional)
    assert same(paper.theorem_3_2_query_key(setting)[1], functional[truth.ranges["Q"], truth.ranges["K"]])
    whole = [torch.cat([truth.block("full", row, col) for col in "KQ"], 1) for row in "KQ"]
    assert same(paper.t_outer_product(setting) + paper.t_functional(setting), torch.cat(whole))


@each_case
def test_t_functional_eigenvalues_come_in_pairs(case):
    setting = make(case)
    singular = torch.linalg.svdvals(paper.remark_d_1_b(setting)) * setting.loss_factor / setting.scale
    expected = torch.cat([singular, -singular]).repeat_interleave(setting.d_K).sort().values
    assert same(torch.linalg.eigvalsh(paper.t_functional(setting)), expected)


@each_case
def test_lemma_d_2_bounds_the_rank(case):
    setting = make(case)
    bound = paper.lemma_d_2(setting.d_V, setting.d_K)
    assert torch.linalg.matrix_rank(paper.remark_d_1_v(setting)) == bound
    rank = torch.linalg.matrix_rank(paper.t_outer_product(setting), rtol=1e-11)
    assert rank <= bound
    if setting.d_V < setting.L:
        assert rank == bound


def test_lemma_d_1_rank_of_a_stack():
    A, B = torch.rand(2, 4, dtype=torch.float64), torch.rand(5, 1) @ torch.rand(1, 3)
    stacked = torch.cat([torch.kron(torch.eye(3), A), torch.kron(B.double(), torch.eye(4))])
    assert torch.linalg.matrix_rank(stacked, rtol=1e-6) == 3 * 2 + 4 * 1 - 2 * 1


def multi_head(heads=2, L=3, d_V=3, d_K=2, seed=0):
    parts = [PrintedAttention.random(L, d_V, d_K, seed + h) for h in range(heads)]
    stacks = [torch.stack([getattr(part, name) for part in parts]) for name in ("W_Q", "W_K", "W_V")]
    return PrintedMultiHead(parts[0].X, *stacks, parts[0].Y)


@pytest.mark.parametrize("seed", range(3))
def test_remark_e_1_and_blocks_between_heads(seed):
    setting = multi_head(seed=seed)
    stacked = {"Q": setting.W_Q, "K": setting.W_K, "V": setting.W_V}

    def output(W):
        Q, K, V = (torch.stack([W[h, name] for h in range(2)]) for name in BLOCKS)
        scores = setting.X @ Q @ K.mT @ setting.X.T / math.sqrt(Q.shape[-1])
        return (torch.softmax(scores, -1) @ setting.X @ V).sum(0)

    weights = {(h, name): stacked[name][h] for h, name in itertools.product(range(2), BLOCKS)}
    truth = dense_parts(output, mean_square(setting.Y), weights)
    for row, col in itertools.product(weights, repeat=2):
        assert same(paper.remark_e_1(setting, *row), truth.jacobian[:, truth.ranges[row]])
        assert same(paper.multi_head_outer(setting, row, col), truth.block("outer", row, col))
        assert same(paper.multi_head_functional(setting, row, col), truth.block("functional", row, col))


# --- errata: the printed form fails, the corrected form holds -----------------------------------------------


def show_equation_13():
    for shape in ((2, 3), (3, 3)):
        A = torch.rand(shape, dtype=torch.float64)
        assert same(paper.equation_13(A), paper.vec(A))
        assert not same(paper.equation_13(A, printed=True), paper.vec(A), 0.1)


def show_theorem_3_1_proof():
    case = CASES[0]
    setting, truth = make(case), oracle(case).block("outer", "V", "Q")
    X, root = setting.X, math.sqrt(setting.d_K)
    left = paper.kron(X.T @ setting.A.T, setting.W_V.T @ X.T) @ paper.softmax_jacobian(setting.A)
    third_line = setting.loss_factor / root * left @ (paper.kron(X, X @ setting.W_K) / root)
    assert not same(third_line, truth, 0.1)
    assert same(root * third_line, truth)


def show_remark_3_1():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    with pytest.raises(ValueError, match="cannot be cut"):
        paper.z_2_from_moments(setting.X, setting.A, printed=True)
    square = PrintedAttention.random(L=3, d_V=3, d_K=2)
    with pytest.raises(RuntimeError):  # X^T has L rows here, and the product still does not fit
        paper.z_2_from_moments(square.X, square.A, printed=True)
    assert same(paper.z_2_from_moments(setting.X, setting.A), setting.Z_2)


def show_remark_3_1_proof():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    right = paper.z_2_from_moments(setting.X, setting.A)
    rows, cols = paper.moment_3(setting.X, setting.A).shape
    assert right.shape == (3 * rows, 3 * cols)
    assert same(right, setting.Z_2)


def show_lemma_c_1():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    closed = paper.softmax_second_derivative(setting.A)
    values = setting.X @ setting.W_V
    of_A = torch.func.hessian(lambda T: torch.softmax(T, -1))(setting.T).reshape(-1, 16)
    of_F = torch.func.hessian(lambda T: torch.softmax(T, -1) @ values)(setting.T).reshape(-1, 16)
    assert same(closed, of_A) and closed.shape != of_F.shape


def show_section_4_1_identity():
    X = PrintedAttention.random(L=4, d_V=3, d_K=2).X
    L, d = X.shape
    with pytest.raises((RuntimeError, TypeError)):
        paper.z_1(X, torch.eye(d**2, dtype=X.dtype))
    covariance = paper.intra_sequence_covariance(X)
    assert same(paper.z_1(X, torch.eye(L**2, dtype=X.dtype)), L * paper.kron(X, covariance))


def show_lemma_4_1():
    single = paper.merge_query_key(PrintedAttention.random(L=4, d_V=3, d_K=2))

    def difference(W):
        return PrintedSingleMatrix(single.X, W["QK"], single.W_V, single.Y).delta

    H = dense_parts(difference, lambda delta: delta.square().mean(), {"QK": single.W_QK}).full
    assert same(paper.lemma_4_1(single), H)
    assert not same(paper.lemma_4_1(single, printed=True), H, 0.1)


def show_remark_d_1():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    truths = split_at_scores(setting)  # in the printed order [W_Q; W_K]
    for part, truth in zip((paper.t_outer_product, paper.t_functional), truths, strict=True):
        assert not same(part(setting, printed=True), truth, 0.1)
        assert not same(part(setting), truth, 0.1)  # the loss factor alone does not mend it
        assert not same(paper.query_first(part(setting, printed=True)), truth, 0.1)  # nor the order alone
        assert same(paper.query_first(part(setting)), truth)


def show_lemma_b_2():
    M, N = 2, 3
    eye = torch.eye(M)
    assert torch.equal(paper.index_swap_matrix(M, N), commutation_matrix(N, M))
    right = paper.kron(commutation_matrix(M, N), eye) @ paper.kron(torch.eye(N), paper.vec(eye))
    for first, equal in (((N, M), True), ((M, N), False)):
        left = paper.kron(eye, commutation_matrix(*first)) @ paper.kron(paper.vec(eye), torch.eye(N))
        assert torch.equal(left, right) is equal


def show_section_3_1_sixth_power():
    base = PrintedAttention.random(L=4, d_V=3, d_K=2)
    residual = base.F - base.Y

    def norm(theorem, sigma):
        scaled = dataclasses.replace(base, X=sigma * base.X)
        return theorem(dataclasses.replace(scaled, Y=scaled.F - residual), "Q", "Q").norm()

    for theorem, power in ((paper.theorem_3_1, 6), (paper.theorem_3_2, 5)):
        slope = torch.log10(norm(theorem, 1e-2) / norm(theorem, 1e-3))
        assert slope == pytest.approx(power, abs=0.01)


def show_residual_orientation():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    row = setting.delta.T  # as in Section 3.1; Remark 4.1 then transposes it
    spread = paper.kron(torch.eye(4, dtype=row.dtype), paper.shuffling_matrix(3, row.dtype))
    with pytest.raises(RuntimeError):
        paper.kron(row.T, torch.eye(9, dtype=row.dtype)) @ spread
    assert (paper.duplicated_residual(setting.delta, 9) @ spread).shape == (9, 12)


def show_equation_5():
    base = PrintedAttention.random(L=4, d_V=3, d_K=2)
    for sigma in (0.1, 1.0, 10.0):
        setting = dataclasses.replace(base, X=sigma * base.X)
        assert not paper.theorem_3_2(setting, "V", "V").any()
        assert not square_loss_oracle(setting).block("functional", "V", "V").any()


def show_section_4_3_temperature():
    one = PrintedAttention.random(L=4, d_V=3, d_K=2)
    t = 2.0
    warm = dataclasses.replace(one, temperature=t)
    for part, power, truth in zip(
        (paper.t_outer_product, paper.t_functional), (2, 1), split_at_scores(warm), strict=True
    ):
        assert same(paper.query_first(part(warm)), truth)
        assert not same(paper.query_first(part(one)) / t**power, truth, 0.1)
    U, V = paper.remark_d_1_u(warm), paper.remark_d_1_v(one)  # the explicit factor, with U taken at t
    assert same(paper.t_outer_product(warm), warm.loss_factor / (t**2 * one.d_K) * V.T @ U @ V)


DEMONSTRATIONS = {
    name.removeprefix("show_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("show_")
}


@pytest.mark.parametrize("key", [erratum.key for erratum in paper.ERRATA])
def test_erratum(key):
    DEMONSTRATIONS[key]()


def test_errata_are_complete():
    keys = [erratum.key for erratum in paper.ERRATA]
    assert sorted(keys) == sorted(DEMONSTRATIONS)
    assert all(all(dataclasses.astuple(erratum)) for erratum in paper.ERRATA)


# --- messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "shape", "message"),
    [
        ("X", (4,), r"X has shape \(4,\), expected two dimensions"),
        ("W_Q", (2,), r"W_Q has shape \(2,\), expected two dimensions"),
        ("W_Q", (4, 2), r"W_Q has shape \(4, 2\), expected \(d_V, d_K\) = \(3, 2\)"),
        ("W_K", (3, 1), r"W_K has shape \(3, 1\), expected \(d_V, d_K\) = \(3, 2\)"),
        ("W_V", (3, 2), r"W_V has shape \(3, 2\), expected \(d_V, d_V\) = \(3, 3\)"),
        ("Y", (3, 4), r"Y has shape \(3, 4\), expected \(L, d_V\) = \(4, 3\) because X is"),
    ],
)
def test_shapes_are_checked(field, shape, message):
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(setting, **{field: torch.zeros(shape, dtype=torch.float64)})


def test_bad_arguments_are_refused():
    setting = PrintedAttention.random(L=4, d_V=3, d_K=2)
    single, heads = paper.merge_query_key(setting), multi_head()
    with pytest.raises(ValueError, match="temperature is 0"):
        dataclasses.replace(setting, temperature=0.0)
    with pytest.raises(ValueError, match="the same floating type"):
        dataclasses.replace(setting, Y=setting.Y.float())
    with pytest.raises(ValueError, match=r"W_QK has shape \(2, 2\)"):
        dataclasses.replace(single, W_QK=torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"W_K has shape \(1, 3, 2\)"):
        dataclasses.replace(heads, W_K=heads.W_K[:1])
    # With shape and type checking on, a name outside the annotation is a TypeError already at the call.
    for call in (paper.theorem_3_1, paper.theorem_3_2, paper.remark_4_1_outer, paper.remark_4_1_functional):
        with pytest.raises((ValueError, TypeError)):
            call(setting, "Q", "O")
    with pytest.raises((ValueError, TypeError)):
        paper.lemma_b_1(setting, "O")
    with pytest.raises((ValueError, TypeError)):
        paper.lemma_4_1(single, "half")
