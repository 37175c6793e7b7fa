"""Curvature of every block of a model within a budget: from the name of a model to a table, advice and a page."""
