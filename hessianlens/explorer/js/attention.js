/**
 * One attention layer: its output, its loss, its gradient and its exact Hessian in closed form.
 *
 * A head is {activation, causal, mask, temperature, weights}: weights {Q, K, V}, with scores T = X W_Q W_K^T X^T / s and
 * s = temperature sqrt(d_K), or {QK, V}, with T = X W_QK X^T / temperature; mask is an array of rows, true where a token
 * may look. A layer is a head or {heads: [...]}, whose outputs are added. One sequence X, L x d.
 *
 * A loss is {targets, reduction = "mean"} for the square loss, {residual, reduction} for the same with F - Y held at
 * these numbers, or {gradient, curvature}: dl/dF, and d^2 l/dF_i^2 as a number or as one matrix per token.
 */
import { activationRow, asActivation, centred, curvatureBetween, jacobianBetween, relative, vjp } from "./activations.js";
import { dot, matmul, norm, plus, scaled, slice, transpose, zeros } from "./linalg.js";

export function headsOf(layer) {
  return layer.heads ?? [layer];
}

/** The weights in block order: {name, head, key, rows, cols, start}; of several heads Q0, K0, V0, Q1, ... */
export function blocksOf(layer) {
  const heads = headsOf(layer);
  let start = 0;
  return heads.flatMap((head, h) =>
    Object.entries(head.weights).map(([key, W]) => {
      const block = { name: heads.length > 1 ? key + h : key, head: h, key, rows: W.rows, cols: W.cols, start };
      start += W.rows * W.cols;
      return block;
    }),
  );
}

export function parameterCount(layer) {
  return blocksOf(layer).reduce((sum, block) => sum + block.rows * block.cols, 0);
}

/** All weights in one vector. */
export function parametersOf(layer) {
  const theta = new Float64Array(parameterCount(layer));
  for (const { head, key, start } of blocksOf(layer)) theta.set(headsOf(layer)[head].weights[key].data, start);
  return theta;
}

/** The same layer with the weights of this vector. */
export function withParameters(layer, theta) {
  const heads = headsOf(layer).map((head) => ({ ...head, weights: { ...head.weights } }));
  for (const { head, key, rows, cols, start } of blocksOf(layer)) {
    heads[head].weights[key] = { rows, cols, data: theta.slice(start, start + rows * cols) };
  }
  return layer.heads ? { ...layer, heads } : heads[0];
}

/** The layer with one query-key matrix `W_QK = W_Q W_K^T / sqrt(d_K)` instead of two: the same function. */
export function merged(layer) {
  const heads = headsOf(layer).map((head) => {
    const { Q, K, V } = head.weights;
    return Q ? { ...head, weights: { QK: scaled(matmul(Q, transpose(K)), 1 / Math.sqrt(Q.cols)), V } } : head;
  });
  return layer.heads ? { ...layer, heads } : heads[0];
}

/** Which keys a query sees, row by row. */
export function visibility({ causal = false, mask = null }, length) {
  return Array.from({ length }, (_, i) => Array.from({ length }, (_, j) => (!causal || j <= i) && (!mask || Boolean(mask[i][j]))));
}

/** A head at tokens X: scores T, weights A, values V, means M = A X, output F = A V, and what its rows are. */
export function attend(head, X) {
  const { Q: WQ, K: WK, QK, V: WV } = head.weights;
  const temperature = head.temperature ?? 1;
  const scale = QK ? temperature : temperature * Math.sqrt(WQ.cols);
  const [Q, K] = QK ? [matmul(X, QK), X] : [matmul(X, WQ), matmul(X, WK)];
  const T = scaled(matmul(Q, transpose(K)), 1 / scale);
  const visible = visibility(head, X.rows);
  const activation = asActivation(head.activation ?? "softmax");
  const rows = visible.map((seen, i) => activationRow(activation, T.data.subarray(i * T.cols, (i + 1) * T.cols), seen));
  const A = zeros(X.rows, X.rows);
  rows.forEach((row, i) => A.data.set(row.A, i * X.rows));
  const V = matmul(X, WV);
  return { X, Q, K, V, T, A, rows, visible, scale, M: matmul(A, X), F: matmul(A, V), single: Boolean(QK) };
}

