/** Where a scene stands: an element, its state, and who is told when a reader has moved something. */

/** Scenes by name: each a function (element, {state, onState}) that draws into the element. */
export const scenes = new Map();

/** Draw a scene into an element. */
export function mount(element, { scene, state = {}, onState = () => {} }) {
  if (!scenes.has(scene)) throw new Error(`scene: got ${scene}; expected one of ${[...scenes.keys()].join(", ")}.`);
  return scenes.get(scene)(element, { state, onState });
}

/** Draw the scene of every `<div data-scene="NAME">` under a root. */
export function mountAll(root = document) {
  for (const element of root.querySelectorAll("[data-scene]")) mount(element, { scene: element.dataset.scene });
}
