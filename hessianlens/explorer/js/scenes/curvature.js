/** What curvature is: the loss along a direction of weights, and the parabolas of the Hessian and of its parts. */

import { hessian, lossAlong } from "../network.js";
import { dot, matrix, norm, symmetricEigen } from "../linalg.js";
import { el, label, short } from "./elements.js";
import { axisX, axisY, clamp, curve, handle, scaleOf } from "./stage.js";
import { apart } from "./growth_chart.js";
import { headOf, IMPORTS, pythonHead, quadratic, targetsOf, theExample } from "./example.js";

const DIRECTIONS = [
  ["Q", "a query weight"],
  ["V", "a value weight"],
  ["steep", "steepest"],
  ["most", "most curved"],
  ["least", "most negative"],
];

export function curvatureScene() {
  return {
    name: "curvature",
    ask: "What do two second derivatives see of a loss?",
    hint: "Choose a direction of the 12 weights, then drag the step along it.",
    start: { along: "Q", step: 0.5, reach: 1.5 },
    second: { along: "V" },
    controls: (s) => [
      { kind: "choice", key: "along", name: "direction", options: DIRECTIONS },
      {
        kind: "slider",
        key: "reach",
        name: "how far we look",
        min: 0.1,
        max: 10,
        log: true,
        says: (x) => `± ${short(x)}`,
      },
      { kind: "slider", key: "step", name: "step", min: -s.reach, max: s.reach, step: s.reach / 50 },
    ],
    compute: computeCurvature,
    height: () => 340,
    draw: drawCurvature,
    says: curvatureSays,
    equation: () => "ℓ(θ + *a u*) ≈ ℓ + *a g*·*u* + ½ *a*² *u*^⊤*Hu*,   *H* = *G* (Gauss-Newton) + *F* (functional)",
    claims: {
      P1: "H = G + F",
      A4: "G cannot bend down",
      P44: "softmax makes blocks indefinite",
      P45: "linear attention: no negative block",
    },
    terms: {
      "Gauss-Newton":
        "The part of the Hessian that comes from the curvature of the loss alone, as if the layer were linear in its weights: *G* = *J*^⊤*CJ*. It never bends down.",
      functional:
        "The rest: second derivatives of the layer's output, weighted by what is still wrong with it. It vanishes at a perfect fit, and it may bend down.",
    },
    python: curvaturePython,
    prints: (n) => [
      ["Hessian", n.full],
      ["Gauss-Newton", n.outer],
      ["functional", n.functional],
      ["loss at the step", n.there],
    ],
  };
}

function computeCurvature(s, own) {
  const given = theExample(own);
  const [layer, X, loss] = [headOf(given), matrix(given.X), targetsOf(given)];
  const H = hessian(layer, X, loss);
  const u = directionOf(H, s.along);
  const steps = Array.from({ length: 81 }, (_, k) => s.reach * (k / 40 - 1));
  const losses = lossAlong(layer, X, loss, u, [...steps, s.step]);
  const [full, outer, functional] = ["full", "outer", "functional"].map((part) => quadratic(H[part], u));
  const slope = dot(H.gradient, u);
  const parabola = (bend) => (a) => H.loss + slope * a + 0.5 * bend * a * a;
  return { steps, losses, full, outer, functional, slope, start: H.loss, there: losses[81], parabola };
}

/** A unit vector of all weights; the largest entry of an eigenvector is positive. */
function directionOf(H, along) {
  const n = H.full.rows;
  const of = (name) =>
    Float64Array.from({ length: n }, (_, k) => +(k === H.blocks.find((one) => one.name === name).start));
  if (along === "Q" || along === "V") return of(along);
  if (along === "steep") return H.gradient.map((x) => -x / norm(H.gradient));
  const { vectors } = symmetricEigen(H.full, { vectors: true });
  const u = vectors.data.slice(...(along === "most" ? [n * n - n, n * n] : [0, n]));
  const top = u.reduce((best, x) => (Math.abs(x) > Math.abs(best) ? x : best), 0);
  return u.map((x) => x * Math.sign(top));
}

