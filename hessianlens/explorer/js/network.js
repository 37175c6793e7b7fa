/**
 * Attention layers in a row, and the exact Hessian of a loss with respect to all their weights.
 *
 * A network is a head, {heads: [...]}, whose outputs are added, or {layers: [...], skip, norm}: layer by layer
 * y = skip x + F(x), with a layer norm (no gain, no shift) of x before F ("pre"), of y ("post") or none.
 *
 * A loss is {targets, reduction = "mean"} for the square loss, {residual, reduction} for the same with F - Y held at
 * these numbers, or {gradient, curvature}: dl/dF, and d^2 l/dF_i^2 as a number or as one matrix per token.
 *
 *     H = J^T C J + sum over layers of g . d^2 (layer), J and g by forward and reverse differentiation
 */
import { addHeadCurvature, attend, backward, headTangents, weightGradients } from "./attention.js";
import { addOuters, addScaled, allRows, dot, map, matmul, norm, plus, rowOf, scaled, slice, symmetrised, transpose, zeros } from "./linalg.js";

const EPSILON = 1e-5;

export function layersOf(network) {
  return network.layers ?? [network];
}

export function headsOf(layer) {
  return layer.heads ?? [layer];
}

/** The weights in block order: {name, layer, head, key, rows, cols, start}: Q, or Q1 in head 1, or layer0.Q1. */
export function blocksOf(network) {
  const layers = layersOf(network);
  const blocks = [];
  let start = 0;
  layers.forEach((one, layer) =>
    headsOf(one).forEach(({ weights }, head, { length }) => {
      for (const key of ["QK", "Q", "K", "V"].filter((one) => weights[one])) {
        const { rows, cols } = weights[key];
        const name = (layers.length > 1 ? `layer${layer}.` : "") + key + (length > 1 ? head : "");
        blocks.push({ name, layer, head, key, rows, cols, start });
        start += rows * cols;
      }
    }),
  );
  return blocks;
}

export function parameterCount(network) {
  return blocksOf(network).reduce((sum, { rows, cols }) => sum + rows * cols, 0);
}

/** All weights in one vector. */
export function parametersOf(network) {
  return flat(blocksOf(network), ({ layer, head, key }) => headsOf(layersOf(network)[layer])[head].weights[key]);
}

/** One vector of one matrix per block. */
function flat(blocks, find) {
  return Float64Array.from(blocks.flatMap((one) => Array.from(find(one).data)));
}

/** The same network with other heads: `change(head, layer, h)`. */
export function withHeads(network, change) {
  const layers = layersOf(network).map((layer, k) => {
    const heads = headsOf(layer).map((head, h) => change(head, k, h));
    return layer.heads ? { ...layer, heads } : heads[0];
  });
  return network.layers ? { ...network, layers } : layers[0];
}

/** The same network with the weights of this vector. */
export function withParameters(network, theta) {
  const blocks = blocksOf(network);
  return withHeads(network, (head, layer, h) => {
    const own = blocks.filter((one) => one.layer === layer && one.head === h);
    const part = ({ rows, cols, start }) => ({ rows, cols, data: theta.slice(start, start + rows * cols) });
    return { ...head, weights: Object.fromEntries(own.map((one) => [one.key, part(one)])) };
  });
}

/** The network with one query-key matrix `W_QK = W_Q W_K^T / sqrt(d_K)` instead of two: the same function. */
export function merged(network) {
  return withHeads(network, (head) => {
    const { Q, K, V } = head.weights;
    return Q ? { ...head, weights: { QK: scaled(matmul(Q, transpose(K)), 1 / Math.sqrt(Q.cols)), V } } : head;
  });
}

/** Value, gradient g = dl/dF and curvature C = d^2 l/dF^2 of a loss at the output F. */
export function lossAt(loss, F) {
  if (loss.gradient) return { value: NaN, gradient: loss.gradient, curvature: loss.curvature };
  const residual = loss.residual ?? plus(F, loss.targets, -1);
  const factor = loss.reduction === "sum" ? 1 : 1 / F.data.length;
  return { value: factor * dot(residual.data, residual.data), gradient: scaled(residual, 2 * factor), curvature: 2 * factor };
}

