/** Two learning rates: gradient descent, momentum and Adam race on a slice of the real loss. */

import { forward, hessian, lossAndGradient, lossAt, parametersOf, withParameters } from "../network.js";
import { dot, matrix, norm, scaled } from "../linalg.js";
import { el, label, short } from "./elements.js";
import { axisX, axisY, clamp, curve, handle, scaleOf } from "./stage.js";
import { apart } from "./growth_chart.js";
import { contours } from "./contours.js";
import { headOf, IMPORTS, KINDS, kindOptions, pythonHead, quadratic, remember, theExample } from "./example.js";

const MOST = 200;

/** A loss so many times that of the start has diverged. */
const DIVERGED_TIMES = 1e6;
const RACERS = [
  ["SGD", 0, "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z"],
  ["momentum", 0.9, "M-5 -5h10v10h-10z"],
  ["Adam", null, "M0 -6l6 11h-12z"],
];

export function ratesScene() {
  return {
    name: "rates",
    ask: "Can one step size suit queries and values?",
    hint: "Three optimisers start at the same point. Give value and query a rate of their own.",
    start: { kind: "softmax", sigma: 0.2, same: true, rateV: 300, rateQ: 300, adam: 0.1, steps: 60 },
    second: { kind: "tanh" },
    controls: ratesControls,
    compute: computeRates,
    height: (w) => (w > 640 ? Math.min(340, w * 0.45) + 52 : w + 300),
    draw: drawRates,
    says: ratesSays,
    equation: () => "stable while step size < 2/λ,   λ = *u*^⊤*Hu* at the best point, *u* along *W*_Q or *W*_V",
    claims: {
      A26: "SGD cannot cope",
      A27: "sigmoid does not need Adam",
      A31: "differences of hundreds",
      A35: "adaptive optimisers necessary",
    },
    python: ratesPython,
    prints: (n, s) => [
      ["2 / λ of W_Q", n.limits[0]],
      ["2 / λ of W_V", n.limits[1]],
      ...RACERS.map(([name], k) => [name, n.races[k].losses[s.steps]]),
    ],
  };
}

function ratesControls(s) {
  const limit = (k, text) => () => [[sliceOf(s).limits[k], text]];
  const both = () => [...limit(1, "2/λ_V")(), ...limit(0, "2/λ_Q")()];
  const rate = (key, name, marks) => ({ kind: "slider", key, name, min: 0.01, max: 1e6, log: true, marks });
  const own = s.same
    ? [rate("rateV", "step size of both", both)]
    : [rate("rateV", "step size of *W*_V", limit(1, "2/λ_V")), rate("rateQ", "step size of *W*_Q", limit(0, "2/λ_Q"))];
  return [
    { kind: "choice", key: "kind", name: "activation", options: kindOptions("softmax", "sigmoid", "tanh") },
    { kind: "toggle", key: "same", name: "one step size for both" },
    ...own,
    { kind: "slider", key: "adam", name: "Adam's step size", min: 0.001, max: 1, log: true },
    { kind: "slider", key: "sigma", name: "scale σ of the tokens", min: 0.05, max: 1.5, log: true },
    { kind: "slider", key: "steps", name: "steps taken", min: 1, max: MOST, step: 1, plays: true },
  ];
}

/** The slice through the weights W_Q and W_V at every length; its best point is where they are those of the example. */
function sliceOf({ kind, sigma }) {
  return remember(["slice", kind, sigma], () => makeSlice(kind, sigma));
}

function makeSlice(kind, sigma) {
  const given = theExample();
  const layer = headOf(given, kind);
  const X = scaled(matrix(given.X), sigma);
  const loss = { targets: forward(layer, X).F };
  const theta = parametersOf(layer);
  const units = [
    [0, 4],
    [8, 12],
  ].map(([from, to]) => {
    const own = theta.map((w, k) => (k >= from && k < to ? w : 0));
    return own.map((w) => w / norm(own));
  });
  const best = units.map((u) => dot(u, theta));
  const moved = ([q, v]) =>
    withParameters(
      layer,
      theta.map((w, k) => w + (q - best[0]) * units[0][k] + (v - best[1]) * units[1][k]),
    );
  const at = (p) => {
    const found = lossAndGradient(moved(p), X, loss);
    return { loss: found.loss, gradient: units.map((u) => dot(found.gradient, u)) };
  };
  const height = (q, v) => lossAt(loss, forward(moved([q, v]), X).F).value;
  const H = hessian(layer, X, loss);
  return { best, at, limits: units.map((u) => 2 / quadratic(H.full, u)), lines: contours(height, 4, 24) };
}

