// How the site's search ranks pages. Pages that answer questions come before scripts, these before the reference and
// before pages that name everything, such as the ledger of claims. The numbers below `score` are Sphinx's own.
var Scorer = {
  score: ([page, title, anchor, description, score]) => {
    const weights = [
      ["how-to/index", 0.3],
      ["how-to/models", 3],
      ["how-to/own-", 5],
      ["how-to/heads", 5],
      ["how-to/", 4],
      ["start/", 4],
      ["explanation/exactness", 5],
      ["explanation/", 3],
      ["reference/families", 5],
      ["reference/names-you-may-know", 2],
      ["gallery/plot_", 1.5],
      ["laboratory/generated/ledger", 0.2],
      ["laboratory/generated/benchmarks", 5],
      ["laboratory/", 1],
      ["reference/generated/commands", 0.5],
      ["reference/", 0.4],
      ["contributing/", 0.4],
    ];
    const found = weights.find(([start]) => page.startsWith(start));
    return score * (found ? found[1] : 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
