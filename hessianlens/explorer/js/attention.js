/**
 * One attention head: its output, and the first and second derivatives of it that an exact Hessian is made of.
 *
 * A head is {activation, causal, mask, temperature, weights}: weights {Q, K, V}, with scores T = X W_Q W_K^T X^T / s and
 * s = temperature sqrt(d_K), or {QK, V}, with T = X W_QK X^T / temperature; mask is an array of rows, true where a token
 * may look. One sequence X, L x d. F = A V with A = a(T), row by row.
 *
 * The tangent of a matrix M is dM: one row per entry of M, one column per weight of the whole network.
 */
import { activationRow, asActivation, centred, curvatureTerms, jacobianTimes, relative, vjp } from "./activations.js";
import { addOuters, addScaled, allRows, dot, matmul, plus, rowOf, scaled, transpose, zeros } from "./linalg.js";

/** Which keys a query sees, row by row. */
function visibility({ causal = false, mask = null }, length) {
  const sees = (i, j) => (!causal || j <= i) && (!mask || Boolean(mask[i][j]));
  return Array.from({ length }, (_, i) => Array.from({ length }, (_, j) => sees(i, j)));
}

/** A head at tokens X: queries Q, keys K, values V, scores T, weights A, means M = A X, output F = A V, its rows. */
export function attend(head, X) {
  const { Q: WQ, K: WK, QK, V: WV } = head.weights;
  const scale = (head.temperature ?? 1) * (QK ? 1 : Math.sqrt(WQ.cols));
  const [Q, K, V] = [matmul(X, QK ?? WQ), QK ? X : matmul(X, WK), matmul(X, WV)];
  const T = scaled(matmul(Q, transpose(K)), 1 / scale);
  const visible = visibility(head, X.rows);
  const activation = asActivation(head.activation ?? "softmax");
  const rows = visible.map((seen, i) => activationRow(activation, rowOf(T, i), seen));
  const A = zeros(X.rows, X.rows);
  rows.forEach((row, i) => A.data.set(row.A, i * X.rows));
  return { head, X, Q, K, V, T, A, rows, visible, scale, M: matmul(A, X), F: matmul(A, V) };
}

/**
 * Gradients of `sum_i g_i . F_i`: with `w_il = g_i . v_l` and `E_i = J_i^T w_i`, the scores have E, Q has E K / s,
 * K has E^T Q / s, V has A^T g.
 */
export function backward(state, gradient) {
  const { Q, K, V, A, rows, scale, X, head } = state;
  const w = matmul(gradient, transpose(V));
  const [E, dQ] = [zeros(X.rows, X.rows), zeros(Q.rows, Q.cols)];
  rows.forEach((row, i) => {
    rowOf(E, i).set(vjp(row, rowOf(w, i)));
    rowOf(dQ, i).set(matmul({ rows: 1, cols: X.rows, data: rowOf(E, i) }, relative(row, K)).data);
  });
  const found = { w, E, Q: scaled(dQ, 1 / scale), K: scaled(matmul(transpose(E), Q), 1 / scale), V: matmul(transpose(A), gradient) };
  const { Q: WQ, K: WK, QK, V: WV } = head.weights;
  const tokens = plus(matmul(found.Q, transpose(QK ?? WQ)), matmul(found.V, transpose(WV)));
  return { ...found, X: plus(tokens, QK ? found.K : matmul(found.K, transpose(WK))) };
}

/** Gradients of the weights: `X^T dl/dQ`, ... */
export function weightGradients({ X, head }, { Q, K, V }) {
  const [outer, names] = [{ Q, K, V, QK: Q }, Object.keys(head.weights)];
  return Object.fromEntries(names.map((name) => [name, matmul(transpose(X), outer[name])]));
}

/** Tangents of Q, K, V, of the scores, the weights and the output; `starts` has the place of each weight matrix. */
export function headTangents(state, dX, starts) {
  const { X, A, V, rows, head } = state;
  const { Q: WQ, K: WK, QK, V: WV } = head.weights;
  const dQ = productTangent(X, QK ?? WQ, dX, starts.QK ?? starts.Q);
  const dK = QK ? dX : productTangent(X, WK, dX, starts.K);
  const dV = productTangent(X, WV, dX, starts.V);
  const dT = scoreTangents(state, dQ, dK);
  const [dA, dF] = [zeros(dT.rows, dT.cols), times(A, dV)];
  rows.forEach((row, i) => {
    jacobianTimes(row, dT, dA, i);
    const values = relative(row, V);
    for (let j = 0; j < X.rows; j++) {
      for (let f = 0; f < V.cols; f++) {
        addScaled(rowOf(dF, i * V.cols + f), values.data[j * V.cols + f], rowOf(dA, i * X.rows + j));
      }
    }
  });
  return { dX, dQ, dK, dV, dT, dA, dF };
}

