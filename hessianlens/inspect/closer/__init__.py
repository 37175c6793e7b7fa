"""A closer look at what was measured: eigenvalues, spectra, pairs, gradients and attention, within a time."""
