/** Count the X's: every token in the formula of a block is a power of the scale of the tokens. */

import { block, hessian } from "../network.js";
import { matmul, matrix, norm, scaled, transpose } from "../linalg.js";
import { el, short, typeset } from "./elements.js";
import { growthChart, SIGMAS, slopeAt } from "./growth_chart.js";
import { headOf, IMPORTS, kindOptions, pythonHead, remember, targetsOf, theExample } from "./example.js";

/** Factors of X by block, in the order below. With a(0) = 0 the weights A bring two into every m, and a″ brings two. */
const COUNTS = { softmax: [2, 4, 5, 6], tanh: [6, 6, 7, 6] };

/** Blocks: [name, colour and line, part, row, column, formula with every X marked]. */
const FORMULAS = [
  ["value", "v full", "outer", "V", "V", "*H*(V,V) = Σ_i [m]_i [m]_i^⊤ ⊗ *C*"],
  ["query with value", "outer", "outer", "Q", "V", "*G*(Q,V) = Σ_i [x]_i [m]_i^⊤ ⊗ *W*_K^⊤ ⟨[x] [x]^⊤⟩ *W*_V *C*"],
  [
    "query, functional",
    "q functional",
    "functional",
    "Q",
    "Q",
    "*F*(Q,Q) = Σ_i [x]_i [x]_i^⊤ ⊗ *W*_K^⊤ ⟨[x] [x]^⊤ ([x]·*W*_V*g*_i)⟩ *W*_K",
  ],
  [
    "query, Gauss-Newton",
    "q outer",
    "outer",
    "Q",
    "Q",
    "*G*(Q,Q) = Σ_i [x]_i [x]_i^⊤ ⊗ *W*_K^⊤ ⟨[x] [x]^⊤⟩ *W*_V *C W*_V^⊤ ⟨[x] [x]^⊤⟩ *W*_K",
  ],
];

/** What counts more than it shows, by activation and block. */
const HIDDEN = {
  tanh: ["each *m* counts three", "*m* counts three", "the ⟨ ⟩ has *a*″, which counts two", ""],
};

/** Norms below this are rounding, and the chart has no room for them. */
const SMALLEST_NORM = 1e-20;

/** Scores of this size move attention itself. */
const LARGE_SCORE = 1;

export function factorsScene() {
  return {
    name: "factors",
    ask: "The words shrink. Which block dies first?",
    hint: "Guess, then drag σ to the left. Point at a formula or a line to find the other.",
    start: { kind: "softmax", sigma: 1, lit: "" },
    second: { kind: "tanh" },
    controls: () => [
      { kind: "choice", key: "kind", name: "activation", options: kindOptions("softmax", "tanh") },
      { kind: "slider", key: "sigma", name: "scale σ of the tokens", min: 0.01, max: 3, log: true },
    ],
    compute: computeFactors,
    height: () => 350,
    draw: drawFactors,
    says: factorsSays,
    below: formulas,
    equation: () => "*X* → σ*X*:   a block with *n* factors of *X* goes as σ^n",
    claims: {
      P25: "exponents of Gauss-Newton",
      P26: "exponents of the functional part",
      A7: "the table of exponents",
      A9: "σ = 0.1 explains two orders",
      P29: "which part dominates",
    },
    terms: {
      m: "*m*_i = Σ_j *A*_{ij} *x*_j, the mean of the tokens that word *i* sees; *A* itself stays where it is as the scores go to zero, so *m* counts as one *x*. With *a*(0) = 0, *A* is as small as a score, two more *x*, and *m* counts as three.",
      "⟨ ⟩":
        "mean over what word *i* attends to, of tokens relative to their mean: the covariance ⟨*x x*^⊤⟩, or the third moment; without softmax the plain sum over tokens, times *a*′ or, for the third, *a*″",
      "C, g, ⊗":
        "*C* is the second derivative of the loss by an output, *g*_i its first by the output of word *i*; *A* ⊗ *B* is the matrix of all *A*_{ij}*B*.",
    },
    python: (s, n, own) => `${IMPORTS}${pythonHead(theExample(own), s.kind)}
H = hl.attention_hessian(layer, ${s.sigma} * X, loss=hl.SquareLoss(Y))
${FORMULAS.map(([name, , part, row, column]) => `print("${name}", float(H.${part}["${row}", "${column}"].frobenius_norm()))`).join("\n")}`,
    prints: (n) => FORMULAS.map(([name], k) => [name, n.now[k]]),
  };
}

