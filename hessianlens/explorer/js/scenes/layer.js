/** A layer of any size: norms of its blocks and its spectrum, as tokens, temperature and residual are moved. */

import { inertia, matrix } from "../linalg.js";
import { parameterCount, PARTS } from "../network.js";
import { measured } from "../measured.js";
import { compute, WORKER_MIN_WEIGHTS } from "../worker.js";
import { el, label, short } from "./elements.js";
import { axisX, scaleOf, signMark } from "./stage.js";
import { headOf, theExample } from "./example.js";

/** Pairs of blocks are shown of so many blocks; and so many rows in all. */
const MOST_PAIRS = 3;
const MOST_ROWS = 12;

export function layerScene() {
  return {
    name: "layer", ask: "Which block of this layer has the curvature?",
    hint: "Thin is Gauss-Newton, dashed functional, thick the Hessian. Scale the tokens, sharpen the attention, let what is still wrong go to zero.",
    start: { sigma: 1, temperature: 1, wrong: 1 },
    controls: () => [
      { kind: "slider", key: "sigma", name: "scale σ of the tokens", min: 0.01, max: 10, log: true, says: (x) => short(x) },
      { kind: "slider", key: "temperature", name: "temperature", min: 0.1, max: 10, log: true, says: (x) => short(x) },
      { kind: "slider", key: "wrong", name: "residual, what is still wrong", min: 0, max: 1, step: 0.02, says: (x) => short(x) },
    ],
    compute: computeLayer, height: () => 450, draw: drawLayer, says: layerSays,
    equation: () => "*H* = *J*^⊤ *C J* + Σ_i *g*_i · ∂^2 *F*_i: Gauss-Newton and functional part",
    claims: {}, python: layerPython, prints: (n) => (n ? rowsOf(n).map(({ name, full }) => [name, full]) : []),
  };
}

/** A layer as matrices; `ask`, where there is one, answers in place of the browser. */
export function layerExample({ heads, X, targets, weights, name }, ask) {
  if (ask) return { name, weights, ask };
  const matrices = (given) => Object.fromEntries(Object.entries(given).map(([key, rows]) => [key, matrix(rows)]));
  const own = heads.map((head) => ({ ...head, weights: matrices(head.weights) }));
  return { name, weights, layer: own.length > 1 ? { heads: own } : own[0], X: matrix(X), targets: matrix(targets) };
}

function runningExample() {
  const given = theExample();
  return { name: "the layer of the story", layer: headOf(given), X: matrix(given.X), targets: matrix(given.Y) };
}

const answers = new WeakMap();
const story = runningExample();

/** The latest numbers of this layer: at once where it is small, else those of the last answer, and a question. */
function computeLayer(s, example = story) {
  const state = { sigma: s.sigma, temperature: s.temperature, wrong: s.wrong };
  const { layer, X, targets, name, ask } = example;
  const weights = layer ? parameterCount(layer) : 0;
  if (!ask && weights <= WORKER_MIN_WEIGHTS) return measured(layer, X, targets, state);
  const known = answers.get(example) ?? answers.set(example, { asked: "" }).get(example);
  if (known.asked === JSON.stringify(state)) return known.found;
  known.asked = JSON.stringify(state);
  const answer = ask ? ask(state) : compute(name, weights, "measured", layer, X, targets, state);
  answer.catch((error) => ({ error: error.message })).then((found) => {
    if (found) known.found = found;
    if (found) example.redraw?.();
  });
  return known.found;
}

/** Blocks with their norms: the diagonal, then pairs, unless there are many. */
function rowsOf({ blocks, norms }) {
  const places = blocks.flatMap((_, r) => blocks.map((__, c) => [r, c]).filter(([, c]) => c === r || (c > r && blocks.length <= MOST_PAIRS)));
  places.sort(([r, c], [p, q]) => (c - r === 0 ? 0 : 1) - (q - p === 0 ? 0 : 1));
  return places.map(([r, c]) => ({ name: r === c ? blocks[r] : `${blocks[r]}, ${blocks[c]}`, ...Object.fromEntries(PARTS.map((part) => [part, norms[part][r][c]])) }));
}

function drawLayer(n, s, { width }) {
  if (!n || n.error) return [label(12, 40, n ? n.error : "Computing ...", { cls: "word" })];
  const rows = rowsOf(n).slice(0, MOST_ROWS);
  const most = Math.max(...rows.flatMap((row) => PARTS.map((part) => row[part])), 1e-300);
  const sx = scaleOf(most * 1e-6, most, Math.min(130, width / 4), width - 12, true);
  const pitch = Math.min(34, 300 / rows.length);
  const powers = [6, 4, 2, 0].map((k) => 10 ** (Math.floor(Math.log10(most)) - k)).filter((x) => x >= sx.low);
  return [
    axisX(sx, 325, 10, "norm of the block (Frobenius)", { ticks: powers }),
    rows.map((row, k) => bars(row, 14 + k * pitch, pitch, sx)),
    n.values && spectrum(n.values, width),
  ];
}

/** Three bars of a block: Gauss-Newton solid, functional dashed, the Hessian thick. */
function bars(row, y, pitch, sx) {
  const colour = { Q: "q", K: "k", V: "v" }[row.name.replace(/^.*\./, "")[0]];
  const drawn = (part, dy) => row[part] > sx.low && el("path", { d: `M${sx.from} ${y + dy}H${sx(row[part])}`, class: `curve ${part}` });
  return el("g", { class: colour },
    label(4, y + pitch / 3, row.name, { cls: "fill word" }),
    drawn("outer", 0), drawn("functional", pitch / 4), drawn("full", pitch / 2));
}

function spectrum(values, width) {
  const reach = Math.max(Math.abs(values[0]), Math.abs(values.at(-1)), 1e-300);
  const root = scaleOf(-1, 1, 12, width - 12);
  return el("g", { class: "spectrum" },
    label(12, 385, "eigenvalues (cube-root scale)", { cls: "name" }), el("path", { d: `M12 420H${width - 12}`, class: "zero" }),
    values.map((value) => signMark(root(Math.cbrt(value / reach)), 420, value, 3.5)));
}

function layerSays(n) {
  if (!n || n.error) return n ? "The numbers could not be had." : "Computing ...";
  const own = n.blocks.map((name, k) => ({ name, size: n.norms.full[k][k] })).sort((a, b) => b.size - a.size);
  const [most, least] = [own[0], own.at(-1)];
  const signs = n.values && inertia(n.values);
  const ratio = least.size > 0 ? `${short(most.size / least.size)} times that of *W*_{${least.name}}` : `that of *W*_{${least.name}} is zero`;
  return `The block of *W*_{${most.name}} is the largest, ${ratio}.${signs ? ` ${signs.negative} of ${n.values.length} eigenvalues are negative.` : ""}`;
}

function layerPython(s) {
  return `F = layer(${s.sigma} * X)    # its temperature times ${s.temperature}
H = hl.attention_hessian(layer, ${s.sigma} * X, loss=hl.SquareLoss(F - ${s.wrong} * (F - Y)))
print(H.full.norms())`;
}
