/** What the scenes are drawn with: scales, axes, marks, and handles moved by mouse, touch or keyboard. */

import { el, label, short, spoken } from "./elements.js";

/** A map from numbers to pixels, with its inverse, which stays between the ends. */
export function scaleOf(low, high, from, to, log = false) {
  const [f, g] = log ? [Math.log10, (x) => 10 ** x] : [(x) => x, (x) => x];
  const [a, b] = [f(low), f(high)];
  const s = (value) => from + ((f(value) - a) / (b - a)) * (to - from);
  s.invert = (pixel) => g(a + clamp((pixel - from) / (to - from), 0, 1) * (b - a));
  return Object.assign(s, { low, high, from, to, log });
}

export function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

/** Round numbers on a scale, about `most` of them. */
export function ticksOf(s, most = 5) {
  const [a, b] = s.log ? [Math.log10(s.low), Math.log10(s.high)] : [s.low, s.high];
  const rough = (b - a) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find((m) => m * power >= rough * 0.999) * power, s.log ? 1 : 0);
  const first = Math.ceil(a / step - 1e-9);
  const count = Math.floor(b / step + 1e-9) - first + 1;
  return Array.from({ length: Math.max(count, 0) }, (_, k) =>
    s.log ? 10 ** Math.round((first + k) * step) : Number(((first + k) * step).toPrecision(9)),
  );
}

/** A horizontal axis at `y` with lines up to `top`. */
export function axisX(s, y, top, name, { ticks = ticksOf(s), write = short } = {}) {
  return el(
    "g",
    { class: "axis" },
    ticks.map((t) => [el("path", { d: `M${s(t)} ${y}V${top}` }), label(s(t), y + 18, write(t), { anchor: "middle" })]),
    name && label(Math.max(s.from, s.to), y + 37, name, { anchor: "end", cls: "name" }),
  );
}

/** A vertical axis at `x` with lines to `right`; its name stands above it. */
export function axisY(s, x, right, name, { ticks = ticksOf(s), write = short } = {}) {
  return el(
    "g",
    { class: "axis" },
    ticks.map((t) => [
      el("path", { d: `M${x} ${s(t)}H${right}` }),
      label(x - 6, s(t) + 4, write(t), { anchor: "end" }),
    ]),
    name && label(x - 34, Math.min(s.from, s.to) - 14, name, { cls: "name" }),
  );
}

/** A line through points, broken where a number is not finite or far off the scale. */
export function curve(points, sx, sy, cls) {
  let pen = "M";
  let d = "";
  for (const [x, y] of points) {
    const [px, py] = [sx(x), sy(y)];
    if (!Number.isFinite(py) || Math.abs(py) > 5000) pen = "M";
    else {
      d += `${pen}${px.toFixed(1)} ${py.toFixed(1)}`;
      pen = "L";
    }
  }
  return el("path", { d: d || "M0 0", class: `curve ${cls}` });
}

/** A sign by its shape: a filled square above zero, an open diamond below; the area goes with the size. */
export function signMark(x, y, value, size, cls = "") {
  const r = Math.max(size, 0.7);
  const d =
    value >= 0
      ? `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`
      : `M${x} ${y - 1.3 * r}l${1.3 * r} ${1.3 * r}l${-1.3 * r} ${1.3 * r}l${-1.3 * r} ${-1.3 * r}z`;
  return el("path", { d, class: `${value >= 0 ? "positive" : "negative"} ${cls}` });
}

/** The drawing of a scene: its elements, and what they show in words. */
export function drawing(width, height, alt, ...children) {
  height = Math.round(height);
  return el(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": spoken(alt) },
    children,
  );
}

/**
 * Something to drag. `x` and `y` are numbers on the scales `sx` and `sy`; one that is missing does not move, and stands at
 * the pixel `px` or `py`. `move` is given the new numbers, from the pointer or from the arrow keys.
 */
export function handle({ sx, sy, x, y, px, py, step, name, says, move, cls = "", shape }) {
  const [cx, cy] = [sx ? sx(x) : px, sy ? sy(y) : py];
  const along = sy ?? sx;
  const value = sy ? y : x;
  return el(
    "g",
    {
      class: `handle ${cls}`,
      tabindex: 0,
      role: "slider",
      transform: `translate(${cx.toFixed(1)} ${cy.toFixed(1)})`,
      "aria-label": name,
      "aria-valuemin": along.low,
      "aria-valuemax": along.high,
      "aria-valuenow": Number(value.toPrecision(4)),
      "aria-valuetext": spoken(says),
      "aria-orientation": sx ? "horizontal" : "vertical",
      "aria-roledescription": sx && sy ? "point, moved by the arrow keys" : null,
      onpointerdown: (e) => {
        e.currentTarget.setPointerCapture(e.pointerId);
        e.currentTarget.focus({ preventScroll: true });
      },
      onpointermove: (e) => {
        if (!e.currentTarget.hasPointerCapture(e.pointerId)) return;
        const box = e.currentTarget.ownerSVGElement.getBoundingClientRect();
        move(sx && sx.invert(e.clientX - box.left), sy && sy.invert(e.clientY - box.top));
      },
      onkeydown: (e) => {
        const by = keyStep(e, !sx, !sy);
        if (!by) return;
        e.preventDefault();
        move(sx && nudged(sx, x, by[0], step), sy && nudged(sy, y, by[1], step));
      },
    },
    el("circle", { r: 18, class: "hit" }),
    shape ?? el("circle", { r: 7, class: "knob" }),
  );
}

/** How far a key moves: [along x, along y] in steps; on one axis every arrow counts. */
function keyStep(event, onlyY, onlyX) {
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, 1],
    ArrowDown: [0, -1],
    PageUp: [0, 10],
    PageDown: [0, -10],
    Home: [-1e9, -1e9],
    End: [1e9, 1e9],
  };
  const found = keys[event.key];
  if (!found) return null;
  const [x, y] = found.map((k) => k * far);
  return onlyY ? [0, x || y] : onlyX ? [x || y, 0] : [x, y];
}

function nudged(s, value, by, step) {
  const moved = s.log ? value * 10 ** clamp(by * step, -99, 99) : value + by * step;
  return clamp(moved, s.low, s.high);
}
