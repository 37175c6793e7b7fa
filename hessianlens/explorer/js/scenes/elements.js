/** Elements described as plain objects and patched into the page, so that what has the focus stays there. */

const SVG = "http://www.w3.org/2000/svg";

/** A description of an element. Attributes that begin with "on" are handlers; those that are false are left out. */
export function el(tag, attributes, ...children) {
  return {
    tag,
    attributes: attributes ?? {},
    children: children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false),
  };
}

/** Make the children of `parent` those described; nodes of the same kind in the same place are kept. */
export function patch(parent, wanted) {
  wanted.forEach((child, k) => patchOne(parent, parent.childNodes[k], child));
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function patchOne(parent, node, child) {
  if (typeof child !== "object") {
    if (node?.nodeType === 3) node.data === String(child) || (node.data = child);
    else put(parent, node, document.createTextNode(child));
    return;
  }
  const key = child.attributes.key;
  if (!node || node.localName !== child.tag || node.patchKey !== key)
    node = put(parent, node, created(parent, child.tag));
  node.patchKey = key;
  setAttributes(node, child.attributes);
  patch(node, child.children);
}

function created(parent, tag) {
  const drawn = tag === "svg" || parent.namespaceURI === SVG;
  return drawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
}

function put(parent, old, node) {
  if (old) old.replaceWith(node);
  else parent.append(node);
  return node;
}

function setAttributes(node, wanted) {
  const before = node.patched ?? {};
  for (const name of Object.keys(before)) if (!(name in wanted)) setAttribute(node, name, null);
  for (const [name, value] of Object.entries(wanted)) if (before[name] !== value) setAttribute(node, name, value);
  node.patched = wanted;
  if ("value" in wanted && node.value !== String(wanted.value)) node.value = wanted.value;
}

function setAttribute(node, name, value) {
  if (name === "key") return;
  if (name.startsWith("on")) node[name] = value;
  else if (name === "checked" || name === "hidden") node[name] = Boolean(value);
  else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value);
}

/**
 * Text with sub- and superscripts: `W_Q`, `10^{-3}`; `*x*` is italic and `[x]` marked. As pieces [kind, text].
 */
export function pieces(text) {
  const found = [];
  for (const part of String(text).split(/([_^](?:\{[^}]*\}|[^\s{])|\*[^*]+\*|\[[^\]]+\])/)) {
    const kind = { _: "sub", "^": "sup", "*": "i", "[": "mark" }[part[0]];
    if (!kind || part.length < 2) part && found.push(["", part]);
    else if (kind === "i" || kind === "mark") found.push([kind, part.slice(1, -1)]);
    else found.push([kind, part[1] === "{" ? part.slice(2, -1) : part.slice(1)]);
  }
  return found;
}

/** The same for HTML. */
export function typeset(text) {
  return pieces(text).map(([kind, own]) => (kind ? el(kind, null, own) : own));
}

/** The same read aloud. */
export function spoken(text) {
  return pieces(text)
    .map(([kind, own]) => (kind === "sup" ? ` to the ${own}` : own))
    .join("")
    .replace(/−/g, "minus ");
}

/** A label in a drawing; `anchor` is start, middle or end. */
export function label(x, y, text, { anchor, cls, unit } = {}) {
  let shift = 0;
  const spans = pieces(text).map(([kind, own]) => {
    const wanted = { sub: 4, sup: -6 }[kind] ?? 0;
    const span = el("tspan", { dy: wanted - shift || null, class: kind || null }, own);
    shift = wanted;
    return span;
  });
  return el(
    "text",
    { x, y, "text-anchor": anchor, class: cls },
    spans,
    unit && el("tspan", { dy: -shift, dx: 10, class: "unit" }, unit),
  );
}

/** A number with three digits, as markup: 1.23, 0.0012, 1.2×10^{−7}. */
export function short(value, digits = 3) {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "–" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(digits)))));
  if (power < -3 || power > 5) {
    const own = Number((value / 10 ** power).toPrecision(digits));
    return `${own === 1 ? "" : `${own}×`}10^{${power}}`.replace(/-/g, "−");
  }
  const rounded = Number(value.toPrecision(Math.max(digits, Math.min(power + 1, 6))));
  return (Math.abs(rounded) >= 1e4 ? rounded.toLocaleString("en-US") : String(rounded)).replace("-", "−");
}
