/** Sliders, choices and buttons, as descriptions of elements; every one changes numbers of the state by name. */

import { el, label, short, spoken, typeset } from "./elements.js";
import { clamp } from "./stage.js";

/** Of words that are explained, in pixels: room below that is enough, and how far they stay from the edges. */
const ROOM_BELOW_PIXELS = 200;
const EDGE_PIXELS = 8;

/** A slider of the number `key`; with `log` it moves in powers of ten. */
export function slider({ key, name, min, max, step, log, says = (x) => short(x), marks, plays }, state, update) {
  const [to, from] = log ? [Math.log10, (x) => 10 ** x] : [(x) => x, (x) => x];
  const said = says(state[key]);
  const rounded = (x) => Number(from(Number(x)).toPrecision(4));
  const share = (x) => (to(x) - to(min)) / (to(max) - to(min));
  return el(
    "label",
    { class: `control slider scene-${key}`, key },
    el("span", null, typeset(name)),
    el("output", null, typeset(said)),
    el("input", {
      type: "range",
      name: key,
      min: to(min),
      max: to(max),
      step: step ?? (log ? 0.02 : 0.01),
      value: to(state[key]),
      "aria-valuetext": spoken(said),
      oninput: (e) => update({ [key]: rounded(e.target.value) }),
    }),
    plays &&
      el(
        "button",
        { type: "button", class: "play", onclick: (e) => play(e.currentTarget, key, max, update) },
        "▶ Play",
      ),
    marks && sliderMarks(marks().map(([x, text]) => [share(x), text])),
  );
}

/** Marks below a slider, at shares of its way: a tip where the middle of the knob would be, and a name beside it. */
function sliderMarks(marks) {
  const seen = marks.filter(([share]) => share >= 0 && share <= 1).sort(([a], [b]) => a - b);
  const isLeft = (share, k) => (seen.length > 1 ? k === 0 && share > 0.15 : share > 0.6);
  return el(
    "svg",
    { class: "marks", height: 18 },
    seen.map(([share, text], k) => {
      const [x, left] = [`${100 * share}%`, isLeft(share, k)];
      return [
        label(x, 12, "▲", { anchor: "middle" }),
        el("g", { transform: `translate(${left ? -9 : 9} 0)` }, label(x, 12, text, { anchor: left ? "end" : "start" })),
      ];
    }),
  );
}

/** Run a slider from its first step to its last in four seconds; at once for those who want no motion. */
function play(button, key, max, update) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return update({ [key]: max });
  const began = performance.now();
  const advance = (now) => {
    if (!button.isConnected) return;
    const share = Math.min((now - began) / 4000, 1);
    update({ [key]: Math.max(1, Math.round(share * max)) });
    if (share < 1) requestAnimationFrame(advance);
  };
  requestAnimationFrame(advance);
}

/** One of several options, [value, text] each. */
export function choice({ key, name, options }, state, update, group) {
  return el(
    "fieldset",
    { class: `control choice scene-${key}`, key },
    el("legend", null, typeset(name)),
    el(
      "div",
      null,
      options.map(([value, text]) =>
        el(
          "label",
          null,
          el("input", {
            type: "radio",
            name: `${group}-${key}`,
            value,
            checked: state[key] === value,
            onchange: () => update({ [key]: value }),
          }),
          el("span", null, typeset(text)),
        ),
      ),
    ),
  );
}

/** A yes or no. */
export function toggle({ key, name }, state, update) {
  return el(
    "label",
    { class: `control toggle scene-${key}`, key },
    el("input", {
      type: "checkbox",
      name: key,
      checked: state[key],
      onchange: (e) => update({ [key]: e.target.checked }),
    }),
    el("span", null, typeset(name)),
  );
}

/** Buttons that set several numbers at once: [text, changes] each. */
export function presets({ name, options }, state, update) {
  return el(
    "div",
    { class: "control presets", role: "group", "aria-label": name },
    el("span", null, name),
    el(
      "div",
      null,
      options.map(([text, changes, on]) =>
        el(
          "button",
          { type: "button", "aria-pressed": on === undefined ? null : String(on), onclick: () => update(changes) },
          typeset(text),
        ),
      ),
    ),
  );
}

/** A word that explains itself when it is pressed, beside it and until one looks elsewhere. */
export function term(id, word, meaning) {
  const onblur = ({ currentTarget, relatedTarget }) => {
    const own = currentTarget.parentNode;
    if (!own.contains(relatedTarget)) hide(own.lastChild);
  };
  const onbeforetoggle = (e) => e.newState === "open" && anchor(e.target);
  return el(
    "span",
    { class: "term" },
    el("button", { type: "button", popovertarget: id, onblur }, word),
    el("span", { id, popover: "auto", class: "meaning", tabindex: -1, onblur, onbeforetoggle }, typeset(meaning)),
  );
}

function hide(meaning) {
  if (meaning.matches(":popover-open")) meaning.hidePopover();
}

/** Put a meaning below its button, or above it where there is no room, until the button moves. */
function anchor(meaning) {
  const button = meaning.previousSibling;
  const { left, top, bottom } = button.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const below = clientHeight - bottom > Math.min(ROOM_BELOW_PIXELS, top);
  const width = Math.min(parseFloat(getComputedStyle(meaning).maxWidth), clientWidth);
  Object.assign(meaning.style, {
    left: `${clamp(left, EDGE_PIXELS, Math.max(EDGE_PIXELS, clientWidth - width - EDGE_PIXELS))}px`,
    top: below ? `${bottom + 4}px` : "auto",
    bottom: below ? "auto" : `${clientHeight - top + 4}px`,
  });
  const listening = new AbortController();
  const { signal } = listening;
  const follow = () => {
    if (Math.abs(button.getBoundingClientRect().top - top) > 1) hide(meaning);
  };
  document.addEventListener("scroll", follow, { capture: true, passive: true, signal });
  window.addEventListener("resize", () => hide(meaning), { signal });
  meaning.addEventListener("toggle", (e) => e.newState === "closed" && listening.abort(), { signal });
}

/** The control that a scene asks for. */
export function control(wanted, state, update, group) {
  return { slider, choice, toggle, presets }[wanted.kind](wanted, state, update, group);
}
