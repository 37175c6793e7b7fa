/** Bend the activation: what it gives a score of zero decides how far value and query curvature lie apart. */

import { growth } from "../network.js";
import { activationRow } from "../activations.js";
import { matrix } from "../linalg.js";
import { el, label, short } from "./elements.js";
import { axisX, axisY, curve, handle, scaleOf } from "./stage.js";
import { growthChart, SIGMAS, slopeAt } from "./growth_chart.js";
import { headOf, IMPORTS, KINDS, kindOptions, pythonHead, remember, targetsOf, theExample } from "./example.js";

const COUNTED = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];

export function activationScene() {
  return {
    name: "activation",
    ask: "Is it softmax that separates value from query?",
    hint: "Lift *a*(0), the weight of a score of zero, and watch the orange line.",
    start: { kind: "family", a0: 0, sigma: 0.1 },
    second: { kind: "softmax" },
    controls: (s) =>
      [
        {
          kind: "choice",
          key: "kind",
          name: "activation",
          options: [
            ["family", "slide *a*(0)"],
            ...kindOptions("softmax", "sigmoid", "exp", "tanh", "linear", "expm1", "relu_normalised"),
          ],
        },
        s.kind === "family" && { kind: "slider", key: "a0", name: "*a*(0)", min: 0, max: 1, step: 0.005 },
        { kind: "slider", key: "sigma", name: "scale σ of the tokens", min: 0.01, max: 3, log: true },
      ].filter(Boolean),
    compute: computeActivation,
    height: (w) => (w > 640 ? 375 : 720),
    draw: drawActivation,
    says: activationSays,
    equation: (s) =>
      s.kind === "family"
        ? `*a*(*t*) = *a*(0) + sigmoid(*t*) − ½: only *a*(0) moves, *a*′ and *a*″ stay`
        : "*H*(V,V) = Σ_i *m*_i*m*_i^⊤ ⊗ *C*,   *m*_i = Σ_j *a*(*t*_{ij}) *x*_j",
    claims: {
      A10: "softmax is the cause",
      A12: "without softmax all blocks grow alike",
      A13: "no spread with sigmoid",
      A14: "the row normalisation separates",
    },
    terms: {
      "value / query":
        "The Frobenius norm of the Hessian's value block *H*(V,V) over that of its query block *H*(Q,Q), with the same weights and words.",
    },
    python: (s, n, own) => `${IMPORTS}${pythonHead(theExample(own), s.kind, s.a0)}
H = hl.attention_hessian(layer, ${s.sigma} * X, loss=hl.SquareLoss(Y))
value, query = (float(H.full[b, b].frobenius_norm()) for b in "VQ")
print("value", value)
print("query", query)
print("value / query", value / query)`,
    prints: (n) => [
      ["value", n.value],
      ["query", n.query],
      ["value / query", n.ratio],
    ],
  };
}

function computeActivation(s, own) {
  const given = theExample(own);
  const layer = headOf(given, s.kind, s.a0);
  const sizes = (sigmas) => growth(layer, matrix(given.X), targetsOf(given), sigmas);
  const found = remember(["activation", given, layer.activation], () => sizes(SIGMAS));
  const line = (name) => found.map(({ sigma, norms }) => [sigma, norms[name].full]);
  const { V, Q } = sizes([s.sigma])[0].norms;
  const [values, queries] = [line("V"), line("Q")];
  const bend =
    s.kind === "relu_normalised" ? null : (t) => activationRow(layer.activation, [t, 0, 0, 0, 0], [1, 1, 1, 1, 1]).A[0];
  return {
    value: V.full,
    query: Q.full,
    ratio: V.full / Q.full,
    values,
    queries,
    slopes: [slopeAt(values), slopeAt(queries)],
    factors: ["functional", "outer"].map((part) => slopeAt(found.map(({ sigma, norms }) => [sigma, norms.Q[part]]))),
    bend,
    start: bend ? bend(0) : NaN,
  };
}

