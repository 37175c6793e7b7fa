"""Heads whose queries, keys or values are any smooth function of what linear maps put out.

What is not of this attention alone is no parameter of it: keys and values that an earlier layer uses too, or that a
convolution mixes, are given numbers, and the blocks of queries and of the output projection are found beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.base.operands import Operand, plain, sites_before
from hessianlens.network.base.uses import Kind
from hessianlens.network.routes.last_attention.output_map import OutputProjection
from hessianlens.network.routes.last_attention.site import AttentionSite, HeadProjection
from hessianlens.network.routes.last_attention.smooth import (
    SmoothOperand,
    SmoothSource,
    constant_operand,
    depends_on,
    smooth_operand,
)
from hessianlens.network.routes.last_attention.smooth_attention import smooth_heads
from hessianlens.network.routes.last_attention.surroundings import ROLES, AttentionByHead, AttentionSurroundings

Operands = dict[str, SmoothOperand | Operand]


def smooth_site(attention: AttentionByHead) -> AttentionSite | Refusal:
    """The site where queries, keys or values are any smooth function of what their maps put out."""
    around, taken, output = attention.around, attention.operands, attention.output
    found = _operands(around, taken)
    if isinstance(found, Refusal):
        return found
    out = around.output_map(output)
    if isinstance(out, Refusal):
        return out
    operands = _without_shared(around, taken, found, out)
    if isinstance(operands, Refusal):
        return operands
    operands, out = _with_shared_pieces(around, taken, operands, out)
    sources = _sources(operands)
    projections, tokens = dict[str, HeadProjection](), dict[str, Tensor]()
    for name, source in sources.items():
        use = around.weight(source.site)
        assert use is not None
        projections[name] = HeadProjection(use, around.shift(source.site), source.features.cpu(), source.heads)
        tokens[name] = around.tokens(use, source.grouping)
    lengths = {"q": set[int](), "kv": set[int]()}
    for name, entering in tokens.items():
        lengths["q" if name[0] == "q" else "kv"].add(entering.shape[1])
    if any(len(own) > 1 for own in lengths.values()):
        return Refusal("its queries, or its keys and values, are made of different positions")
    gates = around.gates(out, projections, tokens["q"], output)
    if isinstance(gates, Refusal):
        return gates
    smooth = {name: operand for name, operand in operands.items() if isinstance(operand, SmoothOperand)}
    layer, X = smooth_heads(
        smooth,
        attention.weights(projections, out),
        attention.biases(projections, gates),
        tokens,
        attention.heads(projections),
        attention.options(smooth["q"].rows.shape[3]),
    )
    return around.site(layer, X, projections, out, gates, output)


def _sources(operands: Operands) -> dict[str, SmoothSource | Operand]:
    """All maps by name: q, k, v, and further ones as q2."""
    found: dict[str, SmoothSource | Operand] = {}
    for name, operand in operands.items():
        own: Sequence[SmoothSource | Operand] = (operand,) if isinstance(operand, Operand) else operand.sources
        found |= {f"{name}{k + 1 if k else ''}": source for k, source in enumerate(own)}
    return found


def _operands(around: AttentionSurroundings, taken: Mapping[str, Tensor]) -> Operands | Refusal:
    """Queries, keys and values; a refusal where the queries are no smooth function of what maps put out."""
    found: Operands = {}
    for name in "qkv":
        operand = (_plain_values(around, taken[name]) if name == "v" else None) or _smooth(around, taken[name])
        if isinstance(operand, Refusal):
            if name == "q":
                return Refusal(f"{ROLES[name]} {operand}")
            operand = constant_operand(taken[name])
        found[name] = operand
    return found


def _without_shared(
    around: AttentionSurroundings, taken: Mapping[str, Tensor], given: Operands, out: OutputProjection
) -> Operands | Refusal:
    """Keys and values that go elsewhere too are numbers; a refusal where the queries do."""
    elsewhere, found = around.used_elsewhere(list(_sources(given).values()), out.use), dict(given)
    for name in "qkv":
        sites = {source.site for source in _sources({name: given[name]}).values()}
        if sites & elsewhere:
            if name == "q":
                return Refusal("its queries are used elsewhere too")
            found[name] = constant_operand(taken[name])
    own = list(_sources(found).values())
    for name in "kv":
        operand = found[name]
        constant = isinstance(operand, SmoothOperand) and not operand.sources
        if constant and depends_on(taken[name], own, around.hooks.leaves):
            return Refusal(f"{ROLES[name]} are changed by its queries")
    return found


def _plain_values(around: AttentionSurroundings, taken: Tensor) -> Operand | None:
    """Values that are tokens times a matrix; None where they are more than that."""
    operand = around.operand(taken)
    if isinstance(operand, Refusal):
        return None
    value = plain(operand.maps)
    if value is None or float(value.cos[0, 0]) != 1:
        return None
    return replace(operand, features=operand.features[:, value.order])


def _smooth(around: AttentionSurroundings, taken: Tensor) -> SmoothOperand | Refusal:
    operand = smooth_operand(taken, around.hooks.leaves, _entering(around))
    if isinstance(operand, Refusal):
        return operand
    strange = [source.site for source in operand.sources if around.weight(source.site) is None]
    return around.other_source(taken, strange[0]) if strange else operand


def _entering(around: AttentionSurroundings) -> dict[int, Tensor]:
    """What maps are multiplied with that act on what others put out, on their graph, by site."""
    uses = [use for use in around.hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)]
    return {use.site: use.inputs for use in uses if use.site in around.linked and use.inputs is not None}


def _with_shared_pieces(
    around: AttentionSurroundings, taken: Mapping[str, Tensor], operands: Operands, out: OutputProjection
) -> tuple[Operands, OutputProjection]:
    """Where queries, keys, values or gates take the same outputs of a map, they take one piece of it: all of these."""
    gates = () if out.between is None else out.between.sources
    by_site: dict[int, list[SmoothSource | Operand]] = {}
    for source in (*_sources(operands).values(), *gates):
        by_site.setdefault(source.site, []).append(source)
    shared = {site: _pieces(own) for site, own in by_site.items() if _overlap(own)}
    if not shared:
        return operands, out
    found: Operands = {}
    for name, operand in operands.items():
        if isinstance(operand, Operand) and operand.site in shared:
            smooth = _smooth(around, taken[name])
            assert isinstance(smooth, SmoothOperand)
            operand = smooth
        found[name] = operand
        if isinstance(operand, SmoothOperand):
            heads = operand.rows.shape[1]
            found[name] = replace(operand, sources=tuple(_whole(own, shared, heads) for own in operand.sources))
    if out.between is not None:
        sources = tuple(_whole(own, shared, 1) for own in gates)
        out = replace(out, between=replace(out.between, sources=sources))
    return found, out


def _pieces(sources: list[SmoothSource | Operand]) -> list[set[int]]:
    """Features of a map in as many sets as there are, so that no source takes some of two."""
    found: list[set[int]] = []
    for source in sources:
        own = set(source.features.flatten().tolist())
        for other in [each for each in found if each & own]:
            found.remove(other)
            own |= other
        found.append(own)
    return found


def _overlap(sources: list[SmoothSource | Operand]) -> bool:
    """Whether two of them take the same outputs, in other pieces."""
    for k, first in enumerate(sources):
        for second in sources[k + 1 :]:
            alike = first.features.shape == second.features.shape and torch.equal(first.features, second.features)
            if not alike and set(first.features.flatten().tolist()) & set(second.features.flatten().tolist()):
                return True
    return False


def _whole(source: SmoothSource, shared: Mapping[int, list[set[int]]], heads: int) -> SmoothSource:
    own = set(source.features.flatten().tolist())
    pieces = [piece for piece in shared.get(source.site, ()) if piece & own]
    if not pieces:
        return source
    return replace(source, features=torch.tensor([sorted(pieces[0])], device="cpu"), heads=(0,) * heads)


def linked_sites(around: AttentionSurroundings, taken: Mapping[str, Tensor] | Refusal) -> set[int] | Refusal:
    """Maps of queries, keys or values that act on what other maps put out for them alone; a refusal if there are none.

    Args:
        around: The attention and the maps around it, every map cut off from those in front of it.
        taken: Queries, keys and values of all heads.
    """
    if isinstance(taken, Refusal):
        return taken
    leaves = around.hooks.leaves
    uses = {use.site: use for use in around.hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)}
    own = {site for name in "qkv" for site in sites_before([taken[name]], leaves)} & set(uses)
    ends = [use.inputs for site, use in uses.items() if site not in own and use.inputs is not None]
    ends += [around.call.scores, *(tensor for call in around.others for tensor in call)]
    elsewhere = sites_before(ends, leaves)
    found = set[int]()
    for site in own:
        inputs = uses[site].inputs
        inner = set() if inputs is None else sites_before([inputs], leaves)
        if inner and not inner & elsewhere and inner <= set(uses):
            found.add(site)
    return found or Refusal("no map of it acts on what another one puts out for it alone")
