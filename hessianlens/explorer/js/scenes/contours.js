/** Lines of equal height of a function on a square, as segments [x, y, x', y']. */

/** The levels are even steps of the square root of the height, so that a bowl has rings of even width. */
export function contours(f, side, cells, levels = 12) {
  const step = side / cells;
  const height = Array.from({ length: cells + 1 }, (_, i) =>
    Array.from({ length: cells + 1 }, (_, j) => Math.sqrt(f(i * step, j * step))),
  );
  const top = Math.max(...height.flat());
  return Array.from({ length: levels }, (_, k) => ((k + 0.5) / levels) ** 1.5 * top).flatMap((level) =>
    segments(height, level, step),
  );
}

/** Through every cell the line between the two places where its edges have this height. */
function segments(height, level, step) {
  const found = [];
  for (let i = 0; i + 1 < height.length; i++) {
    for (let j = 0; j + 1 < height.length; j++) {
      const corners = [
        [i, j],
        [i + 1, j],
        [i + 1, j + 1],
        [i, j + 1],
      ];
      const crossings = corners.flatMap(([a, b], k) => {
        const [c, d] = corners[(k + 1) % 4];
        const [low, high] = [height[a][b] - level, height[c][d] - level];
        if (low > 0 === high > 0) return [];
        const share = low / (low - high);
        return [[step * (a + share * (c - a)), step * (b + share * (d - b))]];
      });
      for (let k = 0; k + 1 < crossings.length; k += 2) found.push([...crossings[k], ...crossings[k + 1]]);
    }
  }
  return found;
}
