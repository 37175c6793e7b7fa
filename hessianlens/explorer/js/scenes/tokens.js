/** Tokens in the plane: the mean, the covariance and the skew that one query sees, and the blocks that follow them. */

import { attend, moments } from "../attention.js";
import { block, hessian } from "../network.js";
import { entropy } from "../activations.js";
import { matrix, norm, symmetricEigen, zeros } from "../linalg.js";
import { el, label, short } from "./elements.js";
import { axisX, handle, scaleOf } from "./stage.js";
import { headOf, IMPORTS, pythonHead, stretched, theExample, WORDS } from "./example.js";

const BLOCKS = [
  ["value", "v", "full", "V", "M_1"],
  ["query, Gauss-Newton", "q", "outer", "Q", "M_2"],
  ["query, functional", "q hollow", "functional", "Q", "M_3"],
  ["key", "k", "full", "K", "M_2, M_3"],
];

export function tokensScene() {
  return {
    name: "tokens",
    ask: "What does a word's curvature see of the others?",
    hint: "Drag the words, then sharpen the attention: what dies first?",
    start: { X: theExample().X.flat(), query: "4", sharp: 1 },
    second: { sharp: 60 },
    controls: () => [
      { kind: "choice", key: "query", name: "the word that looks", options: WORDS.map((word, k) => [String(k), word]) },
      { kind: "slider", key: "sharp", name: "sharpness: *W*_Q is multiplied by", min: 0.1, max: 1000, log: true },
    ],
    compute: computeTokens,
    height: (w) => (w > 640 ? Math.max(330, planeSide(w) + 14) : w + 335),
    draw: drawTokens,
    says: tokensSays,
    equation: () =>
      "*M*_1 = Σ_j *A*_{ij} *x*_j,   *M*_2 = Σ_j *A*_{ij} (*x*_j − *M*_1)(*x*_j − *M*_1)^⊤,   *M*_3 likewise with three factors",
    claims: {
      P36: "M_1 in VV, M_2 and M_3 in QK",
      A22: "three layers of moments",
      A23: "peaked attention, no query curvature",
      P39: "one-hot attention",
    },
    python: tokensPython,
    prints: (n) => BLOCKS.map(([name], k) => [name, n.sizes[k]]),
  };
}

function computeTokens(s) {
  const given = theExample();
  const X = { rows: 5, cols: 2, data: Float64Array.from(s.X) };
  const layer = headOf({ ...given, W_Q: stretched(given.W_Q, s.sharp) });
  const query = Number(s.query);
  const state = attend(layer, X);
  const H = hessian(layer, X, lossOfOne(state.F, matrix(given.Y), query));
  const A = state.rows[query].A;
  return {
    query,
    A,
    read: Math.exp(entropy(A)),
    ...moments(state, query),
    sizes: BLOCKS.map(([, , part, name]) => norm(block(H, part, name, name))),
  };
}

/** The mean squared error of one word's output: gradient and curvature are zero at the others. */
function lossOfOne(F, Y, query) {
  const gradient = zeros(F.rows, F.cols);
  const curvature = Array.from({ length: F.rows }, () => zeros(F.cols, F.cols));
  for (let f = 0; f < F.cols; f++) {
    const at = query * F.cols + f;
    gradient.data[at] = (2 / F.cols) * (F.data[at] - Y.data[at]);
    curvature[query].data[f * F.cols + f] = 2 / F.cols;
  }
  return { gradient, curvature };
}

function planeSide(width) {
  return width > 640 ? Math.min(360, width * 0.48) : width - 8;
}

