"""The page about a model: what was measured, what matters, and everything that was found, in one file."""
