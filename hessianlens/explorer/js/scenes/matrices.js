/** One matrix or two: the same function of the tokens, and two spectra. */

import { block, hessian, merged } from "../network.js";
import { inertia, matrix, normals, plus, scaled, slice, symmetricEigen } from "../linalg.js";
import { el, label } from "./elements.js";
import { axisX, scaleOf, signMark } from "./stage.js";
import { headOf, IMPORTS, KINDS, kindOptions, pythonHead, randomRows, remember } from "./example.js";

const WIDTH = 4;

export function matricesScene() {
  return {
    name: "matrices",
    ask: "Same function, same loss. Same curvature?",
    hint: "Merge the two matrices, shrink *d*_K, then let what is still wrong go to zero.",
    start: { design: "two", kind: "softmax", dk: 2, wrong: 1 },
    second: { design: "one" },
    controls: () => [
      {
        kind: "choice",
        key: "design",
        name: "queries and keys",
        options: [
          ["two", "two matrices *W*_Q, *W*_K"],
          ["one", "one matrix *W*_{QK}"],
        ],
      },
      { kind: "choice", key: "kind", name: "activation", options: kindOptions("linear", "softmax") },
      { kind: "slider", key: "dk", name: "*d*_K", min: 1, max: WIDTH, step: 1 },
      { kind: "slider", key: "wrong", name: "residual, what is still wrong", min: 0, max: 1, step: 0.02 },
    ],
    compute: computeMatrices,
    height: (_, s) => (s.design === "two" ? 380 : 160),
    draw: drawMatrices,
    says: matricesSays,
    equation: () =>
      "*H*_{QK} = T-outer + T-functional,   T-functional = [0 *B*; *B*^⊤ 0] ⊗ *I*: eigenvalues ±λ, each *d*_K times".replace(
        /[[\]]/g,
        (c) => (c === "[" ? "(" : ")"),
      ),
    claims: {
      B5: "the Hessians differ",
      B9: "T-outer is never negative",
      B12: "hollow blocks, pairs ±λ",
      B13: "how many are not zero",
      B14: "linear attention too",
      B16: "the rank is bounded",
      B21: "mixed signs need T-functional",
    },
    terms: {
      "T-functional":
        "What the product *W*_Q*W*_K^⊤ adds to the curvature, because each matrix multiplies the other. One matrix has no such part.",
      "T-outer": "All other curvature of queries and keys: that of the one matrix, seen through two.",
    },
    python: matricesPython,
    prints: (n) =>
      n.rows.flatMap(({ name, values, signs }) => [
        [`${name}: negative`, signs.negative],
        [`${name}: rank`, signs.rank],
        [`${name}: smallest`, values[0]],
      ]),
  };
}

/** A layer of six tokens of width 4; the residual is given, so that it can go to zero. */
function matricesExample(dk) {
  const draw = normals(7);
  const rows = (count, width) => randomRows(draw, count, width);
  const [X, W_Q, W_K, W_V, R] = [
    rows(6, WIDTH),
    rows(WIDTH, WIDTH),
    rows(WIDTH, WIDTH),
    rows(WIDTH, WIDTH),
    rows(6, WIDTH),
  ];
  return { X, W_Q: W_Q.map((row) => row.slice(0, dk)), W_K: W_K.map((row) => row.slice(0, dk)), W_V, R };
}

/** The spectra, and the largest eigenvalue of either design, so that the axis stays where it is. */
function computeMatrices(s) {
  const ends = (design) =>
    spectra({ ...s, design, wrong: 1 }).rows.flatMap(({ values }) => [-values[0], values.at(-1)]);
  return {
    ...spectra(s),
    reach: 1.1 * remember(["reach", s.kind, s.dk], () => Math.max(...ends("two"), ...ends("one"))),
  };
}

function spectra(s) {
  const given = matricesExample(s.dk);
  const [layer, X, loss] = [headOf(given, s.kind), matrix(given.X), { residual: scaled(matrix(given.R), s.wrong) }];
  const row = (name, M) => {
    const { values } = symmetricEigen(M);
    return { name, values, signs: inertia(values) };
  };
  if (s.design === "one")
    return { rows: [row("query-key", block(hessian(merged(layer), X, loss), "full", "QK", "QK"))], pairs: [] };
  const H = hessian(layer, X, loss);
  const count = 2 * WIDTH * s.dk;
  const [full, between] = [H.full, H.tFunctional].map((M) => slice(M, 0, 0, count, count));
  const hollow = row("T-functional", between);
  const pairs = Array.from(hollow.values).filter((x, k) => x > 1e-12 && k % s.dk === 0);
  return {
    rows: [hollow, row("T-outer", plus(full, between, -1)), row("query-key", full)],
    pairs,
    bound: 2 * s.dk * WIDTH - s.dk ** 2,
  };
}

