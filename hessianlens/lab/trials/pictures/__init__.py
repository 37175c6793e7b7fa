"""Drawings of studies."""
