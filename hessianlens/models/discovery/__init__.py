"""Find the parts of a model and give them the same names in every architecture.

=============  ==============================================================================================
file           its one job
=============  ==============================================================================================
rules          what a rule is; `register_rule`
table          the built-in rules: the names of the architectures
paths          parameter names taken apart: wrappers, leaves, numbers
wrapped        what adapters such as LoRA add to a layer
claims         every parameter against the rules
names          layers counted, norms numbered, stacks told apart
sharing        tensors with several names, names with several tensors
storage        axes of outputs, inputs and heads
heads          number of heads; a block split by head
packed         parameters that hold several projections
pieces         the blocks of one parameter
cutter         the blocks of all of them, each tensor once
layouts        heads of every attention
notes          what was decided, in words
result         `Discovery`
search         `discover`
=============  ==============================================================================================
"""

from hessianlens.models.discovery.heads import HeadLayout
from hessianlens.models.discovery.result import Discovery
from hessianlens.models.discovery.search import discover
from hessianlens.models.discovery.table import Rule, register_rule, unregister_rule

__all__ = ["Discovery", "HeadLayout", "Rule", "discover", "register_rule", "unregister_rule"]
