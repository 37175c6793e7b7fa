"""Every measured claim: the recorded verdict, supported by its own checks, on these draws and on others."""

import re

import pytest

from hessianlab.claims import ledger
from hessianlab.claims.catalogue import all_claims
from hessianlab.claims.finding import Verdict
from tests.hessianlab.claims.verdicts import examine

MEASURED = [claim.id for claim in all_claims() if claim.test is not None]
SLOW = {
    "P30",
    "P33",
    "P35",
    "P51",
    "P58",
    "P60",
    "P74",
    "P78",
    "A5",
    "A10",
    "A13",
    "A18",
    "A19",
    "A23",
    "A28",
    "A29",
    "A30",
    "D6",
    "D10",
    "D11",
    "D12",
    "D13",
    "D14",
}
"""Take seconds each, up to twenty."""

OTHER_SEED = 700


@pytest.fixture(scope="module")
def recorded():
    return {id: kept["verdict"] for id, kept in ledger.read_verdicts(ledger.RECORDED_VERDICTS).items()}


def check(finding, expected):
    assert str(finding.verdict) == expected, [str(check) for check in finding.checks]
    assert finding.confirmed, [str(check) for check in finding.support]


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.long) if id in SLOW else id for id in MEASURED])
def test_verdict_is_as_recorded_and_supported(id, recorded):
    finding = examine(id)
    check(finding, recorded[id])
    if finding.verdict is not Verdict.HOLDS:
        assert finding.correction and any(letter.isdigit() for letter in finding.example)
    if finding.verdict is Verdict.HOLDS_IF:
        assert re.match(r"[a-z\W\d]|[A-Z]\W", finding.condition), "goes on behind 'holds if'"
    if finding.curves is not None:
        assert all(len(x) == len(y) > 1 for x, y in finding.curves.curves.values())


@pytest.mark.long
@pytest.mark.parametrize("id", [id for id in MEASURED if id not in SLOW][::2])
def test_verdict_does_not_hang_on_the_seed(id, recorded):
    check(examine(id, OTHER_SEED), recorded[id])
