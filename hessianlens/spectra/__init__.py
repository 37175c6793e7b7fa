"""Spectra and sizes of matrices that are known through their products; every answer has an error bar."""

from hessianlens.spectra.compose import heterogeneity, inertia
from hessianlens.spectra.densities import density
from hessianlens.spectra.entries import diagonal, median_entry
from hessianlens.spectra.estimate import Estimate, VectorEstimate
from hessianlens.spectra.extremal_eigenvalues import Eigenvalues, eigenvalues
from hessianlens.spectra.geometry import Sharpness, sharpness
from hessianlens.spectra.heterogeneities import Heterogeneity
from hessianlens.spectra.inertias import Inertia
from hessianlens.spectra.lanczos_quadrature import RitzPairs
from hessianlens.spectra.leading_eigenpairs import LeadingEigenpair, leading_eigenpair
from hessianlens.spectra.norms import frobenius
from hessianlens.spectra.probes import Probes
from hessianlens.spectra.spectrum import CumulativeDistribution, DensityCurve, SpectralDensity
from hessianlens.spectra.traces import trace

__all__ = [
    "CumulativeDistribution",
    "DensityCurve",
    "Eigenvalues",
    "Estimate",
    "Heterogeneity",
    "Inertia",
    "LeadingEigenpair",
    "Probes",
    "RitzPairs",
    "Sharpness",
    "SpectralDensity",
    "VectorEstimate",
    "density",
    "diagonal",
    "eigenvalues",
    "frobenius",
    "heterogeneity",
    "inertia",
    "leading_eigenpair",
    "median_entry",
    "sharpness",
    "trace",
]
