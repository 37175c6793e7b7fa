"""The page of a watched run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from hessianlens.display import Document, Figure, Line, Section, SideBySide, Table, Timeline, short
from hessianlens.monitor.alarms import GROWTH
from hessianlens.monitor.records import MODEL, SHARES, Reading
from hessianlens.network.head_health import ALARM_RULES
from hessianlens.sizes import number_of, readable_time
from hessianlens.spectra.inertia_shares import WIDE

if TYPE_CHECKING:
    from hessianlens.monitor.history import History

NAMES = {
    "top": "largest eigenvalue",
    "trace": "trace",
    "norm": "Frobenius norm",
    "negative": "share of negative eigenvalues",
    "zero": "share of eigenvalues within a thousandth of the largest",
    "positive": "share of positive eigenvalues",
    "negative_mass": "share of negative curvature",
    "gradient": "length of the gradient",
    "weight": "length of the weights",
    "probe_loss": "loss on the probe batch",
    "entropy": "entropy of attention, nats",
    "entropy_lowest_head": "entropy of the lowest head, nats",
    "entropy_share": "entropy, share of equal weights'",
    "saturated": "rows with over 99 % on one token",
    "largest_logit": "largest logit of a head",
    "head_entropy": "entropy of a head, nats",
    "head_entropy_share": "entropy of a head, share of equal weights'",
    "sink": "weight on the first token",
    "jacobian": "norm of softmax's Jacobian",
    "spread": "second moment of values, trace",
    "skew": "third moment of values, contracted",
    "sharpness": "sharpness as the optimiser sees it",
    "edge": "edge of stability",
}
"""What quantities are called where they are shown."""
_NOTES = 20
"""Different notes that are shown."""
_SAME_EDGE = 0.02
"""Thresholds that differ by this share are drawn as one line."""
_ALARMS = tuple(f"{rule.kind}: " for rule in (*ALARM_RULES, GROWTH))
_LINES = 6
"""Lines of one picture: as many as colours tell apart."""


def timeline(history: History, quantity: str) -> Timeline:
    """One quantity of everything that has it; of many the six whose last value is largest in size."""
    owners = [owner for owner, quantities in history.names().items() if quantity in quantities]
    line = quantity == "sharpness" and "edge" in history.names().get(MODEL, [])
    if line:  # of one picture with one line: blocks with another line are in the table
        owners = [owner for owner in owners if _edges_agree(history, owner)]
    owners.sort(key=lambda owner: -abs(history[owner, quantity][1][-1].value))
    kept = sorted(owners[:_LINES], key=lambda owner: (owner != MODEL, owner))
    lines = [Line(_owner(owner), *history[owner, quantity]) for owner in kept]
    if line:
        lines.append(Line(NAMES["edge"], *history[MODEL, "edge"], limit=True))
    return Timeline(lines, NAMES.get(quantity, quantity))


def _edges_agree(history: History, owner: str) -> bool:
    own, whole = (history[name, "edge"][1][-1].value for name in (owner, MODEL))
    return abs(own - whole) <= _SAME_EDGE * abs(whole)


def _stability_table(history: History) -> list[Table]:
    """Sharpness and threshold of everything that has both, at the last record, the nearest to its threshold first."""
    owners = [owner for owner, has in history.names().items() if {"sharpness", "edge"} <= set(has)]
    if not [owner for owner in owners if owner != MODEL]:
        return []
    last = {owner: [history[owner, q][1][-1].value for q in ("sharpness", "edge")] for owner in owners}
    shares = {owner: value / edge if edge > 0 else math.inf for owner, (value, edge) in last.items()}
    owners.sort(key=lambda owner: -shares[owner])
    cells = [[_owner(o), *map(short, last[o]), f"{shares[o]:.0%}"] for o in owners[:_NOTES]]
    return [Table(["", NAMES["sharpness"], NAMES["edge"], "share"], cells, "At the last measurement")]


def document(history: History, title: str) -> Document:
    """What happened along the run, in short; then the timelines; then what it cost."""
    if not len(history):
        return Document(title, "Nothing has been measured yet.", [], [])
    drawn = {q for has in history.names().values() for q in has if _tells(history, q)}
    sections = [
        Section(
            heading,
            [
                words,
                SideBySide([Figure(timeline(history, q)) for q in there]),
                *(_stability_table(history) if "sharpness" in there else []),
            ],
        )
        for heading, words, quantities in _SECTIONS
        if (there := [q for q in quantities if q in drawn])
    ]
    first, last = history[0], history[-1]
    lead = (
        f"{len(history)} measurements from step {first.step} to step {last.step}, on a probe batch that stays the same."
    )
    return Document(title, lead, _short(history), [*_alarms(history), *sections, _cost(history), _numbers(history)])


def _alarms(history: History) -> list[Section]:
    """Heads in trouble, one line each."""
    alarms = history.alarms()
    if not alarms:
        return []
    cells = [
        [a.rule.kind, a.head, str(a.since), short(a.value), f"{a.rule.threshold:g}", a.rule.remedy] for a in alarms
    ]
    table = Table(["alarm", "head", "since step", "value", "threshold", "usual remedy"], cells[:_NOTES])
    return [Section("Alarms", [table])]


def _tells(history: History, quantity: str) -> bool:
    """Whether the intervals of a share leave something to be seen: few steps of Lanczos tell few signs."""
    if quantity not in SHARES:
        return True
    owners = [owner for owner, has in history.names().items() if quantity in has]
    readings = [reading for owner in owners for reading in history[owner, quantity][1]]
    if not readings:
        return False
    return median(reading.high - reading.low for reading in readings) <= WIDE


_SECTIONS: Sequence[tuple[str, str, Sequence[str]]] = (
    (
        "The edge of stability",
        "Steps shrink where the sharpness stays below the dashed line: twice over the learning rate for plain gradient "
        "descent, with momentum and Adam's scaling taken into account for other optimisers. For sign descent, Lion and "
        "Muon the line is twice the gradient's dual norm over the learning rate. Sharpness tends to "
        "rise to the line and to stay there.",
        ("sharpness",),
    ),
    (
        "Curvature",
        "Bands are 95 % intervals; those of largest eigenvalues reach to the residual, within which there is an "
        "eigenvalue, those of shares allow for the finite number of Lanczos steps. Probe vectors are the same at every "
        "step: a curve moves only because the model does.",
        ("top", "trace", "norm", "negative", "zero", "positive", "negative_mass"),
    ),
    (
        "Loss, gradients and weights",
        "On the probe batch, not on the batches of training.",
        ("probe_loss", "gradient", "weight"),
    ),
    (
        "Attention",
        "The share is 1 for uniform attention and 0 for one-hot rows; a fall towards 0 is entropy collapse.",
        ("entropy_share", "entropy_lowest_head", "saturated"),
    ),
    (
        "Attention heads",
        "The six heads with the largest last value. Logits that grow without end, and a Jacobian of softmax that goes "
        "to zero with them, come before a training diverges or stops learning.",
        ("largest_logit", "jacobian", "sink"),
    ),
)


def _short(history: History) -> list[tuple[str, str]]:
    alarms = history.alarms()
    found: list[tuple[str, str]] = []
    if alarms:
        earliest = min(alarms, key=lambda alarm: alarm.since or 0)
        heads = len({alarm.head for alarm in alarms})
        text = f"{heads} in trouble; the first is {earliest.head}: {earliest.rule.kind} since step {earliest.since}"
        found.append(("attention heads", text))
    elif any("largest_logit" in has for has in history.names().values()):
        found.append(("attention heads", "none in trouble"))
    for quantity in ("probe_loss", "top", "negative_mass", "gradient"):
        if quantity in history.names().get(MODEL, []):
            _, readings = history[quantity]
            first, last = (_reading_text(quantity, reading) for reading in (readings[0], readings[-1]))
            found.append((NAMES[quantity], f"{first} at first, {last} at last"))
    if "sharpness" in history.names().get(MODEL, []):
        share = history["sharpness"][1][-1].value / history["edge"][1][-1].value
        state = "beyond the edge" if share > 1 else "at the edge" if share > 0.9 else "below the edge"
        found.append(("stability", f"{state}: {share:.0%} of the optimiser's stability threshold"))
    shares = {
        owner: history[owner, "entropy_share"][1][-1].value
        for owner, quantities in history.names().items()
        if "entropy_share" in quantities
    }
    if shares:
        lowest = min(shares, key=lambda owner: shares[owner])
        found.append(("attention", f"narrowest in {lowest}: {shares[lowest]:.0%} of the entropy of equal weights"))
    return found


def _reading_text(quantity: str, reading: Reading) -> str:
    """A number; of a share the ends of its interval."""
    if quantity not in SHARES or reading.low == reading.high:
        return short(reading.value)
    return f"{100 * reading.low:.3g} to {100 * reading.high:.3g} %"


def _cost(history: History) -> Section:
    cost, trained = sum(record.cost for record in history), history[-1].trained
    share = f", {cost / trained:.1%} of the time of training" if trained > 0 else ""
    products = sum(record.products for record in history)
    words = f"{number_of(products, 'HVP')} in {readable_time(cost)}{share}."
    vague = [NAMES[q] for q in SHARES if any(q in has for has in history.names().values()) and not _tells(history, q)]
    unseen = (
        f"Not drawn: {', '.join(vague)}. With so few Lanczos steps and probes their intervals are wider than {WIDE:.0%}"
        "; more of both (steps=40, probes=10) narrow them."
    )
    return Section("Cost and limitations", [words, *([unseen] if vague else []), *_notes(history)])


def _notes(history: History) -> list[str]:
    """Every note once, with the steps that it was made at."""
    steps: dict[str, list[int]] = {}
    for record in history:
        for note in record.notes:
            if note.startswith(_ALARMS):  # they have a section of their own
                continue
            steps.setdefault(note, []).append(record.step)
    found = []
    for note, at in steps.items():
        where = f"Step {at[0]}" if len(at) == 1 else f"{len(at)} times from step {at[0]} to step {at[-1]}"
        found.append(f"{where}: {note}")
    return found[:_NOTES]


def _numbers(history: History) -> Section:
    rows = history.rows()
    names = dict.fromkeys(key for row in rows for key in row)
    vague = {f"{q}{end}" for q in SHARES for end in ("", "_low", "_high") if not _tells(history, q)}
    columns = [name for name in names if "/" not in name and name not in vague]
    cells = [[short(row.get(name)) if name != "step" else str(row[name]) for name in columns] for row in rows]
    return Section("Whole model", [Table(columns, cells, folded="Show the table")])


def _owner(name: str) -> str:
    return "the whole model" if name == MODEL else name
