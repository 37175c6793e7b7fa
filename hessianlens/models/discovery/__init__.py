"""Find the parts of a model and give them the same names in every architecture.

===========  ================================================================================================
file         its one job
===========  ================================================================================================
name_rules   rules and the built-in table of them: the names of the architectures; `register_rule`
paths        parameter names taken apart: wrappers, what adapters such as LoRA add, leaves, numbers
block_names  every parameter against the rules; layers counted, norms numbered, shared tensors and names
storage      axes of outputs, inputs and heads; parameters that hold several projections
heads        number of heads; a block split by head
pieces       the blocks of every parameter, each tensor cut once
result       `Discovery`, and the lines that say what was decided
find_blocks  `discover`
===========  ================================================================================================
"""

from hessianlens.models.discovery.find_blocks import discover
from hessianlens.models.discovery.heads import HeadLayout
from hessianlens.models.discovery.name_rules import Rule, register_rule, unregister_rule
from hessianlens.models.discovery.result import Discovery

__all__ = ["Discovery", "HeadLayout", "Rule", "discover", "register_rule", "unregister_rule"]
