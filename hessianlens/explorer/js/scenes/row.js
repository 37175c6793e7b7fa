/** One row of scores: the weights that an activation makes of it, and how they move. */

import { activationRow, entropy, jacobian } from "../activations.js";
import { norm, toRows } from "../linalg.js";
import { el, label, short } from "./elements.js";
import { axisY, handle, scaleOf, signMark, ticksOf } from "./stage.js";
import { KINDS, kindOptions } from "./example.js";

/** Rows of the softmax article: [button, scores, activation, words seen, temperature, top of the axis, printed weights]. */
const PRINTED = [
  ["cat sat on the", [2.8, 1.2, 0.5, 3.1], "softmax", 4, 1, 6, [".28", ".06", ".03", ".38"]],
  ["masked", [2.8, 1.2, 0.5, 3.1], "softmax", 2, 1, 6, [".82", ".18"]],
  ["10, 9, 8", [10, 9, 8], "softmax", 3, 1, 12, [".47", ".33", ".20"]],
  ["10, 9, 8 / sum", [10, 9, 8], "row_sum", 3, 1, 12, [".37", ".33", ".30"]],
  ["45, 40, 35", [45, 40, 35], "softmax", 3, 1, 50, [".993", ".007", ".000"]],
  ["5, 4.4, 3.9", [5, 4.4, 3.9], "softmax", 3, 1, 6, [".54", ".29", ".17"]],
  ["3, 2, 1 at *T* = ½", [3, 2, 1], "softmax", 3, 0.5, 6, [".84", ".14", ".02"]],
  ["3, −2, 1 / sum", [3, -2, 1], "row_sum", 3, 1, 6, ["1.5", "−1.0", "0.5"]],
  ["−1, −2 / sum", [-1, -2], "row_sum", 2, 1, 6, ["−.33", "−.67"]],
];

const NAMES = ["cat", "sat", "on", "the"];

export function rowScene() {
  return {
    name: "row",
    ask: "What does a row of scores become?",
    hint: "Drag the scores. “The cat sat on the …”: the last word has scored the four before it.",
    start: { scores: [2.8, 1.2, 0.5, 3.1], kind: "softmax", t: 1, seen: 4, printed: 0 },
    fewest: 2,
    second: { kind: "sigmoid" },
    controls: rowControls,
    compute: computeRow,
    height: (w) => (w > 640 ? 430 : 740),
    draw: drawRow,
    says: rowSays,
    equation: (s) =>
      ({
        softmax: "*p*_j = exp(*t*_j/*T*) / Σ_l exp(*t*_l/*T*),   ∂*p*/∂*t* = (diag *p* − *p p*^⊤) / *T*",
        row_sum: "*a*_j = *t*_j / Σ_l *t*_l",
        relu_normalised: "*a*_j = max(*t*_j, 0) / Σ_l max(*t*_l, 0)",
      })[s.kind] ?? "*a*_j = *a*(*t*_j/*T*),   ∂*a*/∂*t* = diag *a*′ / *T*",
    claims: {
      C1: "the worked example",
      C5: "the masked row",
      C9: "dividing by the sum",
      C11: "softmax of 10, 9, 8",
      C16: "scaled scores",
      C8: "negative weights",
      A2: "rows that sum to one",
    },
    python: rowPython,
    prints: (n) => [...n.weights.map((w, k) => [n.words[k], w]), ["sum", n.sum], ["norm of the Jacobian", n.size]],
  };
}

function rowControls(s) {
  return [
    {
      kind: "choice",
      key: "kind",
      name: "activation",
      options: kindOptions("softmax", "sigmoid", "exp", "relu_normalised", "linear", "row_sum"),
    },
    { kind: "slider", key: "t", name: "temperature *T*", min: 0.1, max: 10, log: true },
    { kind: "slider", key: "seen", name: "words in sight (mask)", min: 1, max: s.scores.length, step: 1 },
    {
      kind: "presets",
      name: "In the article:",
      options: PRINTED.map(([text, scores, kind, seen, t], k) => [
        text,
        { scores, kind, seen, t, printed: k + 1 },
        s.printed === k + 1 && same(s, PRINTED[k]),
      ]),
    },
  ];
}

function computeRow(s) {
  const seen = s.scores.map((_, k) => k < s.seen);
  const row = activationRow(
    { name: s.kind },
    s.scores.map((x) => x / s.t),
    seen,
  );
  const weights = Array.from(row.A);
  const J = toRows(jacobian(row)).map((own) => own.map((x) => x / s.t));
  const sum = weights.reduce((a, b) => a + b, 0);
  const words = s.scores.length === 4 ? NAMES : s.scores.map((x) => short(x));
  const example = PRINTED[s.printed - 1];
  const printed = example && same(s, example) ? example[6] : [];
  return {
    top: example?.[5] ?? 6,
    seen,
    weights,
    J,
    sum,
    words,
    printed,
    wrong: printed.map((text, k) => misprinted(text, weights[k])),
    entropy: entropy(weights),
    size: norm(J.flat()),
  };
}

function same(s, [, scores, kind, seen, t]) {
  return s.kind === kind && s.seen === seen && s.t === t && scores.every((x, k) => x === s.scores[k]);
}

/** Whether a printed number is further from the weight than rounding allows. */
function misprinted(text, weight) {
  const digits = text.split(".")[1].length;
  return Math.abs(Number(text.replace("−", "-")) - weight) > 0.5001 * 10 ** -digits;
}

