/** Norms of blocks over the scale of the tokens, both logarithmic: powers are straight lines. */

import { el, label, short, spoken } from "./elements.js";
import { axisX, axisY, curve, handle, scaleOf } from "./stage.js";

export const SIGMAS = Array.from({ length: 19 }, (_, k) => 10 ** (-2 + k / 7.2));

/** The exponent of sigma between the first two points of a line. */
export function slopeAt(points, k = 0) {
  const [[x, y], [u, v]] = [points[k], points[k + 1]];
  return Math.log(v / y) / Math.log(u / x);
}

/**
 * The chart: `lines` are {name, cls, points, side, from, lit, on}, their names "above" the line or "below" it from the
 * point `from` on, or all beside their ends, apart from each other, if none has a side; `move` is given a new sigma.
 */
export function growthChart({ left, top, right, bottom, lines, sigma, move, low = 1e-12, high }) {
  const sx = scaleOf(SIGMAS[0], SIGMAS.at(-1), left, right, true);
  const most = Math.max(...lines.flatMap(({ points }) => points.map(([, y]) => y)));
  const sy = scaleOf(low, high ?? 10 ** Math.ceil(Math.log10(most)), bottom, top, true);
  return {
    sx,
    sy,
    marks: [
      axisX(sx, bottom, top, "scale σ of the tokens", { ticks: [0.01, 0.1, 1], write: String }),
      axisY(sy, left, right, "size of the Hessian block (Frobenius norm)"),
      drawnLines(lines, sx, sy),
      el("path", { d: `M${sx(sigma)} ${bottom}V${top}`, class: "cursor" }),
      handle({
        sx,
        x: sigma,
        py: bottom,
        step: 0.05,
        name: "scale of the tokens",
        says: `σ = ${short(sigma)}`,
        move: (x) => move(Number(x.toPrecision(3))),
      }),
    ],
  };
}

function drawnLines(lines, sx, sy) {
  const shown = lines.map(({ points }) => points.filter(([, y]) => y > sy.low && y <= sy.high));
  const ends = apart(
    shown.map((points) => sy(points.at(-1)[1]) + 5),
    18,
  );
  return lines.map((line, k) => drawnLine(line, shown[k], sx, sy, ends[k]));
}

function drawnLine({ name, cls, side, from = 0, lit, on = {} }, points, sx, sy, end) {
  const pixels = points.map(([x, y]) => [sx(x), sy(y)]);
  const [x, y] = pixels[Math.min(from, pixels.length - 1)];
  const over = Math.min(y, heightAt(pixels, x + 6.8 * spoken(name).length)) - 7;
  const place = { below: [x + 14, y + 16], above: [x, over] }[side] ?? [sx.to + 8, end];
  return el(
    "g",
    { class: `line ${cls} ${lit === false ? "faint" : ""}`, ...on },
    curve(points, sx, sy, cls),
    on.tabindex === 0 && curve(points, sx, sy, "touch"),
    label(...place, name, { cls: "fill" }),
  );
}

/** The height of a line of pixels above `x`. */
function heightAt(pixels, x) {
  const k =
    Math.max(
      pixels.findIndex(([u]) => u >= x),
      0,
    ) || pixels.length - 1;
  const [[u, y], [v, z]] = [pixels[k - 1], pixels[k]];
  return y + (z - y) * Math.min((x - u) / (v - u), 1);
}

/** Heights moved apart so that neighbours are at least `gap` away from each other, and none is below `most`. */
export function apart(heights, gap, most = Infinity) {
  const order = heights.map((_, k) => k).sort((a, b) => heights[a] - heights[b]);
  const moved = [...heights];
  order.forEach((k, place) => {
    if (place) moved[k] = Math.max(moved[k], moved[order[place - 1]] + gap);
  });
  order.reverse().forEach((k, place) => {
    moved[k] = Math.min(moved[k], place ? moved[order[place - 1]] - gap : most);
  });
  return moved;
}
