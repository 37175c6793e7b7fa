"""The last attention layer of a network in closed form: what lies behind it, its blocks and their norms."""

from hessianlens.network.routes.last_attention.exact import (
    ClosedFormCost,
    ExactAttention,
    closed_form_cost,
    exact_attention,
)
from hessianlens.network.routes.last_attention.site import CLOSED_FORM
from hessianlens.network.routes.last_attention.sketched import SketchedAttention

__all__ = [
    "CLOSED_FORM",
    "ClosedFormCost",
    "ExactAttention",
    "SketchedAttention",
    "closed_form_cost",
    "exact_attention",
]
