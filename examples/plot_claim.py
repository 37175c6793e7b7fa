"""
Read a claim, add a claim
=========================

Each statement that articles make about the curvature of attention has a test that computes its verdict. Reading one
takes a command; adding one takes a paragraph of text and one small function.
"""

# %%
# ``hessianlens claims A12`` prints one claim with its method. All recorded verdicts:

import collections
from pathlib import Path

import matplotlib.pyplot as plt

import hessianlab.claims
from hessianlab.claims.catalogue import all_claims
from hessianlab.claims.ledger import read_verdicts

recorded = read_verdicts(Path(hessianlab.claims.__file__).with_name("recorded.json"))
verdicts = {name: entry["verdict"] for name, entry in recorded.items()}
counts = collections.Counter(verdicts.values())
figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
ax.barh(list(counts), list(counts.values()))
ax.set(xlabel="claims")
plt.show()

# %%
claim = next(claim for claim in all_claims() if claim.id == "A12")
print(f"{claim.id}: {claim.statement}")
print("method:", claim.method)
print("verdict:", verdicts[claim.id])

# %%
# A new claim has its words in ``hessianlab/claims/texts/TOPIC.ini``:
#
# .. code-block:: ini
#
#    [C99]
#    source = An example
#    statement = Softmax rows sum to one.
#    method = largest distance of a row's sum from 1; 3 lengths x 100 rows, float64
#
# and its measurement in ``hessianlab/claims/topics/TOPIC.py``. The verdict is never written by hand: it follows from
# the checks.

from hessianlab.claims.definition import claim as registered
from hessianlab.claims.definition import seeds
from hessianlab.claims.finding import Finding, at_most
from hessianlab.claims.samples import normal


@registered("C99")
def sums_to_one() -> Finding:
    rows = [normal(seed, 100, n).softmax(-1) for n in (2, 9, 50) for seed in seeds(3)]
    return Finding(checks=(at_most("largest distance", (float((r.sum(-1) - 1).abs().max()) for r in rows), 1e-14),))


print(sums_to_one().verdict)

# %%
# All verdicts: :doc:`/laboratory/generated/ledger`. Rules of verdicts and recording: :doc:`/laboratory/claims`.
