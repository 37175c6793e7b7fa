"""Rules: which module path plays which role, and how new ones are added."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hessianlens.errors import InputError, check_choice, expect

SCOPES = ("layer", "stack", "model")
PACKINGS = ("joined", "grouped")

_TOKENS = {
    "attn": r"(?:layer\.\d+\.)?(?P<around>\w*[Aa](?:ttn|ttention)\w*|mha)(?:\.(?:self|\w*[Aa](?:ttn|ttention)\w*))?\.",
    "mlp": r"(?:layer\.\d+\.)?(?:mlp|mlp_block|ffn|ff|feed_?forward|DenseReluDense)\.",
}
_CROSS = re.compile(r"cross|encoder_attn|multihead_attn|enc_?dec", re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    r"""One line of the table: parameters whose path matches `pattern` hold the blocks `roles`.

    Attributes:
        pattern: Regular expression for the path without its leaf: ``weight`` and ``bias`` are taken off, and ``b_Q``
            and ``in_proj_bias`` are read as the biases of ``W_Q`` and ``in_proj_weight``. ``<attn>`` (once at most)
            stands for any module named like an attention with the dot behind it, ``<mlp>`` for an MLP; ``<attn?>`` and
            ``<mlp?>`` may be missing. A cross-attention turns the role ``attn.q`` into ``cross.q``.
        roles: Names behind ``layer0.``; several of them if the parameter packs several. ``norm@20`` is a norm, and
            the norms of a stack are numbered by the order of the numbers behind ``@``.
        scope: Where the pattern starts: "layer" behind the number of a layer; "stack" next to the list of layers or
            above it; "model" anywhere outside the layers.
        packing: How several roles lie along the output axis: "joined" one whole after the other, "grouped" by head (the
            queries of a group of heads, their key, their value, then the next group).
        owner: Regular expression for the class name of the module around; anything if empty.
        shards: In how many equal stretches, each with its share of every role, joined roles lie; CodeGen has 4.

    >>> Rule(r"<attn>q_proj", ("attn.q",)).roles_of("self_attn.q_proj", "LlamaAttention")
    ('attn.q',)
    >>> Rule(r"<attn>q_proj", ("attn.q",)).roles_of("encoder_attn.q_proj", "BartAttention")
    ('cross.q',)
    """

    pattern: str
    roles: tuple[str, ...]
    scope: str = "layer"
    packing: str = "joined"
    owner: str = ""
    shards: int = 1

    def __post_init__(self) -> None:
        """The pattern compiles, scope and packing are known."""
        check_choice("scope", self.scope, SCOPES)
        check_choice("packing", self.packing, PACKINGS)
        expect(bool(self.roles) and all(self.roles), f"roles: got {self.roles!r}, expected at least one name.")
        counted = isinstance(self.shards, int) and self.shards > 0
        expect(counted, f"shards: got {self.shards!r}, expected a number of stretches, 1 or more.")
        compiled(self.pattern)

    def roles_of(self, path: str, owner: str) -> tuple[str, ...]:
        """The roles of a path, or nothing if the rule does not apply."""
        found = compiled(self.pattern).fullmatch(path)
        if found is None or (self.owner and re.fullmatch(self.owner, owner) is None):
            return ()
        attention = found.groupdict().get("around") or ""
        if _CROSS.search(attention):
            return tuple(re.sub(r"^attn\.", "cross.", role) for role in self.roles)
        return self.roles


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression behind a rule's pattern."""
    full = pattern
    for name, expression in _TOKENS.items():
        full = full.replace(f"<{name}?>", f"(?:{expression})?").replace(f"<{name}>", expression)
    try:
        return re.compile(full)
    except re.error as error:
        raise InputError(f"pattern: {pattern!r} is not a regular expression ({error}).") from error


_REGISTERED: list[Rule] = []


def register_rule(
    pattern: str, *roles: str, scope: str = "layer", packing: str = "joined", owner: str = "", shards: int = 1
) -> Rule:
    r"""Teach `discover` a name it does not know; see `Rule` for the arguments. Later rules go before earlier ones.

    >>> import torch
    >>> from hessianlens.models.discovery import discover
    >>> attention = torch.nn.ModuleDict({"asking": torch.nn.Linear(2, 2), "value": torch.nn.Linear(2, 2)})
    >>> model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.ModuleDict({"attn": attention})])})
    >>> rule = register_rule("<attn>asking", "attn.q")
    >>> list(discover(model).blocks)
    ['layer0.attn.q', 'layer0.attn.q.bias', 'layer0.attn.v', 'layer0.attn.v.bias']
    >>> unregister_rule(rule)
    """
    rule = Rule(pattern, roles, scope, packing, owner, shards)
    _REGISTERED.insert(0, rule)
    return rule


def unregister_rule(rule: Rule) -> None:
    """Take back what `register_rule` returned."""
    expect(rule in _REGISTERED, f"rule: {rule.pattern!r} is not registered.")
    _REGISTERED.remove(rule)


def registered() -> tuple[Rule, ...]:
    """Rules added by `register_rule`, the latest first."""
    return tuple(_REGISTERED)
