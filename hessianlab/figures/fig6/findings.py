"""What Figure 6 shows: exponents, and what was predicted for them."""

from hessianlens.lab.growth.findings.reading import GrowthFindings
from hessianlens.lab.growth.findings.sentences import growth_sentences

FINDINGS = GrowthFindings(growth_sentences)