/** Every head at X, and the output F, their sum. */
export function forward(layer, X) {
  const heads = headsOf(layer).map((head) => attend(head, X));
  return { heads, F: heads.map((head) => head.F).reduce((sum, F) => plus(sum, F)) };
}

/** Value, gradient g = dl/dF and curvature C = d^2 l/dF^2 of a loss at the output F. */
export function lossAt(loss, F) {
  if (loss.gradient) return { value: NaN, gradient: loss.gradient, curvature: loss.curvature };
  const residual = loss.residual ?? plus(F, loss.targets, -1);
  const factor = loss.reduction === "sum" ? 1 : 1 / F.data.length;
  return { value: factor * dot(residual.data, residual.data), gradient: scaled(residual, 2 * factor), curvature: 2 * factor };
}

export function lossValue(layer, X, loss) {
  return lossAt(loss, forward(layer, X).F).value;
}

const rowOf = (M, i) => M.data.subarray(i * M.cols, (i + 1) * M.cols);

/**
 * How a query-key matrix enters the scores: entry [f, m] of it moves T_il by fixed_if moving_lm / s. W_Q: x_i and k_l;
 * W_K: q_i and x_l, with the moving side as rows; W_QK: x_i and x_l.
 */
function scorePort(state, key) {
  if (key === "K") return { fixed: state.Q, moving: state.X, transposed: true };
  return { fixed: state.X, moving: state.K, transposed: false };
}

/** Where entry [f, m] of a port is among the weights. */
function portIndex(port, block, f, m) {
  return block.start + (port.transposed ? m * block.cols + f : f * block.cols + m);
}

/** dF_i / d weights for every token: a matrix of L d_V rows and one column per weight. */
function outputJacobian(states, blocks, width) {
  const columns = blocks.reduce((sum, b) => sum + b.rows * b.cols, 0);
  const J = zeros(states[0].X.rows * width, columns);
  for (const block of blocks) {
    const state = states[block.head];
    if (block.key === "V") valueJacobian(J, state, block);
    else scoreJacobian(J, state, block);
  }
  return J;
}

/** `dF_if / dW_V[a, f] = m_ia`. */
function valueJacobian(J, { M }, block) {
  for (let i = 0; i < M.rows; i++) {
    for (let f = 0; f < block.cols; f++) {
      const at = (i * block.cols + f) * J.cols + block.start + f;
      for (let a = 0; a < M.cols; a++) J.data[at + a * block.cols] = M.data[i * M.cols + a];
    }
  }
}

/** `dF_i / dW[f, m] = fixed_if (V^T J_i moving)_m / s`, which is S_i for W_Q and N_i for W_K. */
function scoreJacobian(J, state, block) {
  const port = scorePort(state, block.key);
  state.rows.forEach((row, i) => {
    const S = jacobianBetween(row, state.V, relative(row, port.moving));
    for (let g = 0; g < S.rows; g++) {
      const at = (i * S.rows + g) * J.cols;
      for (let f = 0; f < port.fixed.cols; f++) {
        const x = port.fixed.data[i * port.fixed.cols + f] / state.scale;
        for (let m = 0; m < S.cols; m++) J.data[at + portIndex(port, block, f, m)] = x * S.data[g * S.cols + m];
      }
    }
  });
}

/** The Gauss-Newton part `J^T C J` (the outer-product Hessian). */
export function gaussNewton(J, curvature, width) {
  const H = zeros(J.cols, J.cols);
  const CJ = typeof curvature === "number" ? scaled(J, curvature) : tokenwise(curvature, J, width);
  for (let k = 0; k < J.rows; k++) {
    const [left, right] = [rowOf(J, k), rowOf(CJ, k)];
    for (let p = 0; p < H.rows; p++) {
      const x = left[p];
      if (x === 0) continue;
      for (let q = p, at = p * H.cols; q < H.cols; q++) H.data[at + q] += x * right[q];
    }
  }
  return mirror(H);
}

/** `C_i` times the rows of token i. */
function tokenwise(curvature, J, width) {
  const product = zeros(J.rows, J.cols);
  curvature.forEach((C, i) => {
    const part = matmul(C, slice(J, i * width, 0, width, J.cols));
    product.data.set(part.data, i * width * J.cols);
  });
  return product;
}

