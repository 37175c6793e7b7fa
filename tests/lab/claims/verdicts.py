"""What every finding of the ledger must satisfy beside its verdict."""

from hessianlens.lab.claims.finding import Finding, Verdict


def check_finding(finding: Finding, expected: Verdict) -> None:
    """The expected verdict, supported by its own checks; a claim that does not hold shows numbers."""
    assert finding.verdict is expected, [str(check) for check in finding.checks]
    assert finding.confirmed, [str(check) for check in finding.support]
    if finding.verdict is not Verdict.HOLDS:
        assert finding.correction and any(letter.isdigit() for letter in finding.example)
