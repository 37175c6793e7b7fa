"""Where the printed paper and automatic differentiation disagree, and which form is right.

Every row is checked in `tests/hessianlab/test_paper.py`. The functions of this package apply the corrections.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Erratum:
    """One place where the printed text has to be read differently.

    Attributes:
        key: Short name, used in the docstrings of this package.
        where: Statement, equation or section of the paper.
        printed: What stands there.
        corrected: What it has to be.
        reason: How one sees it.

    Example:
        >>> from hessianlab.paper.errata import ERRATA
        >>> ERRATA[0].key, ERRATA[0].where
        ('equation-13', 'Equation (13)')
    """

    key: str
    where: str
    printed: str
    corrected: str
    reason: str


ERRATA: tuple[Erratum, ...] = (
    Erratum(
        key="equation-13",
        where="Equation (13)",
        printed="vec(A) = (A kron I_n) vec(A) for A of shape n x m",
        corrected="vec(A) = (A kron I_m) vec(I_m)",
        reason="The printed side has n^2 entries and is quadratic in A; Lemma B.3 uses the corrected form.",
    ),
    Erratum(
        key="theorem-3-1-proof",
        where="Theorem 3.1, proof, from the third line of the chain on",
        printed="1/sqrt(d_K) in front and once more inside the bracket, and a matrix T_1",
        corrected="1/sqrt(d_K) once, and M_1",
        reason="Q enters through one derivative of the scores; M_1 = A X. The theorem itself is right.",
    ),
    Erratum(
        key="remark-3-1",
        where="Remark 3.1, Z_2",
        printed="X * X^T * M_3, of size L d_V^2 x d_V in the proof",
        corrected="X * vec(X) * M_3 with vec(X) in L blocks; Z_2 is L d_V^3 x d_V^2",
        reason="A Khatri-Rao product needs equal block grids: X and M_3 have L block rows, X^T has d_V rows.",
    ),
    Erratum(
        key="remark-3-1-proof",
        where="Remark 3.1, last line of the proof",
        printed="M_3 on the left of (I_L kron K kron I)(X * X^T * M_3)",
        corrected="Z_2 on the left",
        reason="The right-hand side has d_V times more rows and columns than M_3.",
    ),
    Erratum(
        key="lemma-c-1",
        where="Remark C.1 and Lemma C.1, left-hand side",
        printed="the second derivative of F by T",
        corrected="the second derivative of A by T",
        reason="The matrix has L^4 rows, one Hessian for each entry of A; F has L d_V entries.",
    ),
    Erratum(
        key="section-4-1-identity",
        where="Section 4.1, before Remark 4.1",
        printed="dA/dT is the identity of size d_V^2",
        corrected="the identity of size L^2",
        reason="A and T are L x L.",
    ),
    Erratum(
        key="lemma-4-1",
        where="Lemma 4.1",
        printed="no factor of the loss",
        corrected="times 2/(L d_V)",
        reason="Gradient and curvature of the loss both carry 2/(L d_V), as in Theorems 3.1 and 3.2.",
    ),
    Erratum(
        key="remark-d-1",
        where="Remark D.1",
        printed="parameters in the order [W_Q; W_K], no factor of the loss",
        corrected="the printed V and the place of B belong to [W_K; W_Q]; times 2/(L d_V)",
        reason="The first columns of V differentiate the scores by W_K; B has rows in W_Q, columns in W_K.",
    ),
    Erratum(
        key="lemma-b-2",
        where="Lemma B.2",
        printed="K(M, N), introduced as another notation for the commutation matrix",
        corrected="K(M, N) equals K_{N,M} of Equation (18)",
        reason="It takes the vec of an M x N matrix to that of its transpose: K_{N,M} in Equation (18).",
    ),
    Erratum(
        key="section-3-1-sixth-power",
        where="Section 3.1, empirical validation",
        printed="the sixth power of sigma comes from the functional Hessian",
        corrected="it comes from the outer-product Hessian",
        reason="By Equation (5) the query block has power five in the functional part and six in the outer.",
    ),
    Erratum(
        key="residual-orientation",
        where="Section 3.1 against Remark 4.1 and Remark D.1",
        printed="the residual delta is a row in Section 3.1 and a column later",
        corrected="a column throughout",
        reason="Remark 4.1 and Remark D.1 transpose it, which only fits a column.",
    ),
    Erratum(
        key="equation-5",
        where="Equation (5)",
        printed="H_f(W_V, W_V) grows like a constant",
        corrected="H_f(W_V, W_V) is identically zero",
        reason="F is linear in W_V, as Theorem 3.2 says.",
    ),
    Erratum(
        key="section-4-3-temperature",
        where="Section 4.3",
        printed="temperature t scales the T-outer-product part by 1/t^2 and the T-functional part by 1/t",
        corrected="these are the explicit factors only",
        reason="The attention matrix and the residual inside U and B move with t as well.",
    ),
)