function drawActivation(n, s, { width, update }) {
  const wide = width > 640;
  const split = wide ? Math.min(width * 0.34, 300) : width;
  const upper = n.values[1][1] > 0.9 * n.queries[1][1];
  const chart = growthChart({
    left: wide ? split + 70 : 42,
    right: width - 8,
    top: wide ? 90 : 340,
    bottom: wide ? 325 : 670,
    sigma: s.sigma,
    move: (sigma) => update({ sigma }),
    lines: [
      {
        name: `value block, slope ${n.slopes[0].toFixed(1)}`,
        cls: "v full",
        points: n.values,
        side: upper ? "above" : "below",
        from: upper ? 1 : 4,
      },
      {
        name: `query block, slope ${n.slopes[1].toFixed(1)}`,
        cls: "q full",
        points: n.queries,
        side: upper ? "below" : "above",
        from: upper ? 4 : 1,
      },
    ],
  });
  const x = chart.sx(s.sigma);
  const [from, to] = [chart.sy(Math.max(n.value, 1e-12)), chart.sy(Math.max(n.query, 1e-12))];
  return [
    drawBend(n, s, { left: 34, right: split - 10, top: wide ? 90 : 30, bottom: wide ? 325 : 220 }, update),
    chart.marks,
    el("path", { d: `M${x} ${from}V${to}`, class: "gap" }),
    label(wide ? split + 70 : 8, wide ? 52 : 300, short(n.ratio), { cls: "counter", unit: "value / query" }),
  ];
}

/** The activation itself, with a handle at a score of zero where it may be moved. */
function drawBend(n, s, { left, right, top, bottom }, update) {
  const sx = scaleOf(-4, 4, left, right);
  const sy = scaleOf(-0.5, 1.5, bottom, top);
  const steps = Array.from({ length: 65 }, (_, k) => -4 + k / 8);
  return [
    axisX(sx, bottom, top, "score *t*", { ticks: [-4, -2, 0, 2, 4] }),
    axisY(sy, left, right, "weight *a*(*t*)", { ticks: [-0.5, 0, 0.5, 1, 1.5] }),
    el("path", { d: `M${left} ${sy(0)}H${right}M${sx(0)} ${bottom}V${top}`, class: "zero" }),
    n.bend
      ? curve(
          steps.map((t) => [t, n.bend(t)]).filter(([, y]) => y >= -0.5 && y <= 1.5),
          sx,
          sy,
          "a full",
        )
      : label((left + right) / 2, (top + bottom) / 2 + 30, "no *a*(0): zeros have no sum", {
          anchor: "middle",
          cls: "muted",
        }),
    n.bend && label(sx(0) + 14, sy(n.start) + 18, `*a*(0) = ${short(n.start)}`, { cls: "word" }),
    s.kind === "family"
      ? handle({
          sy,
          y: s.a0,
          px: sx(0),
          step: 0.01,
          name: "a(0)",
          says: `a(0) = ${short(s.a0)}, value over query ${short(n.ratio)}`,
          cls: "a",
          move: (_, y) => update({ a0: Math.min(Math.max(Number(y.toFixed(3)), 0), 1) }),
        })
      : n.bend && el("circle", { cx: sx(0), cy: sy(n.start), r: 5, class: "a fill" }),
  ];
}

function activationSays(n, s) {
  const at = `at σ = ${short(s.sigma)}`;
  const name = s.kind === "family" ? `*a*(0) = ${short(s.a0)}` : KINDS[s.kind];
  const times = n.ratio >= 1 ? `${short(n.ratio)} times as large as` : `${short(1 / n.ratio)} times smaller than`;
  if (!n.bend)
    return `${name}: rows of tiny scores still sum to one, so *a*(0) does not exist. The query block hardly falls, and ${at} the value block is ${times} the query block: the order is turned round.`;
  const zero = `${name}${s.kind === "family" ? "" : " has *a*(0) = 0"}: a score of zero gets no weight.`;
  if (n.start === 0 && n.factors[0] < n.slopes[0] - 0.5)
    return `${zero} But it bends there, *a*″(0) ≠ 0: the functional part of the query block keeps its ${COUNTED[Math.round(n.factors[0])]} factors of *X*, the value block has ${COUNTED[Math.round(n.slopes[0])]}, so for small words the query block is the larger. ${at[0].toUpperCase()}${at.slice(1)} the value block is ${times} the query block.`;
  if (n.start === 0)
    return `${zero} Value and query curvature both fall as σ^${Math.round(n.slopes[0])}; ${at} the value block is ${times} the query block.`;
  return `${name}${s.kind === "family" ? "" : ` has *a*(0) = ${short(n.start)}`}: words get weight even where the scores say nothing. For small words the value block falls as σ^{${n.slopes[0].toFixed(1)}}, the query block as σ^{${n.slopes[1].toFixed(1)}}${partsSaid(n)}; ${at} the value block is ${times} the query block.`;
}

/** How many tokens each part of the query block has as factors: its power of small σ. */
function partsSaid({ factors }) {
  const [functional, outer] = factors.map((slope) => COUNTED[Math.round(slope)]);
  if (!functional || !outer) return "";
  return ` (its functional part has ${functional} factors of *X*, its Gauss-Newton part ${outer}, and the larger part decides)`;
}