function computeFactors(s, own) {
  const given = theExample(own);
  const [layer, X, loss] = [headOf(given, s.kind), matrix(given.X), targetsOf(given)];
  const sizes = (sigma) => {
    const H = hessian(layer, scaled(X, sigma), loss);
    return FORMULAS.map(([, , part, row, column]) => norm(block(H, part, row, column)));
  };
  const found = remember(["factors", given, s.kind], () => SIGMAS.map(sizes));
  const lines = FORMULAS.map((_, k) => SIGMAS.map((sigma, j) => [sigma, found[j][k]]));
  const least = Math.min(...lines.flatMap((points) => points.map(([, y]) => y).filter((y) => y > 0)));
  const [now, near] = [sizes(s.sigma), sizes(s.sigma * 1.01)];
  return {
    lines,
    low: Math.max(10 ** Math.floor(Math.log10(least / 2)), SMALLEST_NORM),
    now,
    score: s.sigma ** 2 * largestScore(layer, X),
    slopes: now.map((y, k) =>
      slopeAt([
        [s.sigma, y],
        [s.sigma * 1.01, near[k]],
      ]),
    ),
  };
}

/** The largest score of the tokens in size, `max |x_i W_Q W_K^⊤ x_j^⊤| / √d_K`; it grows as σ². */
function largestScore({ weights: { Q, K } }, X) {
  const scores = matmul(matmul(X, Q), transpose(matmul(X, K)));
  return scores.data.reduce((most, t) => Math.max(most, Math.abs(t)), 0) / Math.sqrt(Q.cols);
}

/** Where the names of the lines stand; with tanh three of them are nearly one line. */
function places(kind, wide) {
  const [above, below] = ["above", "below"].map((side) => (from) => ({ side, from }));
  if (kind === "tanh") return [above(1), above(wide ? 6 : 5), below(3), above(wide ? 10 : 9)];
  return wide ? [above(1), above(0), below(9), below(2)] : [above(3), above(0), below(9), below(1)];
}

/** What lights up a block when it is pointed at or has the focus. */
function lighting(name, update) {
  return {
    onpointerenter: () => update({ lit: name }),
    onpointerleave: (e) => e.pointerType === "mouse" && update({ lit: "" }),
    onfocus: () => update({ lit: name }),
    tabindex: 0,
  };
}

function drawFactors(n, s, { width, update }) {
  const chart = growthChart({
    left: 50,
    right: width - 12,
    top: 34,
    bottom: 300,
    sigma: s.sigma,
    low: n.low,
    move: (sigma) => update({ sigma }),
    lines: FORMULAS.map(([name, cls], k) => ({
      name: `${width > 560 ? `${name}, slope` : ["VV", "QV", "QQ functional", "QQ GN"][k]} ${slopeAt(
        n.lines[k],
        n.lines[k].findIndex(([, y]) => y > n.low),
      ).toFixed(1)}`,
      cls,
      points: n.lines[k],
      lit: !s.lit || s.lit === name,
      ...places(s.kind, width > 560)[k],
      on: lighting(name, update),
    })),
  });
  return [
    chart.marks,
    FORMULAS.map(
      ([, cls], k) =>
        n.now[k] > n.low &&
        el("circle", { cx: chart.sx(s.sigma), cy: chart.sy(n.now[k]), r: 6, class: `${cls.split(" ")[0]} dot` }),
    ),
  ];
}

/** The formulas, with every X marked and counted. */
function formulas(n, s, update) {
  return el(
    "ol",
    { class: "formulas" },
    FORMULAS.map(([name, cls, , , , text], k) =>
      el(
        "li",
        { class: `${cls} ${s.lit === name ? "lit" : ""}`, ...lighting(name, update) },
        el("strong", null, name),
        el("span", { class: "equation" }, typeset(text)),
        el("b", null, typeset(countSaid(s.kind, k)), `, slope now ${n.slopes[k].toFixed(2)}`),
      ),
    ),
  );
}

function countSaid(kind, k) {
  const hidden = HIDDEN[kind]?.[k];
  return `${COUNTS[kind][k]} factors${hidden ? ` (${hidden})` : ""}`;
}

function factorsSays(n, s) {
  const [V, , F, Q] = n.now;
  const counts = COUNTS[s.kind];
  const now = `At σ = ${short(s.sigma)} the value block is ${short(V)}; of the query block the functional part is ${short(F)}, the Gauss-Newton part ${short(Q)}.`;
  const slopes = `the slopes (${n.slopes.map((x) => x.toFixed(1)).join(", ")}) are not the counts ${counts.join(", ")} yet`;
  if (counts.some((count, k) => Math.abs(n.slopes[k] - count) > 0.3))
    return n.score >= LARGE_SCORE
      ? `${now} Here scores reach ${short(n.score, 2)} and attention itself moves with σ, so ${slopes}.`
      : `${now} Scores reach only ${short(n.score, 2)} here, but terms of the next order in σ still add to the first, so ${slopes}.`;
  const tenth = "for every tenth of σ";
  return s.kind === "tanh"
    ? `${now} They die together: with *a*(0) = 0 every *m* is as small as three tokens, and ${tenth} the value block loses a factor of 10^6, the query block with its Gauss-Newton part as much. Its functional part needs *a*″, which is zero at zero, and loses 10^7.`
    : `${now} The query block dies first: ${tenth} its functional part, the larger one for small words, loses a factor of 10^5 and its Gauss-Newton part 10^6, the value block 10^2. The slopes are the counts of *X*.`;
}
