"""Eigenvalues of the query-key part in plus and minus pairs."""
