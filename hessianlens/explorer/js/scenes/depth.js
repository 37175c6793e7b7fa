/** Depth and layer norm: how the powers of the token scale grow with layers, and what a norm leaves of them. */

import { block, hessian } from "../network.js";
import { matrix, norm, normals, scaled } from "../linalg.js";
import { short } from "./elements.js";
import { growthChart, SIGMAS, slopeAt } from "./growth_chart.js";
import { headOf, IMPORTS, kindOptions, randomRows, remember, targetsOf, tensors } from "./example.js";

const SCALES = SIGMAS.filter((_, k) => k % 2 === 0);
const BLOCKS_SHOWN = [
  ["value", "V", "v outer"],
  ["key", "K", "k outer"],
  ["query", "Q", "q outer"],
];

export function depthScene() {
  return {
    name: "depth",
    ask: "What do more layers do to curvature?",
    hint: "Stack layers, then give them a skip connection and a layer norm.",
    start: { layers: 2, kind: "linear", skip: false, norm: false, sigma: 0.3 },
    second: { norm: true },
    controls: () => [
      { kind: "slider", key: "layers", name: "layers *D*", min: 1, max: 3, step: 1 },
      { kind: "choice", key: "kind", name: "activation", options: kindOptions("linear", "softmax") },
      { kind: "toggle", key: "skip", name: "skip connection" },
      { kind: "toggle", key: "norm", name: "layer norm in front" },
      { kind: "slider", key: "sigma", name: "scale σ of the tokens", min: 0.01, max: 3, log: true },
    ],
    compute: computeDepth,
    height: () => 350,
    draw: drawDepth,
    says: depthSays,
    equation: () =>
      "*F*(*X*) = (*X W*_Q*W*_K^⊤*X*^⊤) *X W*_V uses its input three times: 3 powers after one linear layer, 9 after two, 27 after three, and twice as many in *G* = *J*^⊤*CJ*",
    claims: {
      P46: "three to the power of depth",
      A28: "18 and 54",
      P47: "a linear MLP stays at 2",
      P51: "layer norm evens blocks out",
      A29: "the same",
      P60: "large tokens",
    },
    python: depthPython,
    prints: (n) => BLOCKS_SHOWN.map(([name], k) => [name, n.now[k]]),
  };
}

/** Five tokens of width 4 and three layers of 32 weights each; a draw whose norms are not near zero variance. */
function depthExample() {
  const draw = normals(5);
  const layer = () => ({ W_Q: randomRows(draw, 4, 2), W_K: randomRows(draw, 4, 2), W_V: randomRows(draw, 4, 4) });
  return { X: randomRows(draw, 5, 4), Y: randomRows(draw, 5, 4), layers: [layer(), layer(), layer()] };
}

/** The first layer's blocks over the scale of the tokens; for plain linear layers beside the other depths. */
function computeDepth(s, _, alone = false) {
  const given = depthExample();
  const network = {
    layers: given.layers.slice(0, s.layers).map((weights) => headOf(weights, s.kind)),
    skip: Number(s.skip),
    norm: s.norm ? "pre" : null,
  };
  const first = s.layers > 1 ? "layer0." : "";
  const sizes = (sigma) => {
    const H = hessian(network, scaled(matrix(given.X), sigma), targetsOf(given));
    return BLOCKS_SHOWN.map(([, key]) => norm(block(H, "outer", first + key, first + key)));
  };
  const found = remember(["depth", s.layers, s.kind, s.skip, s.norm], () => SCALES.map(sizes));
  const lines = BLOCKS_SHOWN.map((_, k) => SCALES.map((sigma, j) => [sigma, found[j][k]]));
  const plain = s.kind === "linear" && !s.skip && !s.norm;
  const others =
    plain && !alone
      ? [1, 2, 3]
          .filter((layers) => layers !== s.layers)
          .map((layers) => [layers, computeDepth({ ...s, layers }, null, true).lines[2]])
      : [];
  return { plain, others, lines, slopes: lines.map((points) => slopeAt(points, 1)), now: sizes(s.sigma) };
}