function drawTokens(n, s, { width, update }) {
  const wide = width > 640;
  const side = planeSide(width);
  const [sx, sy] = [scaleOf(-2.2, 2.2, 4, side), scaleOf(-2.2, 2.2, side, 4)];
  const at = (k) => [s.X[2 * k], s.X[2 * k + 1]];
  const [qx, qy] = at(n.query);
  const shares = Array.from(n.A, (a) => `${Math.round(100 * a)} %`);
  const places = namePlaces(WORDS.map((_, k) => [sx(at(k)[0]), sy(at(k)[1])]), WORDS.map((word, k) => 9 * word.length + 7 * shares[k].length + 10), Array.from(n.A, discOf), side);
  return [
    el("rect", { x: 4, y: 4, width: side - 4, height: side - 4, class: "cell" }),
    el("path", { d: `M4 ${sy(0)}H${side}M${sx(0)} 4V${side}`, class: "grid" }),
    WORDS.map((_, k) =>
      el("line", {
        x1: sx(qx),
        y1: sy(qy),
        x2: sx(at(k)[0]),
        y2: sy(at(k)[1]),
        class: "a look",
        "stroke-width": 9 * n.A[k],
      }),
    ),
    WORDS.map((_, k) =>
      el("circle", { cx: sx(at(k)[0]), cy: sy(at(k)[1]), r: discOf(n.A[k]), class: "a disc" }),
    ),
    drawMoments(n, sx, sy),
    WORDS.map((word, k) =>
      handle({
        sx,
        sy,
        x: at(k)[0],
        y: at(k)[1],
        step: 0.05,
        name: `the word ${word}`,
        says: `${word} at ${at(k).join(", ")}, weight ${short(n.A[k])}`,
        cls: k === n.query ? "looking" : "",
        move: (x, y) =>
          update({
            X: s.X.map((old, j) => (j === 2 * k ? Number(x.toFixed(2)) : j === 2 * k + 1 ? Number(y.toFixed(2)) : old)),
          }),
        shape: el(
          "g",
          null,
          el("circle", { r: 6, class: "knob" }),
          label(places[k][0], places[k][1], word, { anchor: places[k][2], cls: "word", unit: shares[k] }),
        ),
      }),
    ),
    blockBars(
      n.sizes,
      wide ? { left: side + 60, right: width - 60, top: 40 } : { left: 12, right: width - 60, top: side + 44 },
    ),
  ];
}

/** The radius of a disc whose area is a weight. */
function discOf(weight) {
  return 34 * Math.sqrt(weight);
}

/** Where the names of points stand, [dx, dy, anchor] each: above, below or beside, wherever they cover least. */
function namePlaces(points, widths, radii, side) {
  const taken = [];
  return points.map(([x, y], k) => {
    const crowd = points.filter(([u, v]) => Math.hypot(u - x, v - y) < 60).length > 2;
    const avoided = crowd ? 0 : 0.1; // in a crowd names only keep clear of each other
    const boxes = [[0, -14, "middle"], [0, 24, "middle"], [13, 5, "start"], [-13, 5, "end"]].map((place) => {
      const left = x + place[0] - widths[k] * { start: 0, middle: 0.5, end: 1 }[place[2]];
      const box = [left, y + place[1] - 13, left + widths[k], y + place[1] + 5];
      const meets = ([a, b, c, d]) => a < box[2] && box[0] < c && b < box[3] && box[1] < d;
      const covered = taken.filter(meets).length + points.filter(([u, v], j) => j !== k && meets([u - 6, v - 6, u + 6, v + 6])).length + avoided * points.filter(([u, v], j) => j !== k && meets([u - radii[j], v - radii[j], u + radii[j], v + radii[j]])).length;
      return { place, box, covered: covered + 2 * (box[0] < 4 || box[2] > side) + (box[1] < 4 || box[3] > side) };
    });
    const best = boxes.reduce((one, other) => (other.covered < one.covered ? other : one));
    taken.push(best.box);
    return best.place;
  });
}