function drawCurvature(n, s, { width, update }) {
  const [low, high] = [Math.min(...n.losses), Math.max(...n.losses)];
  const room = Math.max(high - low, 1e-9);
  const sx = scaleOf(-s.reach, s.reach, 46, width - 122);
  const sy = scaleOf(low - 0.5 * room, high + 0.25 * room, 280, 34);
  const cls = { Q: "q", V: "v" }[s.along] ?? "";
  const points = (f) => n.steps.map((a) => [a, f(a)]).filter(([, y]) => y >= sy.low && y <= sy.high);
  const lines = [
    ["full", "Hessian"],
    ["outer", "Gauss-Newton"],
    ["functional", "functional"],
  ];
  const drawn = lines.map(([part, name]) => ({ part, name, points: points(n.parabola(n[part])) }));
  return [
    axisX(sx, 280, 34, "step *a* along the direction *u*"),
    axisY(sy, 46, width - 122, "loss"),
    curve(
      n.steps.map((a, k) => [a, n.losses[k]]),
      sx,
      sy,
      "truth",
    ),
    el(
      "g",
      { class: cls },
      drawn.map(({ part, points: own }) => curve(own, sx, sy, part)),
      endLabels(drawn, n, sx, sy),
    ),
    el("path", { d: `M${sx(s.step)} 280V${sy(n.there)}`, class: "cursor" }),
    el("circle", { cx: sx(s.step), cy: sy(n.there), r: 5, class: "dot" }),
    handle({
      sx,
      x: clamp(s.step, -s.reach, s.reach),
      py: 280,
      step: s.reach / 50,
      name: "step along the direction",
      says: `step ${short(s.step)}, loss ${short(n.there)}`,
      move: (a) => update({ step: Number(a.toPrecision(3)) }),
    }),
  ];
}

/** Names at the right ends. */
function endLabels(drawn, n, sx, sy) {
  const twin = (part, k) =>
    drawn.slice(0, k).some((other) => Math.abs(n[other.part] - n[part]) < 1e-9 * Math.abs(n.full));
  const entries = drawn.map(({ part, name }, k) => [
    n.parabola(n[part])(sx.high),
    `${twin(part, k) ? "= " : ""}${name}`,
    "fill",
  ]);
  entries.push([n.losses[80], "the loss", "muted"]);
  const heights = apart(
    entries.map(([y]) => clamp(sy(y), 44, 236) + 4),
    18,
  );
  return entries.map(([, name, cls], k) => label(sx(sx.high) + 8, heights[k], name, { cls }));
}

function curvatureSays(n, s) {
  const sum = `*u*^⊤*Hu* = ${short(n.full)}: ${short(n.outer)} from Gauss-Newton, ${short(n.functional)} from the functional part.`;
  const there = `After a step of ${short(s.step)} the loss is ${short(n.there)}; the Hessian's parabola says ${short(n.parabola(n.full)(s.step))}, Gauss-Newton's ${short(n.parabola(n.outer)(s.step))}.`;
  if (s.along === "V") return `${sum} Values enter linearly, so the loss is exactly a parabola: nothing is functional.`;
  if (n.full < 0) return `The loss bends down here, and Gauss-Newton cannot see it. ${sum} ${there}`;
  return `${sum} ${there}`;
}

function curvaturePython(s, n, own) {
  const eigen = (k) => `u = torch.linalg.eigh(full).eigenvectors[:, ${k}]\nu = u * u[u.abs().argmax()].sign()`;
  const u = {
    Q: "u = torch.zeros_like(theta)\nu[0] = 1.0",
    V: "u = torch.zeros_like(theta)\nu[W_Q.numel() + W_K.numel()] = 1.0",
    steep: "u = -torch.func.grad(loss)(theta)\nu = u / u.norm()",
    most: eigen(-1),
    least: eigen(0),
  }[s.along];
  return `${IMPORTS}${pythonHead(theExample(own))}
H = hl.attention_hessian(layer, X, loss=hl.SquareLoss(Y))
full = H.full[:].to_dense()
weights = (W_Q, W_K, W_V)
theta = torch.cat([W.flatten() for W in weights])

def loss(theta):
    parts = theta.split([W.numel() for W in weights])
    moved = [part.reshape(W.shape) for part, W in zip(parts, weights)]
    return ((hl.SelfAttention(*moved)(X) - Y) ** 2).mean()

${u}
print("Hessian", float(u @ full @ u))
print("Gauss-Newton", float(u @ H.outer[:].to_dense() @ u))
print("functional", float(u @ H.functional[:].to_dense() @ u))
print("loss at the step", float(loss(theta + ${s.step} * u)))`;
}