function computeRates(s) {
  const slice = sliceOf(s);
  const rates = [s.same ? s.rateV : s.rateQ, s.rateV];
  return {
    ...slice,
    rates,
    races: RACERS.map(([, momentum]) => {
      const own = momentum === null ? s.adam : rates;
      return remember(["race", s.kind, s.sigma, momentum, own], () =>
        race(slice.at, momentum === null ? adam(own) : descent(own, momentum)),
      );
    }),
  };
}

/** Points and losses of every step from the same start; it ends where the numbers do. */
function race(at, step) {
  const [points, losses] = [[[0.5, 0.5]], []];
  for (let n = 0; n <= MOST; n++) {
    const { loss, gradient } = at(points[n]);
    losses.push(loss);
    points.push(step(points[n], gradient, n + 1));
  }
  return { points, losses };
}

function descent(rates, momentum) {
  let velocity = [0, 0];
  return (p, g) => {
    velocity = velocity.map((v, k) => momentum * v + g[k]);
    return p.map((x, k) => x - rates[k] * velocity[k]);
  };
}

function adam(rate) {
  let [mean, square] = [
    [0, 0],
    [0, 0],
  ];
  return (p, g, n) => {
    mean = mean.map((m, k) => 0.9 * m + 0.1 * g[k]);
    square = square.map((v, k) => 0.999 * v + 0.001 * g[k] ** 2);
    return p.map((x, k) => x - (rate * mean[k]) / (1 - 0.9 ** n) / (Math.sqrt(square[k] / (1 - 0.999 ** n)) + 1e-8));
  };
}

function drawRates(n, s, { width, update }) {
  const wide = width > 640;
  const side = wide ? Math.min(340, width * 0.45) : width - 8;
  const [sx, sy] = [scaleOf(0, 4, 40, side), scaleOf(0, 4, side, 30)];
  const place = ([x, y]) => [sx(clamp(x, 0, 4)), sy(clamp(y, 0, 4))];
  const path = (points) =>
    points
      .slice(0, s.steps + 1)
      .filter((p) => p.every(Number.isFinite))
      .map(
        (p, k) =>
          `${k ? "L" : "M"}${place(p)
            .map((x) => x.toFixed(1))
            .join(" ")}`,
      )
      .join("");
  return [
    axisX(sx, side, 30, "length of *W*_Q"),
    axisY(sy, 40, side, "length of *W*_V"),
    el("path", {
      d: n.lines
        .map(([x, y, u, v]) => `M${sx(x).toFixed(1)} ${sy(y).toFixed(1)}L${sx(u).toFixed(1)} ${sy(v).toFixed(1)}`)
        .join(""),
      class: "contour",
    }),
    el("path", { d: `M${sx(n.best[0]) - 7} ${sy(n.best[1])}h14m-7 -7v14`, class: "cross" }),
    label(sx(n.best[0]) + 6, sy(n.best[1]) + 32, "loss 0", { cls: "name" }),
    n.races.map(({ points }, k) => el("path", { d: path(points), class: `curve racer${k}` })),
    n.races.map(({ points }, k) => runner(k, place(points[s.steps].every(Number.isFinite) ? points[s.steps] : [4, 4]))),
    drawLosses(
      n,
      s,
      wide
        ? { left: side + 70, right: width - 84, top: 30, bottom: side }
        : { left: 46, right: width - 84, top: side + 80, bottom: side + 250 },
      update,
    ),
  ];
}

function runner(k, [x, y]) {
  return el("path", { d: RACERS[k][2], transform: `translate(${x} ${y})`, class: `runner racer${k}` });
}

