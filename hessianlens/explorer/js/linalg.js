/**
 * Small dense linear algebra. A matrix is {rows, cols, data}, row by row in a Float64Array, so that it can be sent to a
 * worker as it is.
 */

export function zeros(rows, cols) {
  return { rows, cols, data: new Float64Array(rows * cols) };
}

/** A matrix from an array of rows. */
export function matrix(rows) {
  const M = zeros(rows.length, rows.length ? rows[0].length : 0);
  rows.forEach((row, i) => M.data.set(row, i * M.cols));
  return M;
}

export function toRows(M) {
  return Array.from({ length: M.rows }, (_, i) => Array.from(M.data.subarray(i * M.cols, (i + 1) * M.cols)));
}

export function map(M, f) {
  return { rows: M.rows, cols: M.cols, data: M.data.map(f) };
}

export function scaled(M, factor) {
  return map(M, (x) => factor * x);
}

/** `A + factor B`. */
export function plus(A, B, factor = 1) {
  return map(A, (x, k) => x + factor * B.data[k]);
}

export function transpose(M) {
  const N = zeros(M.cols, M.rows);
  for (let i = 0; i < M.rows; i++) for (let j = 0; j < M.cols; j++) N.data[j * M.rows + i] = M.data[i * M.cols + j];
  return N;
}

/** `A B`. */
export function matmul(A, B) {
  const C = zeros(A.rows, B.cols);
  for (let i = 0; i < A.rows; i++) {
    const row = C.data.subarray(i * C.cols, (i + 1) * C.cols);
    for (let k = 0; k < A.cols; k++) {
      const a = A.data[i * A.cols + k];
      if (a === 0) continue;
      for (let j = 0, at = k * B.cols; j < B.cols; j++) row[j] += a * B.data[at + j];
    }
  }
  return C;
}

export function dot(u, v) {
  let sum = 0;
  for (let k = 0; k < u.length; k++) sum += u[k] * v[k];
  return sum;
}

/** Euclidean norm of a vector, Frobenius norm of a matrix; safe from overflow and underflow of squares. */
export function norm(given) {
  const data = given.data ?? given;
  let top = 0;
  for (const x of data) top = Math.max(top, Math.abs(x));
  if (top === 0 || !Number.isFinite(top)) return top;
  let sum = 0;
  for (const x of data) sum += (x / top) ** 2;
  return top * Math.sqrt(sum);
}

/** Row i, not copied. */
export function rowOf(M, i) {
  return M.data.subarray(i * M.cols, (i + 1) * M.cols);
}

export function allRows(M) {
  return Array.from({ length: M.rows }, (_, i) => rowOf(M, i));
}

/** `u += factor v`, in place. */
export function addScaled(u, factor, v) {
  if (factor !== 0) for (let k = 0; k < u.length; k++) u[k] += factor * v[k];
}

/** `W += sum_k u_k v_k^T` for two lists of vectors, in place; entries of u that are zero take no time. */
export function addOuters(W, us, vs) {
  for (let p = 0; p < W.rows; p++) {
    const row = rowOf(W, p);
    for (let k = 0; k < us.length; k++) addScaled(row, us[k][p], vs[k]);
  }
}

/** `W + W^T`. */
export function symmetrised(W) {
  return plus(W, transpose(W));
}

/** Rows `top` to `top + rows` and columns `left` to `left + cols`. */
export function slice(M, top, left, rows, cols) {
  const part = zeros(rows, cols);
  for (let i = 0; i < rows; i++) {
    const from = (top + i) * M.cols + left;
    part.data.set(M.data.subarray(from, from + cols), i * cols);
  }
  return part;
}

/**
 * Eigenvalues of a symmetric matrix, smallest first; with `vectors` also its eigenvectors, the rows of `vectors`.
 * Householder reflections make it tridiagonal, implicit QL steps diagonal.
 */
export function symmetricEigen(M, { vectors = false } = {}) {
  const { diagonal, beside, basis } = tridiagonal(M, vectors);
  diagonalise(diagonal, beside, basis);
  const order = Array.from(diagonal.keys()).sort((i, j) => diagonal[i] - diagonal[j]);
  const values = Float64Array.from(order, (k) => diagonal[k]);
  return { values, vectors: basis && matrix(order.map((k) => basis[k])) };
}

