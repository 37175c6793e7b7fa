/**
 * Attention activations, by the names of the library. Each is an elementwise function a(t) with two derivatives, taken
 * as it is or divided by the sum of its row; softmax is exp divided by its row sum. Options, beside the name: `bias`
 * (sigmoid), `cap` (softmax: t becomes cap tanh(t / cap)), `offset` (added to an elementwise a, so that it moves a(0)).
 */
import { addScaled, rowOf, zeros } from "./linalg.js";

const logistic = (t) => (t < 0 ? Math.exp(t) / (1 + Math.exp(t)) : 1 / (1 + Math.exp(-t)));

/** `[a, a', a'']` of the sigmoid without differences from one. */
function sigmoidAt(t) {
  const s = logistic(t);
  const first = s * logistic(-t);
  return [s, first, -first * Math.tanh(t / 2)];
}

function tanhAt(t) {
  const first = 4 * logistic(2 * t) * logistic(-2 * t);
  return [Math.tanh(t), first, -2 * Math.tanh(t) * first];
}

function expAt(t) {
  const e = Math.exp(t);
  return [e, e, e];
}

/** `exp(c tanh(t / c))` by the chain rule. */
function cappedExpAt(t, cap, top) {
  const h = Math.tanh(t / cap);
  const [first, second] = [1 - h * h, (-2 / cap) * h * (1 - h * h)];
  const e = Math.exp(cap * h - top);
  return [e, e * first, e * (first * first + second)];
}

const linearAt = (t) => [t, 1, 0];
const reluAt = (t) => (t > 0 ? [t, 1, 0] : [0, 0, 0]);

/** Every activation that can be named: `at(t, {bias, length})` is `[a, a', a'']`. */
export const ACTIVATIONS = {
  softmax: { normalised: true, at: expAt },
  linear: { at: linearAt },
  sigmoid: { at: (t, { bias = 0 }) => sigmoidAt(t + bias) },
  sigmoid_log_length: { at: (t, { length }) => sigmoidAt(t - Math.log(length)) },
  relu: { at: reluAt },
  tanh: { at: tanhAt },
  exp: { at: expAt },
  relu_normalised: { normalised: true, at: reluAt },
  row_sum: { normalised: true, at: linearAt },
};

/** `{name, ...options}` of a name or an object. */
export function asActivation(given) {
  const chosen = typeof given === "string" ? { name: given } : given;
  if (!Object.hasOwn(ACTIVATIONS, chosen?.name)) {
    throw new Error(`activation: got ${chosen?.name}; expected one of ${Object.keys(ACTIVATIONS).join(", ")}.`);
  }
  return chosen;
}

/**
 * One row of scores seen through an activation.
 *
 * Elementwise:  A = a(T),      J = diag(s),              D(w) = diag(r w)          with s = a', r = a''
 * Normalised:   A = a(T) / S,  J = diag(s) - A s^T,      D(w) = diag(r c) - s (s c)^T - (s c) s^T
 *                                                        with s = a' / S, r = a'' / S, c = w - A . w
 *
 * @param seen which scores are visible; the others have weight 0. A row of sum 0 is 0, with zero derivatives.
 * @returns {normalised, A, s, r, top}; `top` is where the weight is largest, -1 unless adding a constant to the scores
 *   changes nothing (softmax).
 */
export function activationRow(activation, scores, seen) {
  const { name, cap, offset = 0, ...options } = activation;
  const { normalised = false, at } = ACTIVATIONS[name];
  const softmax = name === "softmax";
  const n = scores.length;
  const capped = (t) => (softmax && cap ? cap * Math.tanh(t / cap) : t);
  let top = -Infinity;
  if (softmax) for (let l = 0; l < n; l++) if (seen[l]) top = Math.max(top, capped(scores[l]));
  const row = { normalised, A: new Float64Array(n), s: new Float64Array(n), r: new Float64Array(n), top: -1 };
  for (let l = 0; l < n; l++) {
    if (!seen[l]) continue;
    const found = softmax && cap ? cappedExpAt(scores[l], cap, top) : at(softmax ? scores[l] - top : scores[l], { length: n, ...options });
    [row.A[l], row.s[l], row.r[l]] = found;
    if (!normalised) row.A[l] += offset;
  }
  if (normalised) divideBySum(row);
  if (softmax && !cap) row.top = row.A.indexOf(Math.max(...row.A));
  return row;
}

