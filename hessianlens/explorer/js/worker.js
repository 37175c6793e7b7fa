/**
 * Large layers are computed beside the page, in a Web Worker made from a blob of the numerical part. Only the latest
 * request of every topic counts: a request that is overtaken while it waits is never computed, and one that is overtaken
 * while it runs is answered by `undefined`.
 */
import { numbers } from "./numbers.js";

/** Weights from which on a Hessian is left to the worker. */
export const WORKER_MIN_WEIGHTS = 200;

/** What runs in the worker: the numerical part, and an answer to {id, task, given}. */
function workerSource() {
  const answer = `({ data: { id, task, given } }) => {
    try { postMessage({ id, found: tasks[task](...given) }); }
    catch (error) { postMessage({ id, error: error.message }); }
  }`;
  return `const tasks = (${numbers})(); onmessage = ${answer};`;
}

export class Background {
  #worker = null;
  #next = 0;
  #running = null;
  #waiting = new Map();
  #latest = new Map();

  /**
   * The answer of a function of the numerical part, by name: `ask("spectrum", "hessian", layer, X, loss)`.
   *
   * @param topic requests of one topic overtake each other.
   * @returns a promise of what the function returns, or of undefined once a later request has overtaken this one.
   */
  ask(topic, task, ...given) {
    this.#waiting.get(topic)?.resolve(undefined);
    return new Promise((resolve, reject) => {
      const id = this.#next++;
      this.#latest.set(topic, id);
      this.#waiting.set(topic, { id, topic, task, given, resolve, reject });
      this.#send();
    });
  }

  /** End the worker; requests under way are answered by undefined. */
  close() {
    for (const request of [this.#running, ...this.#waiting.values()]) request?.resolve(undefined);
    this.#worker?.terminate();
    [this.#worker, this.#running] = [null, null];
    this.#waiting.clear();
  }

  #send() {
    const [request] = this.#waiting.values();
    if (this.#running || !request) return;
    this.#waiting.delete(request.topic);
    this.#running = request;
    this.#worker ??= this.#start();
    this.#worker.postMessage({ id: request.id, task: request.task, given: request.given });
  }

  #start() {
    const url = URL.createObjectURL(new Blob([workerSource()], { type: "text/javascript" }));
    const worker = new Worker(url);
    URL.revokeObjectURL(url);
    worker.onmessage = ({ data }) => this.#finish(data.error ? new Error(data.error) : null, data.found);
    worker.onerror = (event) => this.#finish(new Error(event.message || "worker: it could not be started."));
    return worker;
  }

  #finish(error, found) {
    const { id, topic, resolve, reject } = this.#running;
    this.#running = null;
    if (id !== this.#latest.get(topic)) resolve(undefined);
    else if (error) reject(error);
    else resolve(found);
    this.#send();
  }
}

const shared = new Background();

/**
 * A function of the numerical part: at once for small layers, in the worker above WORKER_MIN_WEIGHTS weights.
 *
 * @returns a promise, of undefined once a later request of this topic has overtaken this one.
 */
export async function compute(topic, weights, task, ...given) {
  return weights <= WORKER_MIN_WEIGHTS ? numbers()[task](...given) : shared.ask(topic, task, ...given);
}