/** Layer by layer the normed input, every head, and what leaves it; the output F. */
export function forward(network, X) {
  const { norm: place = null, skip = 0 } = network;
  const layers = [];
  for (const layer of layersOf(network)) {
    const normed = place === "pre" ? normRows(X) : null;
    const heads = headsOf(layer).map((head) => attend(head, normed ? normed.rows : X));
    const sum = heads.map((head) => head.F).reduce((total, F) => plus(total, F));
    const y = skip ? plus(sum, X, skip) : sum;
    const after = place === "post" ? normRows(y) : null;
    X = after ? after.rows : y;
    layers.push({ normed, heads, after });
  }
  return { layers, heads: layers[0].heads, F: X };
}

/** Reverse differentiation: the gradients of every head, and g behind it, the last layer first. */
function reverse(network, layers, gradient) {
  const found = [];
  let g = gradient;
  for (const { normed, heads, after } of [...layers].reverse()) {
    const [outside, inside] = [g, after ? normVjp(after, g) : g];
    const gradients = heads.map((head) => backward(head, inside));
    const tokens = gradients.map((one) => one.X).reduce((sum, one) => plus(sum, one));
    g = plus(normed ? normVjp(normed, tokens) : tokens, network.skip ? inside : scaled(tokens, 0), network.skip ?? 0);
    found.unshift({ outside, inside, tokens, gradients });
  }
  return found;
}

/** The loss and its gradient with respect to every weight, without the Hessian. */
export function lossAndGradient(network, X, loss) {
  const { layers, F } = forward(network, X);
  const at = lossAt(loss, F);
  return { loss: at.value, gradient: assembleGradient(network, layers, reverse(network, layers, at.gradient)) };
}

function assembleGradient(network, layers, found) {
  const all = layers.map(({ heads }, k) => heads.map((state, h) => weightGradients(state, found[k].gradients[h])));
  return flat(blocksOf(network), ({ layer, head, key }) => all[layer][head][key]);
}

/**
 * The Hessian of the loss with respect to every weight, dense, as {blocks, loss, gradient, outer, functional,
 * tFunctional, full}: full = outer + functional; of one layer, the functional part contains the T-functional one.
 */
export function hessian(network, X, loss) {
  const { layers, F } = forward(network, X);
  const at = lossAt(loss, F);
  const blocks = blocksOf(network);
  const count = parameterCount(network);
  const found = reverse(network, layers, at.gradient);
  const half = { functional: zeros(count, count), tFunctional: zeros(count, count) };
  let dX = zeros(X.data.length, count);
  layers.forEach((layer, k) => (dX = addLayer(half, network, layer, found[k], dX, (h) => startsOf(blocks, k, h))));
  const outer = gaussNewton(dX, at.curvature);
  const tFunctional = symmetrised(half.tFunctional);
  const functional = plus(symmetrised(half.functional), tFunctional);
  const gradient = assembleGradient(network, layers, found);
  return { blocks, loss: at.value, gradient, outer, functional, tFunctional, full: plus(outer, functional) };
}

function startsOf(blocks, layer, head) {
  const own = blocks.filter((one) => one.layer === layer && one.head === head);
  return Object.fromEntries(own.map(({ key, start }) => [key, start]));
}

/** Add a layer's second derivatives along the tangents of its input; return the tangents of its output. */
function addLayer(half, { skip = 0 }, { normed, heads, after }, { outside, inside, tokens, gradients }, dX, starts) {
  const dN = normed ? normTangent(normed, dX) : dX;
  const outputs = heads.map((state, h) => {
    const tangents = headTangents(state, dN, starts(h));
    addHeadCurvature(half, state, tangents, gradients[h], inside, starts(h));
    return tangents.dF;
  });
  if (skip) outputs.push(scaled(dX, skip));
  const dY = outputs.reduce((sum, one) => plus(sum, one));
  if (normed) addNormCurvature(half.functional, normed, dX, tokens);
  if (!after) return dY;
  addNormCurvature(half.functional, after, dY, outside);
  return normTangent(after, dY);
}

/** The Gauss-Newton part `J^T C J` (the outer-product Hessian). */
function gaussNewton(J, curvature) {
  const H = zeros(J.cols, J.cols);
  const each = typeof curvature === "number" ? null : curvature;
  const [width, rows] = [each ? each[0].rows : J.rows, allRows(J)];
  const CJ = each ? each.flatMap((C, i) => allRows(matmul(C, slice(J, i * width, 0, width, J.cols)))) : allRows(scaled(J, curvature));
  addOuters(H, rows, CJ);
  return H;
}

