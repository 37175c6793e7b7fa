"""Spectra and sizes of matrices that are known through their products; every answer has an error bar."""

from hessianlens.spectra.densities import density
from hessianlens.spectra.diagonals import diagonal
from hessianlens.spectra.estimate import Estimate, VectorEstimate
from hessianlens.spectra.extremal_eigenvalues import Eigenvalues, eigenvalues
from hessianlens.spectra.geometry import Sharpness, sharpness
from hessianlens.spectra.heterogeneities import heterogeneity
from hessianlens.spectra.heterogeneity_scores import Heterogeneity
from hessianlens.spectra.inertia_shares import Inertia
from hessianlens.spectra.inertias import inertia
from hessianlens.spectra.lanczos_quadrature import RitzPairs
from hessianlens.spectra.largest_eigenvalue import LeadingEigenpair, leading_eigenpair
from hessianlens.spectra.median_entries import median_entry
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
