/** Scenes in a page: `mount` one in an element, `mountAll` in every `<div data-scene="NAME">`; their state in the address. */

import { control, term } from "./controls.js";
import { clamp, drawing } from "./stage.js";
import { el, patch, typeset } from "./elements.js";
import { activationScene } from "./activation.js";
import { depthScene } from "./depth.js";
import { curvatureScene } from "./curvature.js";
import { factorsScene } from "./factors.js";
import { layerScene } from "./layer.js";
import { matricesScene } from "./matrices.js";
import { ratesScene } from "./rates.js";
import { rowScene } from "./row.js";
import { tokensScene } from "./tokens.js";

/** The scenes by name, in the order of the story. */
export function scenes() {
  const made = [
    rowScene,
    tokensScene,
    curvatureScene,
    factorsScene,
    activationScene,
    matricesScene,
    depthScene,
    ratesScene,
    layerScene,
  ];
  return Object.fromEntries(made.map((make) => make()).map((scene) => [scene.name, scene]));
}

/** The address is written when nothing has moved for this long: browsers refuse it many times a second. */
const WRITE_AFTER_MILLISECONDS = 200;

let mounted = 0;

/**
 * Put a scene into an element.
 *
 * @param options.scene its name; `state` what differs from its first state; `onState` is called with every new state;
 *   `base` is the page of the claims; `address` false leaves the page's address alone; `example` another layer.
 * @returns {get, set, ms, remove}: the state, a change of it, the time of the last drawing, and the end.
 */
export function mount(
  element,
  { scene: name, state = {}, onState, base = "labbook.html", address = true, example } = {},
) {
  const scene = scenes()[name];
  if (!scene) throw new Error(`scene: got ${name}; expected one of ${Object.keys(scenes()).join(", ")}.`);
  const start = { ...scene.start, two: false, ...doubled(scene.second) };
  const view = {
    scene,
    start,
    element,
    base,
    example,
    group: `scene-${name}-${(mounted += 1)}`,
    code: false,
    frame: 0,
  };
  view.state = checked(view, { ...start, ...state, ...(address ? decoded(fromAddress(name), start) : {}) });
  view.update = (changes) => {
    view.state = checked(view, { ...view.state, ...changes });
    if (address) {
      clearTimeout(view.writing);
      view.writing = setTimeout(() => toAddress(name, encoded(view.state, start)), WRITE_AFTER_MILLISECONDS);
    }
    onState?.(view.state);
    view.frame ||= requestAnimationFrame(() => draw(view));
  };
  element.classList.add("scene");
  const watch = new ResizeObserver(() => widthOf(element) !== view.width && draw(view));
  watch.observe(element);
  draw(view);
  const remove = () => [
    watch.disconnect(),
    cancelAnimationFrame(view.frame),
    clearTimeout(view.writing),
    patch(element, []),
  ];
  return { get: () => ({ ...view.state }), set: view.update, ms: () => view.ms, remove };
}

export function mountAll(root = document, options = {}) {
  return Array.from(root.querySelectorAll("[data-scene]"))
    .filter(({ dataset }) => dataset.scene in scenes())
    .map((element) => mount(element, { scene: element.dataset.scene, base: element.dataset.base, ...options }));
}

/** The design of the second drawing, under names of its own. */
function doubled(design = {}) {
  return Object.fromEntries(Object.entries(design).map(([key, value]) => [`${key}2`, value]));
}

/** A state with nothing in it but numbers in range, known options and lists of numbers, whatever was in the address. */
function checked({ scene, start }, state) {
  const kept = {};
  for (const [key, first] of Object.entries(start))
    kept[key] = isLike(first, state[key], scene.fewest) ? state[key] : first;
  for (let pass = 0; pass < 2; pass++) {
    // the range of one may depend on another
    for (const one of scene.controls(kept)) {
      for (const key of [one.key, `${one.key}2`]) if (key in kept) kept[key] = allowed(one, kept[key], start[key]);
    }
  }
  return kept;
}

/** Whether a value is of the kind of the first one; lists are as long, or have `fewest` numbers at least. */
function isLike(first, value, fewest) {
  if (!Array.isArray(first))
    return typeof value === typeof first && (typeof value !== "number" || Number.isFinite(value));
  const long = Array.isArray(value) && value.length <= first.length && value.length >= (fewest ?? first.length);
  return long && value.every((x) => Number.isFinite(x) && Math.abs(x) <= 1000);
}

function allowed({ kind, min, max, step, options }, value, first) {
  if (kind === "choice") return options.some(([known]) => known === value) ? value : first;
  if (kind !== "slider") return value;
  return clamp(step === 1 ? Math.round(value) : value, min, max);
}

/** What differs from the first state, as `key:value~key:1,2,3`. */
function encoded(state, start) {
  const changed = Object.keys(start).filter((key) => key !== "lit" && String(state[key]) !== String(start[key]));
  return changed.map((key) => `${key}:${typeof state[key] === "boolean" ? Number(state[key]) : state[key]}`).join("~");
}

