"""Second derivatives without a graph: a function is written down once, as steps whose derivatives are known.

`recording` watches a function run, `lowering` makes steps of its calls, `tape` runs these forwards with tangents and
backwards with cotangents, and `taped_linearisation` puts a network and its loss together. Steps come in few kinds:
`rearranging` (linear), `products`, `elementwise`, `rows` (softmax and norms), and `single_operation`, with derivatives
in closed form or by autograd; `step` says what every one of them can do.
"""

from hessianlens.curvature.tape.recording import Unrecordable
from hessianlens.curvature.tape.tape import Tape
from hessianlens.curvature.tape.taped_linearisation import TapedLinearisation

__all__ = ["Tape", "TapedLinearisation", "Unrecordable"]