/** `Q^T M Q` tridiagonal; `basis` has the columns of Q. */
function tridiagonal(M, wanted) {
  const n = M.rows;
  const a = allRows(map(M, (x) => x));
  const basis = wanted ? a.map((_, i) => Float64Array.from(a, (_, j) => +(i === j))) : null;
  const beside = new Float64Array(n);
  for (let k = 0; k < n - 1; k++) beside[k] = reflect(a, k, basis);
  return { diagonal: Float64Array.from(a, (row, i) => row[i]), beside, basis };
}

/**
 * `a <- P a P` with the reflection `P = I - 2 v v^T` that clears column k below the first place under the diagonal, whose
 * entry is returned: `P a P = a - v w^T - w v^T` with `w = 2 (a v - (v . a v) v)`.
 */
function reflect(a, k, basis) {
  const v = Float64Array.from(a, (row, i) => (i > k ? row[k] : 0));
  const length = norm(v);
  const entry = v[k + 1] < 0 ? length : -length;
  if (length === Math.abs(v[k + 1])) return v[k + 1];
  v[k + 1] -= entry;
  const own = norm(v);
  v.forEach((x, i) => (v[i] = x / own));
  const product = Float64Array.from(a, (row) => dot(row, v));
  const along = dot(v, product);
  const w = product.map((x, i) => 2 * (x - along * v[i]));
  for (let i = k + 1; i < a.length; i++) for (let j = k + 1; j < a.length; j++) a[i][j] -= v[i] * w[j] + w[i] * v[j];
  if (basis) reflectRows(basis, v);
  return entry;
}

/** `basis <- basis - 2 v (v^T basis)`. */
function reflectRows(basis, v) {
  const sums = new Float64Array(v.length);
  basis.forEach((row, i) => addScaled(sums, 2 * v[i], row));
  basis.forEach((row, i) => addScaled(row, -v[i], sums));
}

/** QL steps with Wilkinson's shift until the entries beside the diagonal are rounding. */
function diagonalise(diagonal, beside, basis) {
  const n = diagonal.length;
  for (let low = 0; low < n; low++) {
    for (let step = 0; step < 60; step++) {
      let high = low;
      while (high < n - 1 && !negligible(diagonal, beside, high)) high++;
      if (high === low) break;
      qlStep(diagonal, beside, low, high, basis);
    }
  }
}

function negligible(diagonal, beside, k) {
  const size = Math.abs(diagonal[k]) + Math.abs(diagonal[k + 1]);
  return size + Math.abs(beside[k]) === size;
}

function qlStep(d, e, low, high, basis) {
  const half = (d[low + 1] - d[low]) / (2 * e[low]);
  const root = Math.hypot(half, 1);
  let g = d[high] - d[low] + e[low] / (half + (half < 0 ? -root : root));
  let [sine, cosine, p] = [1, 1, 0];
  for (let i = high - 1; i >= low; i--) {
    const f = sine * e[i];
    const b = cosine * e[i];
    const r = Math.hypot(f, g);
    e[i + 1] = r;
    if (r === 0) {
      d[i + 1] -= p;
      e[high] = 0;
      return;
    }
    [sine, cosine] = [f / r, g / r];
    g = d[i + 1] - p;
    const t = (d[i] - g) * sine + 2 * cosine * b;
    p = sine * t;
    d[i + 1] = g + p;
    g = cosine * t - b;
    if (basis) rotate(basis, i, sine, cosine);
  }
  d[low] -= p;
  e[low] = g;
  e[high] = 0;
}

function rotate(basis, i, sine, cosine) {
  const [u, v] = [basis[i], basis[i + 1]];
  for (let k = 0; k < u.length; k++) {
    const x = v[k];
    v[k] = sine * u[k] + cosine * x;
    u[k] = cosine * u[k] - sine * x;
  }
}

/** How many eigenvalues exceed the rounding of the largest, and the signs of these. */
export function inertia(values, tolerance = 1e-10) {
  const least = tolerance * Math.max(...values.map(Math.abs), 0);
  const positive = values.filter((x) => x > least).length;
  const negative = values.filter((x) => x < -least).length;
  return { positive, negative, rank: positive + negative };
}

/** A generator of standard normal numbers: mulberry32, then Box and Muller. The same seed, the same numbers. */
export function normals(seed) {
  let state = seed >>> 0;
  const uniform = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  return () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
}

/** A matrix of independent normal numbers of this standard deviation. */
export function randomMatrix(rows, cols, draw, deviation = 1) {
  return map(zeros(rows, cols), () => deviation * draw());
}
