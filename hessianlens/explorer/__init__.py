"""The exact Hessian of a small attention layer as something to move: interactive scenes, one ES module, four places.

The module has a numerical part, the closed form in JavaScript, and a drawing part, the scenes. It stands in the report,
in the documentation, in a page of its own (`page`, ``hessianlens explore``) and in notebooks (``hl.explore``).
"""

from hessianlens.explorer.module import module_source
from hessianlens.explorer.standalone import SCENES, page
from hessianlens.explorer.widget import explore

__all__ = ["SCENES", "explore", "module_source", "page"]
