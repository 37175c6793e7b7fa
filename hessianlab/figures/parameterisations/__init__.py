"""One query-key matrix against two, at the same function."""