function divideBySum(row) {
  const sum = row.A.reduce((a, b) => a + b, 0);
  for (const values of [row.A, row.s, row.r]) for (let l = 0; l < values.length; l++) values[l] = sum ? values[l] / sum : 0;
}

/** `c_l = w_l - A . w`, relative to the largest weight, so that nothing cancels where A is nearly one-hot. */
export function centred(row, w) {
  let peak = 0;
  for (let l = 1; l < w.length; l++) if (Math.abs(row.A[l]) > Math.abs(row.A[peak])) peak = l;
  let mean = 0;
  let sum = 0;
  for (let l = 0; l < w.length; l++) {
    mean += row.A[l] * (w[l] - w[peak]);
    sum += row.A[l];
  }
  return sum === 0 ? Float64Array.from(w) : Float64Array.from(w, (x) => x - w[peak] - mean);
}

/** `J^T w`, how `A . w` moves with the scores. */
export function vjp(row, w) {
  const c = row.normalised ? centred(row, w) : w;
  return row.s.map((s, l) => s * c[l]);
}

/** The matrix `J[j, l] = dA_j / dT_l`; row j of it is how `A . e_j` moves. */
export function jacobian(row) {
  const n = row.A.length;
  const J = zeros(n, n);
  for (let j = 0; j < n; j++) J.data.set(vjp(row, Float64Array.from({ length: n }, (_, l) => +(l === j))), j * n);
  return J;
}

/** `dA_i = J_i dT_i` of row i: tangents of the scores, [i L + l], to those of the weights. */
export function jacobianTimes({ normalised, A, s }, dT, dA, i) {
  const L = A.length;
  const common = new Float64Array(dT.cols);
  if (normalised) for (let l = 0; l < L; l++) addScaled(common, s[l], rowOf(dT, i * L + l));
  for (let j = 0; j < L; j++) {
    addScaled(rowOf(dA, i * L + j), s[j], rowOf(dT, i * L + j));
    addScaled(rowOf(dA, i * L + j), -A[j], common);
  }
}

/** Half of `dT_i^T D(w) dT_i` of row i, as lists of vectors u_k and v_k: it is the sum of `u_k v_k^T` and its transpose. */
export function curvatureTerms(row, w, dT, i) {
  const L = w.length;
  const c = row.normalised ? centred(row, w) : w;
  const rows = Array.from({ length: L }, (_, l) => rowOf(dT, i * L + l));
  const [us, vs] = [rows.map((t, l) => t.map((x) => (x * row.r[l] * c[l]) / 2)), rows];
  if (!row.normalised) return [us, vs];
  const [along, weighted] = [new Float64Array(dT.cols), new Float64Array(dT.cols)];
  rows.forEach((t, l) => {
    addScaled(along, row.s[l], t);
    addScaled(weighted, -row.s[l] * c[l], t);
  });
  return [[...us, along], [...vs, weighted]];
}

/** Rows relative to that of the largest weight, where adding a constant to all scores changes nothing. */
export function relative(row, U) {
  if (row.top < 0) return U;
  const base = row.top * U.cols;
  return { ...U, data: U.data.map((x, k) => x - U.data[base + (k % U.cols)]) };
}

/** `-sum A log A` in nats; NaN where a weight is negative. */
export function entropy(A) {
  let sum = 0;
  for (const a of A) if (a !== 0) sum -= a * Math.log(a);
  return sum;
}
