"""What Figure 8 shows: exponents, and what was predicted for them."""

from hessianlab.growth.findings.reading import GrowthFindings
from hessianlab.growth.findings.sentences import growth_sentences

FINDINGS = GrowthFindings(growth_sentences)
