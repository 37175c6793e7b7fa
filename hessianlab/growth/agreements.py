"""How figures of published size agree with the published means, recorded beside the code for the default report.

The published means themselves are the authors' (see `hessianlab.growth.reference`) and are not shipped; what is
recorded are quotients of ours and theirs. ``hessianlens reproduce fig8 --preset paper --record`` writes an entry.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hessianlab.growth.comparison import SeriesComparison, share_within
from hessianlab.results import Result, round_to_stored
from hessianlens.errors import InputError, expect

RECORD = Path(__file__).parent / "agreements.json"


@dataclass(frozen=True)
class FigureAgreement:
    """One figure against its published means.

    Attributes:
        experiment: Name of the figure.
        created: When it was measured.
        commit: By which code.
        seconds: Processor time of the run.
        series: Curves that were compared, but for those that are exactly zero in both.
        points: Their sound points.
        left_out: Published points that are rounding noise or not finite.
        ratio: Ours over theirs: geometric mean over the series, weighted by the inverse of their errors.
        ratio_error: Its standard error; series share their weights, so that it is the weighted mean of theirs.
        within_2: Share of points within two standard errors.
        within_3: Within three.
    """

    experiment: str
    created: str
    commit: str | None
    seconds: float
    series: int
    points: int
    left_out: int
    ratio: float
    ratio_error: float
    within_2: float
    within_3: float

    @property
    def number(self) -> str:
        """Of the figure."""
        return self.experiment.removeprefix("fig")

    def ratio_in_words(self) -> str:
        """With its standard error."""
        return f"{self.ratio:.3f} \N{PLUS-MINUS SIGN} {self.ratio_error:.3f}"


def agreement_of(result: Result, compared: Sequence[SeriesComparison]) -> FigureAgreement:
    """The agreement of one run; `InputError` if no series could be compared."""
    kept = [one for one in compared if one.sound and one.ratio_error > 0]
    expect(
        len(kept) > 0,
        f"record: nothing of {result.experiment} could be compared with published means; run --preset paper, and name "
        "the file of published means with --reference.",
    )
    weights = [1 / one.ratio_error for one in kept]
    total = sum(weights)
    ratio = math.exp(sum(w * math.log(one.ratio) for w, one in zip(weights, kept, strict=True)) / total)
    error = ratio * len(kept) / total
    return FigureAgreement(
        experiment=result.experiment,
        created=result.provenance.created,
        commit=result.provenance.commit,
        seconds=round(result.seconds),
        series=len(kept),
        points=sum(len(one.sound) for one in kept),
        left_out=sum(one.left_out for one in kept),
        ratio=round_to_stored(ratio),
        ratio_error=round_to_stored(error),
        within_2=round_to_stored(share_within(kept, 2)),
        within_3=round_to_stored(share_within(kept, 3)),
    )


def read_agreements(path: Path = RECORD) -> list[FigureAgreement]:
    """All that are recorded, by name; none before the first."""
    if not path.exists():
        return []
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: expected JSON, got an error ({error}); record the figures anew.") from error
    return [FigureAgreement(**kept[name]) for name in sorted(kept)]


def write_agreement(found: FigureAgreement, path: Path = RECORD) -> Path:
    """Record one figure; others stay as they are."""
    kept = {one.experiment: asdict(one) for one in (*read_agreements(path), found)}
    try:
        path.write_text(json.dumps({name: kept[name] for name in sorted(kept)}, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); record from a checkout you own.") from error
    return path