function drawMatrices(n, s, { width }) {
  const { reach } = n;
  const root = scaleOf(-Math.cbrt(reach), Math.cbrt(reach), 12, width - 12);
  const at = Object.assign((value) => root(Math.cbrt(value)), { low: -reach, high: reach, from: 12, to: width - 12 });
  const bottom = 110 * n.rows.length + 10;
  const powers = (width > 560 ? [1, 0.1, 0.01] : [1, 0.1]).map((p) => p * 10 ** Math.floor(Math.log10(reach)));
  return [
    axisX(at, bottom, 20, "eigenvalue (cube-root scale)", {
      ticks: [...powers.map((p) => -p), 0, ...powers.reverse()],
    }),
    n.rows.map((row, k) => strip(row, k, n, s, at, width)),
  ];
}

/** One spectrum: its marks, its counts, and arcs between those of a pair. */
function strip({ name, values, signs }, k, n, s, at, width) {
  const y = 110 * k + 86;
  const pairs = name === "T-functional" ? n.pairs : [];
  const none = values.length - signs.rank;
  return el(
    "g",
    { class: "spectrum" },
    label(12, y - 66, name, { cls: "word" }),
    label(
      12,
      y - 48,
      `${signs.negative} negative, ${none} zero${pairs.length ? `; ${pairs.length} ${pairs.length === 1 ? "pair" : "pairs"} ±λ${s.dk > 1 ? `, each ${s.dk} times` : ""}` : ""}`,
      { cls: "name" },
    ),
    el("path", { d: `M12 ${y}H${width - 12}`, class: "zero" }),
    pairs.map((value, j) =>
      el("path", {
        d: `M${at(-value)} ${y}A${at(value) - at(0)} ${16 + 8 * j} 0 0 1 ${at(value)} ${y}`,
        class: "pair",
      }),
    ),
    Array.from(
      values,
      (value, j) =>
        Math.abs(value) > 1e-12 && signMark(at(value), y + (pairs.length ? 12 * (j % s.dk) : 0), value, 4.5),
    ),
  );
}

function matricesSays(n, s) {
  const total = n.rows.at(-1);
  const count = `${total.signs.negative} of ${total.values.length} eigenvalues ${total.signs.negative === 1 ? "is" : "are"} negative`;
  if (s.design === "one")
    return `One matrix: ${count}. There is no product of two matrices, so there are no ± pairs${total.signs.negative ? `; what is negative comes from the second derivative of ${KINDS[s.kind]}` : ""}.`;
  const own = n.rows[1].signs.negative;
  const rank = `The rank of T-outer is ${n.rows[1].signs.rank}, at most 2*d*_K*d* − *d*_K^2 = ${n.bound}.`;
  if (!s.wrong) return `Two matrices, nothing left to learn: the pairs are gone and nothing is negative. ${rank}`;
  const pairs = `${n.pairs.length} ${n.pairs.length === 1 ? "pair" : "pairs"} ±λ${s.dk > 1 ? `, each ${s.dk} times,` : ""}`;
  const from = own
    ? `T-outer has ${own} negative ${own > 1 ? "eigenvalues" : "eigenvalue"} of its own`
    : total.signs.negative
      ? "all that is negative comes from them"
      : "T-outer outweighs their negative halves";
  return `Two matrices: ${count}. Their product brings ${pairs} for as long as something is wrong; ${from}. ${rank}`;
}

function matricesPython(s) {
  const given = matricesExample(s.dk);
  const grids =
    s.design === "one"
      ? '{"query-key": H.full["QK", "QK"].to_dense()}'
      : '{"T-functional": H.t_functional[:].to_dense(), "T-outer": H.t_outer[:].to_dense()}\nparts["query-key"] = parts["T-functional"] + parts["T-outer"]';
  return `${IMPORTS}${pythonHead(given, s.kind)}
H = hl.attention_hessian(${s.design === "one" ? `hl.SingleMatrixAttention(W_Q @ W_K.T / ${s.dk}**0.5, W_V, activation="${s.kind}")` : "layer"}, X, loss=hl.SquareLoss(layer(X) - ${s.wrong} * R))
parts = ${grids}
for name, part in parts.items():
    values = torch.linalg.eigvalsh(part)
    least = 1e-10 * values.abs().max()
    print(f"{name}: negative", int((values < -least).sum()))
    print(f"{name}: rank", int((values.abs() > least).sum()))
    print(f"{name}: smallest", float(values[0]))`;
}
