/** The running example: the five words of "The cat sat on the", in the plane, and a layer of 12 weights. */

import { dot, matrix } from "../linalg.js";

export const WORDS = ["The", "cat", "sat", "on", "the"];

/** The given example, or that of the story. */
export function theExample(given) {
  return (
    given ?? {
      X: [
        [0.3, -1],
        [1.2, 0.5],
        [-0.2, 1.1],
        [-1.2, -0.2],
        [0.8, -0.9],
      ],
      W_Q: [
        [-1.7, 1.2],
        [-0.4, -0.5],
      ],
      W_K: [
        [-0.4, 0.6],
        [0.9, 0.3],
      ],
      W_V: [
        [0.3, -0.5],
        [-0.3, 1.9],
      ],
      Y: [
        [-2.3, -0.5],
        [0.6, -0.6],
        [0.7, 0.9],
        [-1, -0.8],
        [1.7, 1.1],
      ],
    }
  );
}

/** A layer with the weights of an example; `family` is the sigmoid moved so that a(0) is `start`. */
export function headOf({ W_Q, W_K, W_V }, kind = "softmax", start = 0) {
  const moved = { family: { name: "sigmoid", offset: start - 0.5 }, expm1: { name: "exp", offset: -1 } };
  const activation = moved[kind] ?? { name: kind };
  return { activation, weights: { Q: matrix(W_Q), K: matrix(W_K), V: matrix(W_V) } };
}

export function targetsOf({ Y }) {
  return { targets: matrix(Y) };
}

export const IMPORTS = "import torch, hessianlens as hl\n\n";

/** Rows of numbers times a number. */
export function stretched(rows, factor) {
  return rows.map((row) => row.map((x) => Number((factor * x).toPrecision(12))));
}

/** Matrices as lines of Python. */
export function tensors(named) {
  return Object.entries(named)
    .map(([name, rows]) => `${name} = torch.tensor(${JSON.stringify(rows)}, dtype=torch.float64)`)
    .join("\n");
}

/** An example and its layer as lines of Python. */
export function pythonHead(given, kind = "softmax", start = 0) {
  const chosen =
    {
      softmax: "",
      family: `, activation=lambda row: torch.sigmoid(row) - 0.5 + ${start}`,
      expm1: ", activation=lambda row: torch.exp(row) - 1",
    }[kind] ?? `, activation="${kind}"`;
  return `${tensors(given)}\nlayer = hl.SelfAttention(W_Q, W_K, W_V${chosen})`;
}

/** Names of activations as they are shown. */
export const KINDS = {
  softmax: "softmax",
  sigmoid: "sigmoid",
  exp: "exp",
  expm1: "exp(*t*) − 1",
  tanh: "tanh",
  linear: "linear",
  relu: "ReLU",
  relu_normalised: "ReLU / row sum",
  row_sum: "scores / row sum",
};

export function kindOptions(...names) {
  return names.map((name) => [name, KINDS[name]]);
}

/** `u^T M u`. */
export function quadratic(M, u) {
  return u.reduce((sum, x, k) => sum + x * dot(M.data.subarray(k * M.cols, (k + 1) * M.cols), u), 0);
}

const remembered = new Map();

/** What was made for this key before, or else is made now; the last two dozen are kept. */
export function remember(key, make) {
  const name = JSON.stringify(key);
  if (!remembered.has(name)) {
    if (remembered.size > 24) remembered.clear();
    remembered.set(name, make());
  }
  return remembered.get(name);
}

/** Rows of normal numbers with one digit, for lines of Python that can be read. */
export function randomRows(draw, count, width, deviation = 1) {
  return Array.from({ length: count }, () =>
    Array.from({ length: width }, () => Number((deviation * draw()).toFixed(1))),
  );
}
