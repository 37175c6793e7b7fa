"""The names of the matrices that make up the curvature."""

PARTS = ("full", "ggn", "functional")
"""The Hessian, its Gauss-Newton part, and the difference of the two."""
