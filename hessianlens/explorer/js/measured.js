/** Everything that is shown of a layer of any size, as plain numbers: what a worker, or Python, answers with. */

import { symmetricEigen, plus, scaled } from "./linalg.js";
import { blockNorms, forward, hessian, lossAt, PARTS, withHeads } from "./network.js";

/**
 * Norms of all blocks by part and the eigenvalues of the Hessian, with the tokens times sigma, the scores over a further
 * temperature, and what is wrong, F - Y, times `wrong`: {blocks, norms: {part: [[...]]}, values, loss}.
 */
export function measured(layer, X, targets, { sigma, temperature, wrong }) {
  const moved = withHeads(layer, (head) => ({ ...head, temperature: (head.temperature ?? 1) * temperature }));
  const tokens = scaled(X, sigma);
  const residual = scaled(plus(forward(moved, tokens).F, targets, -1), wrong);
  const H = hessian(moved, tokens, { residual });
  const blocks = H.blocks.map(({ name }) => name);
  const norms = Object.fromEntries(PARTS.map((part) => [part, Object.values(blockNorms(H, part)).map((row) => Object.values(row))]));
  return { blocks, norms, values: Array.from(symmetricEigen(H.full).values), loss: lossAt({ residual }, residual).value };
}
