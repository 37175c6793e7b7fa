/** The scene of a layer in a notebook: what the kernel gives, and questions to it where the layer is large. */

import { layerExample } from "./layer.js";
import { mount } from "./mount.js";

/** The widget, as anywidget wants it: {render}. */
export const notebook = {
  render({ model, el }) {
    const given = model.get("given");
    const example = layerExample(given, given.kernel ? kernel(model) : null);
    const scene = mount(el, { scene: "layer", example, address: false });
    example.redraw = () => scene.set({});
    return () => scene.remove();
  },
};

/** Questions to Python: one at a time, the latest next; one that is overtaken is answered by undefined. */
function kernel(model) {
  let [id, running, waiting] = [0, null, null];
  const send = () => {
    [running, waiting] = [waiting, null];
    if (!running) return;
    model.set("question", { ...running.state, id: (id += 1) });
    model.save_changes();
  };
  model.on("change:answer", () => {
    const answer = model.get("answer");
    if (!running || answer.id !== id) return;
    running.resolve(waiting ? undefined : answer);
    send();
  });
  return (state) => new Promise((resolve) => {
    waiting?.resolve(undefined);
    waiting = { state, resolve };
    if (!running) send();
  });
}
