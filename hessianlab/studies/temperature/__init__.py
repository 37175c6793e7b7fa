"""A learned temperature per head."""
