/** Sliders, choices and buttons, as descriptions of elements; every one changes numbers of the state by name. */

import { el, label, short, spoken, typeset } from "./elements.js";

/** A slider of the number `key`; with `log` it moves in powers of ten. */
export function slider({ key, name, min, max, step, log, says = (x) => short(x), marks, plays }, state, update) {
  const [to, from] = log ? [Math.log10, (x) => 10 ** x] : [(x) => x, (x) => x];
  const said = says(state[key]);
  const rounded = (x) => Number(from(Number(x)).toPrecision(4));
  const share = (x) => (to(x) - to(min)) / (to(max) - to(min));
  return el(
    "label",
    { class: `control slider ${key}`, key },
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
    marks &&
      el(
        "svg",
        { class: "marks", width: "100%", height: 18 },
        marks().map(
          ([x, text]) =>
            share(x) >= 0 &&
            share(x) <= 1 &&
            label(`${3 + 94 * share(x)}%`, 12, `▲ ${text}`, { anchor: share(x) > 0.6 ? "end" : "start" }),
        ),
      ),
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
    { class: `control choice ${key}`, key },
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
    { class: `control toggle ${key}`, key },
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

/** A word that explains itself when it is pressed. */
export function term(id, word, meaning) {
  return el(
    "span",
    { class: "term" },
    el("button", { type: "button", popovertarget: id }, word),
    el("span", { id, popover: "auto", class: "meaning" }, typeset(meaning)),
  );
}

/** The control that a scene asks for. */
export function control(wanted, state, update, group) {
  return { slider, choice, toggle, presets }[wanted.kind](wanted, state, update, group);
}