/** Mean as a cross, covariance as an ellipse of one standard deviation, skew as an arrow towards the long tail. */
function drawMoments({ mean, covariance, third }, sx, sy) {
  const unit = sx(1) - sx(0);
  const { values, vectors } = symmetricEigen(matrix(covariance), { vectors: true });
  const [rx, ry] = [values[1], values[0]].map((x) => unit * Math.sqrt(Math.max(x, 0)));
  const turn = (-180 / Math.PI) * Math.atan2(vectors.data[3], vectors.data[2]);
  const skew = [0, 1].map((a) => third[a][0][0] + third[a][1][1]);
  const size = Math.hypot(...skew);
  const [dx, dy] = skew.map((x) => (size ? (unit * x) / size ** (2 / 3) : 0));
  const [x, y] = [sx(mean[0]), sy(mean[1])];
  return el(
    "g",
    { class: "a" },
    el("ellipse", { rx, ry, transform: `translate(${x} ${y}) rotate(${turn})`, class: "ellipse" }),
    el("path", { d: `M${x - 6} ${y - 6}l12 12m0 -12l-12 12`, class: "cross" }),
    el("path", { d: `M${x} ${y}l${dx} ${-dy}`, class: "skew" }),
    Math.hypot(dx, dy) > 12 && el("circle", { cx: x + dx, cy: y - dy, r: 4, class: "fill" }),
    rx > 14 && label(x + 10, y + 4, "M_1", { cls: "fill" }),
    ry > 14 && label(x, y - Math.hypot(rx, ry) * 0.75 - 6, "M_2", { cls: "fill", anchor: "middle" }),
    Math.hypot(dx, dy) > 24 && label(x + dx + 6, y - dy + 4, "M_3", { cls: "fill" }),
  );
}

/** Sizes of blocks on a logarithmic scale, with the moment that each needs. */
function blockBars(sizes, { left, right, top }) {
  const scale = scaleOf(1e-8, 100, left, right, true);
  const y = (k) => top + 34 + 62 * k;
  return el(
    "g",
    null,
    label(left, top, "size of the Hessian block (Frobenius norm)", { cls: "name" }),
    axisX(scale, top + 265, top + 12, "", { ticks: [1e-8, 1e-6, 1e-4, 0.01, 1, 100] }),
    BLOCKS.map(([name, cls, , , moment], k) =>
      el(
        "g",
        { class: cls.slice(0, 1) },
        label(left + 4, y(k) - 8, `${name}: needs ${moment}`, { cls: "fill" }),
        el("rect", {
          x: left,
          y: y(k),
          height: 18,
          width: Math.max(scale(Math.max(sizes[k], 1e-8)) - left, 1),
          class: cls.includes("hollow") ? "scene-bar hollow" : "scene-bar",
        }),
        label(scale(Math.max(sizes[k], 1e-8)) + 6, y(k) + 14, short(sizes[k]), { cls: "number" }),
      ),
    ),
  );
}

function tokensSays(n) {
  const word = `“${WORDS[n.query]}”`;
  const top = n.A.indexOf(Math.max(...n.A));
  const [V, Q, F, K] = n.sizes;
  if (n.A[top] > 0.97)
    return `${word} reads almost only “${WORDS[top]}”. The ellipse is a point and the query block dies with it: ${short(Math.max(Q, F))}, while the value block, which needs no more than the mean, keeps ${short(V)}. The key block (${short(K)}) has the longer queries in it too, and dies later.`;
  return `${word} reads as many as ${short(n.read, 2)} words alike. The value block needs only their mean and is ${short(V)}; the query block needs the ellipse (Gauss-Newton, ${short(Q)}) and the skew (functional, ${short(F)}).`;
}

function tokensPython(s, n) {
  const given = theExample();
  const X = [0, 1, 2, 3, 4].map((k) => s.X.slice(2 * k, 2 * k + 2));
  return `${IMPORTS}${pythonHead({ ...given, X, W_Q: stretched(given.W_Q, s.sharp) })}
error, reads = torch.zeros_like(Y), torch.zeros(5, dtype=torch.float64)
error[${n.query}], reads[${n.query}] = (layer(X) - Y)[${n.query}], 1.0    # the loss reads this word alone
H = hl.attention_hessian(layer, X, grad=error, curvature=reads)
print("value", float(H.full["V", "V"].frobenius_norm()))
print("query, Gauss-Newton", float(H.outer["Q", "Q"].frobenius_norm()))
print("query, functional", float(H.functional["Q", "Q"].frobenius_norm()))
print("key", float(H.full["K", "K"].frobenius_norm()))`;
}
