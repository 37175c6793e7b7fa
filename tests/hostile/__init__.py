"""Modules that users write: every number that is called exact against plain autograd."""