/** Layer norm of every row: `n = (x - mean) / root(variance + epsilon)`, with the divisors. */
function normRows(X) {
  const rows = map(X, (x) => x);
  const divisors = Float64Array.from({ length: X.rows }, (_, i) => {
    const row = rowOf(rows, i);
    const mean = row.reduce((a, b) => a + b, 0) / X.cols;
    row.forEach((x, k) => (row[k] = x - mean));
    const divisor = Math.sqrt(dot(row, row) / X.cols + EPSILON);
    row.forEach((x, k) => (row[k] = x / divisor));
    return divisor;
  });
  return { rows, divisors };
}

/** `N'(x)^T g = (g - mean g - n (n . g) / d) / divisor`, which is symmetric in its two sides. */
function normVjp({ rows, divisors }, G) {
  const moved = map(G, (x) => x);
  for (let i = 0; i < rows.rows; i++) {
    const [n, g] = [rowOf(rows, i), rowOf(moved, i)];
    const [mean, along] = [g.reduce((a, b) => a + b, 0) / n.length, dot(n, g) / n.length];
    g.forEach((x, k) => (g[k] = (x - mean - n[k] * along) / divisors[i]));
  }
  return moved;
}

/** The same for every column of a tangent. */
function normTangent(normed, dX) {
  const [L, width] = [normed.rows.rows, normed.rows.cols];
  const columns = transpose(dX);
  const found = zeros(columns.rows, columns.cols);
  for (let p = 0; p < columns.rows; p++) rowOf(found, p).set(normVjp(normed, { rows: L, cols: width, data: rowOf(columns, p) }).data);
  return transpose(found);
}

/**
 * Half of `g . d^2 n` along tangents, with u and v centred, which is
 * `(3 (g.n)(n.u)(n.v) / d - (g.u)(n.v) - (g.v)(n.u) - (g.n)(u.v)) / (d divisor^2)`.
 */
function addNormCurvature(half, { rows, divisors }, dX, gradient) {
  const d = rows.cols;
  for (let i = 0; i < rows.rows; i++) {
    const [n, given] = [rowOf(rows, i), rowOf(gradient, i)];
    const g = given.map((x) => x - given.reduce((a, b) => a + b, 0) / d);
    const dx = centredTangents(dX, i * d, d);
    const [along, slope] = [combined(dx, n), combined(dx, g)];
    const [factor, gn] = [1 / (d * divisors[i] ** 2), dot(g, n)];
    const mixed = along.map((x, p) => factor * ((1.5 * gn * x) / d - slope[p]));
    addOuters(half, [along, ...dx], [mixed, ...dx.map((u) => u.map((x) => (-factor * gn * x) / 2))]);
  }
}

function centredTangents(dX, start, d) {
  const mean = new Float64Array(dX.cols);
  for (let a = 0; a < d; a++) addScaled(mean, 1 / d, rowOf(dX, start + a));
  return Array.from({ length: d }, (_, a) => rowOf(dX, start + a).map((x, p) => x - mean[p]));
}

function combined(vectors, weights) {
  const sum = new Float64Array(vectors[0].length);
  vectors.forEach((vector, a) => addScaled(sum, weights[a], vector));
  return sum;
}

export const PARTS = ["outer", "functional", "full"];

/** One block of a part: outer, functional, full or tFunctional. */
export function block(H, part, row, column) {
  const [r, c] = [row, column].map((name) => H.blocks.find((one) => one.name === name));
  return slice(H[part], r.start, c.start, r.rows * r.cols, c.rows * c.cols);
}

/** Frobenius norms of all blocks of a part: {row: {column: norm}}. */
export function blockNorms(H, part) {
  const names = H.blocks.map((one) => one.name);
  return Object.fromEntries(names.map((r) => [r, Object.fromEntries(names.map((c) => [c, norm(block(H, part, r, c))]))]));
}

/** Losses at the weights moved by every step along a direction. */
export function lossAlong(network, X, loss, direction, steps) {
  const theta = parametersOf(network);
  const moved = (t) => withParameters(network, theta.map((w, k) => w + t * direction[k]));
  return Float64Array.from(steps, (t) => lossAt(loss, forward(moved(t), X).F).value);
}

/** Norms of diagonal blocks as the tokens are scaled by every sigma: [{sigma, norms: {name: {outer, functional, full}}}]. */
export function growth(network, X, loss, sigmas) {
  return Array.from(sigmas, (sigma) => {
    const H = hessian(network, scaled(X, sigma), loss);
    const norms = ({ name }) => Object.fromEntries(PARTS.map((part) => [part, norm(block(H, part, name, name))]));
    return { sigma, norms: Object.fromEntries(H.blocks.map((one) => [one.name, norms(one)])) };
  });
}