/** `d(X W)_ib = sum_a dX_ia W_ab + x_ia dW_ab`. */
function productTangent(X, W, dX, start) {
  const D = zeros(X.rows * W.cols, dX.cols);
  for (let i = 0; i < X.rows; i++) {
    for (let b = 0; b < W.cols; b++) {
      const row = rowOf(D, i * W.cols + b);
      for (let a = 0; a < X.cols; a++) {
        addScaled(row, W.data[a * W.cols + b], rowOf(dX, i * X.cols + a));
        row[start + a * W.cols + b] += X.data[i * X.cols + a];
      }
    }
  }
  return D;
}

/** `dT_il = (dq_i . k_l + q_i . dk_l) / s`; relative to that of the largest weight where a common change is not seen. */
function scoreTangents({ Q, K, rows, scale }, dQ, dK) {
  const [L, width] = [Q.rows, Q.cols];
  const dT = zeros(L * L, dQ.cols);
  rows.forEach(({ s, top }, i) => {
    for (let l = 0; l < L; l++) {
      if (s[l] === 0) continue;
      for (let b = 0; b < width; b++) {
        addScaled(rowOf(dT, i * L + l), K.data[l * width + b] / scale, rowOf(dQ, i * width + b));
        addScaled(rowOf(dT, i * L + l), Q.data[i * width + b] / scale, rowOf(dK, l * width + b));
      }
    }
    if (top < 0) return;
    const base = rowOf(dT, i * L + top).slice();
    for (let l = 0; l < L; l++) addScaled(rowOf(dT, i * L + l), -1, base);
  });
  return dT;
}

/**
 * Second derivatives of `sum_i g_i . F_i` with respect to weights and tokens, along the tangents. Half of them is added
 * to `half.functional`; the rest is its transpose:
 *
 *     sum_i dT_i^T D_i(w_i) dT_i + sum_i g_i . (dA_i dV) + transposed + what products X W have themselves
 *
 * and to `half.tFunctional` that of the scores, `sum_il E_il d^2 T_il` with `d^2 T_il = dq_i . dk_l / s + transposed`.
 */
export function addHeadCurvature(half, state, tangents, gradients, gradient, starts) {
  const { dX, dA, dQ, dK, dV, dT } = tangents;
  const [L, width] = [gradient.rows, gradient.cols];
  state.rows.forEach((row, i) => addOuters(half.functional, ...curvatureTerms(row, rowOf(gradients.w, i), dT, i)));
  const byFeature = Array.from({ length: dV.rows }, (_, k) => rowOf(dV, (k % L) * width + Math.floor(k / L)));
  addOuters(half.functional, byFeature, allRows(times(transpose(gradient), dA)));
  addOuters(half.tFunctional, allRows(dQ), allRows(times(scaled(gradients.E, 1 / state.scale), dK)));
  for (const name of Object.keys(state.head.weights)) {
    addProduct(half.functional, dX, gradients[name === "QK" ? "Q" : name], starts[name]);
  }
}

/** The tangent of `B M` for a fixed matrix B: `sum_j B_ij dM_jf`. */
function times(B, dM) {
  const { data } = matmul(B, { rows: B.cols, cols: dM.data.length / B.cols, data: dM.data });
  return { rows: data.length / dM.cols, cols: dM.cols, data };
}

/** `sum_ib g_ib dX_ia dW_ab`, half of the second derivative of `X W`, with W from `start` on. */
function addProduct(half, dX, g, start) {
  const width = dX.rows / g.rows;
  for (let a = 0; a < width; a++) {
    for (let b = 0; b < g.cols; b++) {
      const row = rowOf(half, start + a * g.cols + b);
      for (let i = 0; i < g.rows; i++) addScaled(row, g.data[i * g.cols + b], rowOf(dX, i * width + a));
    }
  }
}

/** What query i sees of the tokens: mean m (M1), covariance (M2, d x d) and third moments (M3, [a][b][c]) around it. */
export function moments({ X, rows }, i) {
  const columns = Array.from({ length: X.cols }, (_, a) => Float64Array.from({ length: X.rows }, (_, l) => X.data[l * X.cols + a]));
  const { A, normalised } = rows[i];
  const c = columns.map((x) => (normalised ? centred(rows[i], x) : x.map((value) => value - dot(A, x))));
  const sum = (...factors) => A.reduce((total, a, l) => total + factors.reduce((product, f) => product * f[l], a), 0);
  return {
    mean: columns.map((x) => sum(x)),
    covariance: c.map((u) => c.map((v) => sum(u, v))),
    third: c.map((u) => c.map((v) => c.map((w) => sum(u, v, w)))),
  };
}