function drawRow(n, s, { width, update }) {
  const wide = width > 640;
  const count = s.scores.length;
  const [left, right] = [46, wide ? width * 0.56 : width - 4];
  const place = (k) => left + ((right - left) * (k + 0.5)) / count;
  const up = scaleOf(-n.top / 2, n.top, 180, 34);
  const down = scaleOf(Math.min(0, ...n.weights) * 1.15, Math.max(1, ...n.weights) * 1.12, 395, 252);
  const bars = Math.min(54, (right - left) / count - 12);
  const bar = (k, scale, value, cls) =>
    el("rect", {
      x: place(k) - bars / 2,
      width: bars,
      y: Math.min(scale(value), scale(0)),
      height: Math.abs(scale(value) - scale(0)),
      class: cls,
    });
  return [
    axisY(up, left, right, "score *t*"),
    axisY(down, left, right, "weight", { ticks: ticksOf(down, 3) }),
    s.scores.map((score, k) => [
      bar(k, up, score, n.seen[k] ? "score" : "score scene-unseen"),
      label(place(k), 206, n.words[k], { anchor: "middle", cls: n.seen[k] ? "word" : "muted" }),
      el("path", { d: `M${place(k)} 212v14m-4 -5l4 5l4 -5`, class: "arrow" }),
      bar(k, down, n.weights[k], "weight"),
      label(place(k), down(Math.max(n.weights[k], 0)) - 7, n.seen[k] ? short(n.weights[k]) : "hidden", {
        anchor: "middle",
        cls: "number",
      }),
      n.printed[k] && printedMark(place(k), down, n.printed[k], n.wrong[k], n.weights[k], bars),
    ]),
    el("path", { d: `M${left} ${down(0)}H${right}M${left} ${up(0)}H${right}`, class: "zero" }),
    wide
      ? drawJacobian(n, right + 60, 64, Math.min(64, (width - right - 90) / count))
      : drawJacobian(n, 60, 474, Math.min(64, (width - 64) / count)),
    s.scores.map((score, k) =>
      handle({
        sy: up,
        y: score,
        px: place(k),
        step: n.top / 60,
        name: `score of ${n.words[k]}`,
        says: `score ${short(score)}, weight ${short(n.weights[k])}`,
        move: (_, y) => update({ scores: s.scores.map((old, j) => (j === k ? Number(y.toFixed(2)) : old)) }),
      }),
    ),
  ];
}

function printedMark(x, scale, text, wrong, weight, width) {
  const y = scale(Number(text.replace("−", "-")));
  return el(
    "g",
    { class: wrong ? "scene-misprint" : "printed" },
    el("path", { d: `M${x - width / 2 - 5} ${y}h${width + 10}` }),
    label(x, Math.max(scale(0), scale(weight), y) + 18, `${wrong ? "✗" : "✓"} ${text}`, { anchor: "middle" }),
  );
}

function drawJacobian(n, x, y, cell) {
  const largest = Math.max(0.25, ...n.J.flat().map(Math.abs));
  return el(
    "g",
    null,
    label(x - 20, y - 34, "how weight *j* moves with score *l*", { cls: "name" }),
    n.words.map((word, k) => [
      label(x + (k + 0.5) * cell, y - 8, word, { anchor: "middle" }),
      label(x - 8, y + (k + 0.5) * cell + 4, word, { anchor: "end" }),
    ]),
    n.J.map((own, j) =>
      own.map((value, l) => {
        const [cx, cy] = [x + (l + 0.5) * cell, y + (j + 0.5) * cell];
        return [
          el("rect", { x: cx - cell / 2 + 1, y: cy - cell / 2 + 1, width: cell - 2, height: cell - 2, class: "cell" }),
          value !== 0 && signMark(cx, cy - 7, value, Math.sqrt(Math.abs(value) / largest) * (cell / 2 - 13)),
          label(cx, cy + cell / 2 - 6, String(Number(value.toFixed(2))).replace("-", "−"), { anchor: "middle" }),
        ];
      }),
    ),
  );
}

function rowSays(n, s) {
  const wrong = n.wrong.filter(Boolean).length;
  if (n.printed.length) {
    return wrong
      ? `The article prints ${n.printed.join(", ")}; its own formula gives ${n.weights
          .slice(0, n.printed.length)
          .map((w) => short(w, 2))
          .join(", ")}. ${wrong} of ${n.printed.length} are misprints, and the lines across the bars show by how much.`
      : `The article prints ${n.printed.join(", ")}, and so it is.`;
  }
  if (n.weights.some((w) => w < 0))
    return `The weights sum to ${short(n.sum)}, but ${n.weights.filter((w) => w < 0).length} of them ${n.weights.filter((w) => w < 0).length > 1 ? "are" : "is"} negative: those words are subtracted, and the row is no distribution.`;
  const tied = ["softmax", "relu_normalised", "row_sum"].includes(s.kind);
  if (!tied)
    return `With ${KINDS[s.kind]} the weights sum to ${short(n.sum)}: nothing ties them together. Each score moves its own weight alone, so only the diagonal is filled.`;
  return `The weights sum to ${short(n.sum)}. Their entropy is ${short(n.entropy)} nats, as if ${short(Math.exp(n.entropy), 2)} words were read alike. Raising one score lowers the other weights; the reaction has the norm ${short(n.size)}${n.size < 0.05 ? ", almost nothing: the row is nearly one-hot" : ""}.`;
}

function rowPython(s, n) {
  const hidden = s.scores.map((_, k) => k).filter((k) => k >= s.seen);
  return `from hessianlens.attention.row_profile import row_facts
facts = row_facts(${JSON.stringify(s.scores)}, "${s.kind}", hidden=${JSON.stringify(hidden)}, temperature=${s.t})
for word, weight in zip(${JSON.stringify(n.words)}, facts.weights):
    print(word, weight)
print("sum", facts.total)
print("norm of the Jacobian", facts.gradient_norm)`;
}
