"""One query-key matrix or two, from the same function."""