function decoded(text, start) {
  const read = (key, own) => {
    if (Array.isArray(start[key])) return own.split(",").map(Number);
    return { number: Number, boolean: (x) => x === "1", string: String }[typeof start[key]](own);
  };
  const pairs = text
    .split("~")
    .map((part) => part.split(":"))
    .filter(([key, own]) => own !== undefined && Object.hasOwn(start, key));
  return Object.fromEntries(pairs.map(([key, own]) => [key, read(key, own)]));
}

function fromAddress(name) {
  return new URLSearchParams(location.search).get(name) ?? "";
}

function toAddress(name, text) {
  const query = new URLSearchParams(location.search);
  if (text) query.set(name, text);
  else query.delete(name);
  const written = query.toString().replace(/%3A/g, ":").replace(/%7E/g, "~").replace(/%2C/g, ",");
  history.replaceState(history.state, "", `${location.pathname}${written && `?${written}`}${location.hash}`);
}

/** The states that are drawn: one, or two designs under the other controls. */
function designs(view) {
  const { state, scene } = view;
  if (!state.two || !scene.second) return [state];
  return [state, { ...state, ...Object.fromEntries(Object.keys(scene.second).map((key) => [key, state[`${key}2`]])) }];
}

/** Whole pixels, so that nothing is scaled. */
function widthOf(element) {
  return Math.floor(element.getBoundingClientRect().width);
}

function draw(view) {
  const { scene, element, state } = view;
  view.frame = 0;
  if (!element.clientWidth) return; // not shown, as on paper: drawn as soon as there is room
  const began = performance.now();
  view.width = widthOf(element);
  const shown = designs(view);
  const side = shown.length === 2 && view.width >= 760;
  const width = side ? (view.width - 32) / 2 : view.width;
  const numbers = shown.map((one) => scene.compute(one, view.example));
  const own = (one) => scene.second && state.two && Object.hasOwn(scene.second, one.key);
  const wanted = scene.controls(state);
  const shared = el(
    "div",
    { class: "controls" },
    wanted.filter((one) => !own(one)).map((one) => control(one, state, view.update, view.group)),
  );
  const beneath = shown.length === 1 && view.width <= 640 && shared; // on a phone the drawing stays in sight
  patch(element, [
    el("h3", { class: "ask" }, typeset(scene.ask)),
    el("p", { class: "hint" }, typeset(scene.hint)),
    el(
      "div",
      { class: side ? "panels side" : "panels" },
      shown.map((one, k) => panel(view, one, numbers[k], k, width, wanted.filter(own), beneath)),
    ),
    !beneath && shared,
    foot(view, shown[0], numbers[0]),
  ].filter(Boolean));
  view.ms = performance.now() - began;
}

function panel(view, state, numbers, k, width, controls, beneath) {
  const { scene, group } = view;
  const write = (changes) => view.update(k ? doubledWhere(scene.second, changes) : changes);
  const sentence = scene.says(numbers, state);
  return el(
    "figure",
    null,
    controls.map((one) => control(one, state, write, `${group}-${k}`)),
    drawing(width, scene.height(width, state), sentence, scene.draw(numbers, state, { width, update: write })),
    beneath,
    el("figcaption", { class: "says", "aria-live": "polite" }, typeset(sentence)),
    scene.below?.(numbers, state, write),
  );
}

function doubledWhere(design, changes) {
  return Object.fromEntries(
    Object.entries(changes).map(([key, value]) => [Object.hasOwn(design, key) ? `${key}2` : key, value]),
  );
}

function foot(view, state, numbers) {
  return el(
    "div",
    { class: "foot" },
    el("p", { class: "equation" }, typeset(view.scene.equation(state))),
    buttons(view, state),
    claimLinks(view),
    view.code && pythonLines(view, state, numbers),
  );
}

/** The claims that a scene decides, and the words that explain themselves. */
function claimLinks({ scene, base, group }) {
  const claims = Object.entries(scene.claims);
  const link = ([id, text], k) => [k ? ", " : "", el("a", { href: `${base}#claim-${id}` }, typeset(`${id} (${text})`))];
  const word = ([own, meaning], k) => [k ? ", " : ". In words: ", term(`${group}-term${k}`, own, meaning)];
  return (
    claims.length > 0 &&
    el("p", { class: "claims" }, "Decides ", claims.map(link), Object.entries(scene.terms ?? {}).map(word))
  );
}

function buttons(view, { two }) {
  const button = (name, text, onclick, more) => el("button", { type: "button", class: name, onclick, ...more }, text);
  const flip = () => {
    view.code = !view.code;
    draw(view);
  };
  return el(
    "p",
    { class: "buttons" },
    button("code", view.code ? "Hide the Python lines" : "The same in Python", flip, {
      "aria-expanded": String(view.code),
    }),
    view.scene.second &&
      button("two", two ? "One drawing" : "Compare two", () => view.update({ two: !two }), {
        "aria-pressed": String(two),
      }),
    button("reset", "Start again", () => view.update(view.start)),
  );
}

/** The lines of Python for what is on screen, and what they print. */
function pythonLines({ scene, example }, state, numbers) {
  const prints = scene.prints(numbers, state).map(([name, value]) => `${name} ${Number(value.toPrecision(10))}`);
  return el(
    "div",
    { class: "python" },
    el("pre", { class: "lines", tabindex: 0 }, scene.python(state, numbers, example)),
    el("pre", { class: "prints", tabindex: 0 }, prints.join("\n")),
  );
}