function drawLosses(n, s, { left, right, top, bottom }, update) {
  const start = n.races[0].losses[0];
  const sx = scaleOf(0, MOST, left, right);
  const sy = scaleOf(start * 1e-8, start * 10, bottom, top, true);
  const shown = n.races.map(({ losses }) =>
    losses
      .slice(0, s.steps + 1)
      .map((y, k) => [k, clamp(y, sy.low, sy.high)])
      .filter(([, y]) => Number.isFinite(y)),
  );
  const places = apart(
    shown.map((points) => sy(points.at(-1)[1]) + 4),
    17,
    bottom,
  );
  return [
    axisX(sx, bottom, top, "steps", { ticks: [0, 50, 100, 150, 200] }),
    axisY(sy, left, right, "loss"),
    shown.map((points, k) => [
      curve(points, sx, sy, `racer${k}`),
      runner(k, [sx(points.at(-1)[0]), sy(points.at(-1)[1])]),
      label(sx(points.at(-1)[0]) + 12, places[k], RACERS[k][0]),
    ]),
    handle({
      sx,
      x: s.steps,
      py: bottom,
      step: 1,
      name: "steps taken",
      says: `${s.steps} steps`,
      move: (x) => update({ steps: Math.round(x) }),
    }),
  ];
}

function ratesSays(n, s) {
  const [Q, V] = n.limits;
  const [slow, fast] = Q > V ? ["query", "value"] : ["value", "query"];
  const broken = ["query", "value"].filter((_, k) => n.rates[k] > n.limits[k]);
  const ends = RACERS.map(([name], k) => `${name} ${lossSaid(n.races[k].losses, s.steps)}`).join(", ");
  const limits = `With ${KINDS[s.kind]} the value weights are stable up to a step size of ${short(V)}, the query weights up to ${short(Q)}.`;
  if (broken.length)
    return `${limits} The ${broken.join(" and ")} ${broken.length > 1 ? "steps are beyond their limits" : "step is beyond its limit"}, so SGD cannot settle. Losses after ${s.steps} steps: ${ends}.`;
  if (n.rates[0] === n.rates[1])
    return `${limits} ${s.same ? "One step size for both has" : "Two equal step sizes are as good as one: it has"} to respect the ${fast} block, which leaves the ${slow} block ${short(Math.max(Q / V, V / Q), 2)} times slower than it could be. Losses after ${s.steps} steps: ${ends}.`;
  return `${limits} With a rate each, plain SGD is ${n.races[0].losses[s.steps] < n.races[2].losses[s.steps] ? "ahead of" : "behind"} Adam on this slice. Losses after ${s.steps} steps: ${ends}.`;
}

/** A loss in words, or that there is none to speak of. */
function lossSaid(losses, step) {
  return losses[step] <= DIVERGED_TIMES * losses[0] ? short(losses[step], 2) : "diverged";
}

function ratesPython(s) {
  const { Y, ...given } = theExample();
  const rates = [s.same ? s.rateV : s.rateQ, s.rateV];
  return `${IMPORTS}${pythonHead(given, s.kind)}
X = ${s.sigma} * X
Y = layer(X)    # the best point is known: these weights

H = hl.attention_hessian(layer, X, loss=hl.SquareLoss(Y))
for name, W in (("Q", W_Q), ("V", W_V)):
    u = W.flatten() / W.norm()
    print(f"2 / λ of W_{name}", float(2 / (u @ (H.full[name, name] @ u))))

def loss(q, v):
    moved = hl.SelfAttention(q * W_Q / W_Q.norm(), W_K, v * W_V / W_V.norm(), activation="${s.kind}")
    return ((moved(X) - Y) ** 2).mean()

for name in ("SGD", "momentum", "Adam"):
    q, v = (torch.tensor(0.5, dtype=torch.float64, requires_grad=True) for _ in "qv")
    if name == "Adam":
        optimiser = torch.optim.Adam([q, v], lr=${s.adam})
    else:
        groups = [{"params": [q], "lr": ${rates[0]}}, {"params": [v], "lr": ${rates[1]}}]
        optimiser = torch.optim.SGD(groups, lr=1.0, momentum=0.9 if name == "momentum" else 0.0)
    for _ in range(${s.steps}):
        optimiser.zero_grad()
        loss(q, v).backward()
        optimiser.step()
    print(name, loss(q, v).item())`;
}