function drawDepth(n, s, { width, update }) {
  const least = Math.min(...n.lines.flat().map(([, y]) => y));
  const wide = width > 560;
  const ends = n.plain ? { low: 1e-80, high: 1e60 } : { low: 10 ** Math.floor(Math.log10(least) - 1) };
  return growthChart({
    left: 58,
    right: width - (wide ? 140 : 92),
    top: 34,
    bottom: 300,
    sigma: s.sigma,
    move: (sigma) => update({ sigma }),
    ...ends,
    lines: n.plain
      ? [...n.others, [s.layers, n.lines[2]]].map(([layers, points]) => depthLine(layers, points, layers === s.layers, wide))
      : BLOCKS_SHOWN.map(([name, , cls], k) => ({
          name: `${name}${wide ? ", slope" : ""} ${n.slopes[k].toFixed(1).replace("-0.0", "0.0").replace("-", "−")}`,
          cls,
          points: n.lines[k],
        })),
  }).marks;
}

/** Of plain linear layers, whose blocks all grow alike: the query block at one depth. */
function depthLine(layers, points, chosen, wide) {
  const name = `${layers} ${layers > 1 ? "layers" : "layer"}${wide ? ", slope" : ":"} ${slopeAt(points).toFixed(0)}`;
  return { name, cls: chosen ? "full" : "ghost", points };
}

function depthSays(n, s) {
  const [V, , Q] = n.slopes;
  const ratio = n.now[0] / n.now[2];
  const blocks = `At σ = ${short(s.sigma)} the value block of the first layer is ${short(ratio)} times the query block.`;
  const tenth = `so a tenth of σ costs the query block a factor of 10^{${Math.round(Q)}}`;
  if (s.norm)
    return `Layer norm takes the scale of the tokens away: the slopes are ${short(V, 1)} and ${short(Q, 1)}${s.skip && s.layers > 1 ? ", though the skip connection still carries σ" : ""}. What it leaves is the difference between blocks. ${blocks}`;
  if (s.skip)
    return `With a skip connection the tokens pass by, and the powers no longer multiply: slopes ${V.toFixed(1)} for value and ${Q.toFixed(1)} for query at any depth. ${blocks}`;
  if (s.kind === "linear")
    return `${s.layers} linear ${s.layers > 1 ? "layers" : "layer"}: every block of the first layer falls as σ^{${Math.round(Q)}}, ${tenth}. That is twice ${3 ** s.layers}, since every layer uses its input three times.`;
  return `${s.layers} softmax ${s.layers > 1 ? "layers" : "layer"}: the value block falls as σ^{${V.toFixed(1)}}, the query block as σ^{${Q.toFixed(1)}}, ${tenth}. ${blocks}`;
}

function depthPython(s) {
  const { X, Y, layers } = depthExample();
  return `${IMPORTS}${tensors({ X, Y })}
weights = ${JSON.stringify(layers.slice(0, s.layers).map(({ W_Q, W_K, W_V }) => [W_Q, W_K, W_V]))}

class Stack(torch.nn.Module):
    def __init__(self):
        super().__init__()
        named = [{name: torch.tensor(W, dtype=torch.float64) for name, W in zip("QKV", layer)} for layer in weights]
        self.layers = torch.nn.ModuleList(map(torch.nn.ParameterDict, named))

    def forward(self, X):
        for W in self.layers:
            N = ${s.norm ? "torch.nn.functional.layer_norm(X, X.shape[-1:])" : "X"}
            X = ${s.skip ? "X + " : ""}hl.SelfAttention(W["Q"], W["K"], W["V"], activation="${s.kind}")(N)
        return X

problem = hl.problem(Stack(), [(${s.sigma} * X[None], Y[None])], torch.nn.MSELoss())
for name, key in (("value", "V"), ("key", "K"), ("query", "Q")):
    print(name, float(hl.ggn(problem, f"layers.0.{key}").to_dense().norm()))`;
}
