"""Spectra of the query-key part, mirrored at zero: Gauss-Newton, the rest and the whole, with two matrices and one."""