/** The upper triangle, mirrored. */
function mirror(H) {
  for (let p = 0; p < H.rows; p++) for (let q = 0; q < p; q++) H.data[p * H.cols + q] = H.data[q * H.cols + p];
  return H;
}

/** `w_il = g_i . v_l`, what the score of key l is worth to the loss. */
function lossWeights(state, gradient) {
  return matmul(gradient, transpose(state.V));
}

/** The functional part of one head: second derivatives of its output, weighted by g. */
function addFunctional(H, state, blocks, gradient) {
  const scores = blocks.filter((block) => block.key !== "V");
  const value = blocks.find((block) => block.key === "V");
  const weights = lossWeights(state, gradient);
  scores.forEach((block, k) => {
    for (const other of scores.slice(k)) addScoreScore(H, state, block, other, weights);
    addScoreValue(H, state, block, value, gradient);
  });
}

/** `sum_i fixed_i fixed'_i (x) moving^T D_i(w_i) moving' / s^2`. */
function addScoreScore(H, state, block, other, weights) {
  const [port, second] = [scorePort(state, block.key), scorePort(state, other.key)];
  const factor = 1 / state.scale ** 2;
  state.rows.forEach((row, i) => {
    const D = curvatureBetween(row, rowOf(weights, i), relative(row, port.moving), relative(row, second.moving));
    for (let f = 0; f < port.fixed.cols; f++) {
      for (let m = 0; m < D.rows; m++) {
        const at = portIndex(port, block, f, m) * H.cols;
        for (let g = 0; g < second.fixed.cols; g++) {
          const x = factor * port.fixed.data[i * port.fixed.cols + f] * second.fixed.data[i * second.fixed.cols + g];
          for (let n = 0; n < D.cols; n++) H.data[at + portIndex(second, other, g, n)] += x * D.data[m * D.cols + n];
        }
      }
    }
  });
}

/** `sum_i (X^T J_i moving)[a, m] g_if fixed_i / s` at the weights [f', m] and W_V[a, f]. */
function addScoreValue(H, state, block, value, gradient) {
  const port = scorePort(state, block.key);
  state.rows.forEach((row, i) => {
    const N = jacobianBetween(row, state.X, relative(row, port.moving));
    for (let f = 0; f < port.fixed.cols; f++) {
      const x = port.fixed.data[i * port.fixed.cols + f] / state.scale;
      for (let m = 0; m < N.cols; m++) {
        const at = portIndex(port, block, f, m) * H.cols + value.start;
        for (let a = 0; a < N.rows; a++) {
          const y = x * N.data[a * N.cols + m];
          for (let g = 0; g < value.cols; g++) H.data[at + a * value.cols + g] += y * gradient.data[i * value.cols + g];
        }
      }
    }
  });
}

/** `B = sum_i x_i (X^T J_i^T w_i)^T / s`, how the loss moves with a query-key matrix: [a, c]. */
export function scoreGradient(state, gradient) {
  const weights = lossWeights(state, gradient);
  const moved = zeros(state.X.rows, state.X.cols);
  state.rows.forEach((row, i) => {
    const e = { rows: 1, cols: row.A.length, data: vjp(row, rowOf(weights, i)) };
    moved.data.set(matmul(e, relative(row, state.X)).data, i * state.X.cols);
  });
  return scaled(matmul(transpose(state.X), moved), 1 / state.scale);
}

/** The T-functional part `[[0, B], [B^T, 0]] (x) I`: W_Q[a, e] meets W_K[c, e]. */
function addTFunctional(H, state, blocks, gradient) {
  const [Q, K] = ["Q", "K"].map((key) => blocks.find((block) => block.key === key));
  if (!Q) return;
  const B = scoreGradient(state, gradient);
  for (let a = 0; a < B.rows; a++) {
    for (let c = 0; c < B.cols; c++) {
      for (let e = 0; e < Q.cols; e++) H.data[(Q.start + a * Q.cols + e) * H.cols + K.start + c * K.cols + e] += B.data[a * B.cols + c];
    }
  }
}

/**
 * The Hessian of the loss with respect to every weight, dense, as {blocks, loss, gradient, outer, functional,
 * tFunctional, full}: full = outer + functional, and the functional part contains the T-functional one.
 */
