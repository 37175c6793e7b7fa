"""The command: one model in, one table of its curvature out."""
