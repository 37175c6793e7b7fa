"""Pages of the laboratory: the claims with their recorded verdicts, the figures and the studies of the registry."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import hessianlab.claims
from hessianlab.claims.catalogue import all_claims
from hessianlab.claims.definition import DOCUMENTS, Claim
from hessianlab.experiments.registry import EXPERIMENTS, STUDIES, STUDY

RECORDED = Path(hessianlab.claims.__file__).with_name("recorded.json")


def write(folder: Path) -> None:
    """Write `ledger.md` and `experiments.md`."""
    (folder / "ledger.md").write_text(_ledger(), encoding="utf-8")
    (folder / "experiments.md").write_text(_experiments(), encoding="utf-8")


def _ledger() -> str:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    claims = all_claims()
    verdicts = {claim.id: _verdict(claim, recorded) for claim in claims}
    counts = ", ".join(f"{number} {verdict}" for verdict, number in Counter(verdicts.values()).most_common())
    lines = [
        "# All claims and their verdicts",
        "",
        f"{len(claims)} claims: {counts}. Verdicts and figures are those that the last run of every test recorded;",
        "`hessianlens claims ID` computes one anew and explains it. [The claims ledger](../claims) says how a verdict",
        "comes about.",
        "",
    ]
    for letter, document in DOCUMENTS.items():
        lines += [f"## {letter}: {_escaped(document)}", ""]
        lines += ["| claim | statement | verdict |", "| --- | --- | --- |"]
        for claim in claims:
            if claim.document == letter:
                note = claim.condition or claim.correction
                more = f": {_escaped(note)}" if note else ""
                lines.append(f"| {claim.id} | {_escaped(claim.statement)} | **{verdicts[claim.id]}**{more} |")
        lines.append("")
    return "\n".join(lines)


def _verdict(claim: Claim, recorded: dict[str, dict[str, str]]) -> str:
    if claim.unmeasured is not None:
        return str(claim.unmeasured)
    return recorded[claim.id]["verdict"] if claim.id in recorded else "not recorded"


def _experiments() -> str:
    lines = [
        "# All experiments",
        "",
        "What `hessianlens reproduce` and `hessianlens study` run. The presets are `quick`, for a laptop, and `paper`, the",
        "published size; [Figures](../figures) and [Studies](../studies) say how to read them.",
        "",
        "| name | question | run it |",
        "| --- | --- | --- |",
    ]
    for command, registry in (("reproduce", EXPERIMENTS), ("study", STUDIES)):
        for name, experiment in registry.items():
            run = f"hessianlens {command} {name.removeprefix(STUDY)}"
            lines.append(f"| `{name.removeprefix(STUDY)}` | {_escaped(experiment.question)} | `{run}` |")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return re.sub(r"([|<*_$`\[\]])", r"\\\1", " ".join(text.split()))