export function hessian(layer, X, loss) {
  const { heads, F } = forward(layer, X);
  const at = lossAt(loss, F);
  const blocks = blocksOf(layer);
  const J = outputJacobian(heads, blocks, F.cols);
  const outer = gaussNewton(J, at.curvature, F.cols);
  const [functional, tFunctional] = [zeros(J.cols, J.cols), zeros(J.cols, J.cols)];
  heads.forEach((state, h) => {
    const own = blocks.filter((block) => block.head === h);
    addFunctional(functional, state, own, at.gradient);
    addTFunctional(tFunctional, state, own, at.gradient);
  });
  const whole = mirror(plus(functional, tFunctional));
  const gradient = matmul({ rows: 1, cols: J.rows, data: at.gradient.data }, J).data;
  return { blocks, loss: at.value, gradient, outer, functional: whole, tFunctional: mirror(tFunctional), full: plus(outer, whole) };
}

export const PARTS = ["outer", "functional", "full"];

/** One block of a part: outer, functional, full or tFunctional. */
export function block(H, part, row, column) {
  const [r, c] = [row, column].map((name) => H.blocks.find((one) => one.name === name));
  return slice(H[part], r.start, c.start, r.rows * r.cols, c.rows * c.cols);
}

/** Frobenius norms of all blocks of a part: {row: {column: norm}}. */
export function blockNorms(H, part) {
  const names = H.blocks.map((one) => one.name);
  return Object.fromEntries(names.map((r) => [r, Object.fromEntries(names.map((c) => [c, norm(block(H, part, r, c))]))]));
}

/** The loss and its gradient with respect to every weight, without the Hessian. */
export function lossAndGradient(layer, X, loss) {
  const { heads, F } = forward(layer, X);
  const at = lossAt(loss, F);
  const gradient = new Float64Array(parameterCount(layer));
  const place = (h, key, G) => gradient.set(G.data, blocksOf(layer).find((b) => b.head === h && b.key === key).start);
  headsOf(layer).forEach(({ weights: { Q, K } }, h) => {
    const B = scoreGradient(heads[h], at.gradient);
    place(h, "V", matmul(transpose(heads[h].M), at.gradient));
    if (!Q) place(h, "QK", B);
    else {
      place(h, "Q", matmul(B, K));
      place(h, "K", matmul(transpose(B), Q));
    }
  });
  return { loss: at.value, gradient };
}

/** Losses at the weights moved by every step along a direction. */
export function lossAlong(layer, X, loss, direction, steps) {
  const theta = parametersOf(layer);
  return Float64Array.from(steps, (t) => lossValue(withParameters(layer, theta.map((w, k) => w + t * direction[k])), X, loss));
}

/** Norms of diagonal blocks, [{sigma, outer, functional, full}] by name, as the tokens are scaled by every sigma. */
export function growth(layer, X, loss, sigmas) {
  return Array.from(sigmas, (sigma) => {
    const H = hessian(layer, scaled(X, sigma), loss);
    const norms = Object.fromEntries(
      H.blocks.map(({ name }) => [name, Object.fromEntries(PARTS.map((part) => [part, norm(block(H, part, name, name))]))]),
    );
    return { sigma, norms };
  });
}

/** What query i sees of the tokens: mean m (M1), covariance (M2, d x d) and third moments (M3, [a][b][c]). */
export function moments(state, i) {
  const { X, rows } = state;
  const columns = Array.from({ length: X.cols }, (_, a) => Float64Array.from({ length: X.rows }, (_, l) => X.data[l * X.cols + a]));
  const A = rows[i].A;
  const shifted = rows[i].normalised;
  const c = columns.map((x) => (shifted ? centred(rows[i], x) : x.map((value) => value - dot(A, x))));
  const sum = (...factors) => A.reduce((total, a, l) => total + factors.reduce((product, f) => product * f[l], a), 0);
  const pairs = c.map((u) => c.map((v) => sum(u, v)));
  const third = c.map((u) => c.map((v) => c.map((w) => sum(u, v, w))));
  return { mean: columns.map((x) => sum(x)), covariance: pairs, third };
}

/** Rank of the T-outer-product Hessian for softmax and generic weights: `k (r_X + r_C - k)`. */
export function tOuterRank(length, width, inner) {
  const [tokens, differences] = [Math.min(length, width), Math.min(length - 1, width)];
  const k = Math.min(inner, tokens, differences);
  return k * (tokens + differences - k);
}
